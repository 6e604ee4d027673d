// IR of expressions, for the files that use LLVM.
#pragma once

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>

#include <functional>
#include <memory>

#include "codegen/expression/expression.hpp"

namespace ordo::expression {

/// The value of every operation, at the builder's insertion point: i1, i32 or float. `variable` gives the i32 of a variable.
/// Integer operations say that they do not overflow, and divisions that they do not divide by 0: only for what check_ranges()
/// passes.
llvm::Value* build_value(llvm::IRBuilder<>& builder, const Expression& expression,
                         const std::function<llvm::Value*(Variable)>& variable);

/// LLVM's type of a value.
llvm::Type* type_of(llvm::LLVMContext& context, Type type);

/// Verifies, then optimises (-O2). No call to a library is made up. Errors (internal): what the verifier says.
Result<void> verify_and_optimise(llvm::Module& module);

}  // namespace ordo::expression
