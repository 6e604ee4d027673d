#include "codegen/expression/ir.hpp"

#include <llvm/Analysis/TargetLibraryInfo.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/TargetParser/Triple.h>

#include <fmt/format.h>

#include <string>
#include <vector>

namespace ordo::expression {
namespace {

using llvm::Value;

class ValueBuilder {
 public:
  ValueBuilder(llvm::IRBuilder<>& builder, const Expression& expression, const std::function<Value*(Variable)>& variable)
      : b_(builder), expression_(expression), variable_(variable) {}

  Value* run() {
    values_.reserve(expression_.nodes.size());
    for (const Node& node : expression_.nodes) values_.push_back(build(node));
    return values_.back();
  }

 private:
  Value* build(const Node& n) {
    switch (n.op) {
      case Op::literal:
        return literal(n);
      case Op::variable:
        return variable_(n.variable);
      case Op::to_float:
        return b_.CreateSIToFP(operand(n, 0), b_.getFloatTy());
      case Op::logical_not:
        return b_.CreateNot(operand(n, 0));
      case Op::logical_and:
        return b_.CreateAnd(operand(n, 0), operand(n, 1));
      case Op::logical_or:
        return b_.CreateOr(operand(n, 0), operand(n, 1));
      case Op::select:
        return b_.CreateSelect(operand(n, 0), operand(n, 1), operand(n, 2));
      default:
        return operand(n, 0)->getType()->isFloatTy() ? floating(n) : integer(n);
    }
  }

  [[nodiscard]] Value* operand(const Node& n, std::size_t which) const {
    return values_[static_cast<std::size_t>(n.operands[which])];
  }

  Value* literal(const Node& n) {
    if (n.type == Type::boolean) return b_.getInt1(n.integer != 0);
    if (n.type == Type::integer) return b_.getInt32(static_cast<std::uint32_t>(n.integer));
    return llvm::ConstantFP::get(b_.getFloatTy(), static_cast<double>(n.fraction));
  }

  Value* integer(const Node& n) {
    Value* const a = operand(n, 0);
    if (n.op == Op::negate) return b_.CreateNSWNeg(a);
    if (n.op == Op::absolute) return b_.CreateSelect(b_.CreateICmpSLT(a, b_.getInt32(0)), b_.CreateNSWNeg(a), a);
    Value* const b = operand(n, 1);
    switch (n.op) {
      case Op::add:
        return b_.CreateNSWAdd(a, b);
      case Op::subtract:
        return b_.CreateNSWSub(a, b);
      case Op::multiply:
        return b_.CreateNSWMul(a, b);
      case Op::divide:
        return b_.CreateSDiv(a, b);
      case Op::modulo:
        return b_.CreateSRem(a, b);
      case Op::minimum:
        return b_.CreateSelect(b_.CreateICmpSLT(b, a), b, a);
      case Op::maximum:
        return b_.CreateSelect(b_.CreateICmpSLT(a, b), b, a);
      case Op::less:
        return b_.CreateICmpSLT(a, b);
      case Op::less_equal:
        return b_.CreateICmpSLE(a, b);
      case Op::greater:
        return b_.CreateICmpSGT(a, b);
      case Op::greater_equal:
        return b_.CreateICmpSGE(a, b);
      case Op::equal:
        return b_.CreateICmpEQ(a, b);
      default:
        return b_.CreateICmpNE(a, b);
    }
  }

  Value* floating(const Node& n) {
    Value* const a = operand(n, 0);
    if (n.op == Op::negate) return b_.CreateFNeg(a);
    if (n.op == Op::absolute) {
      return b_.CreateSelect(b_.CreateFCmpOLT(a, llvm::ConstantFP::get(a->getType(), 0.0)), b_.CreateFNeg(a), a);
    }
    Value* const b = operand(n, 1);
    switch (n.op) {
      case Op::add:
        return b_.CreateFAdd(a, b);
      case Op::subtract:
        return b_.CreateFSub(a, b);
      case Op::multiply:
        return b_.CreateFMul(a, b);
      case Op::divide:
        return b_.CreateFDiv(a, b);
      case Op::minimum:
        return b_.CreateSelect(b_.CreateFCmpOLT(b, a), b, a);
      case Op::maximum:
        return b_.CreateSelect(b_.CreateFCmpOLT(a, b), b, a);
      case Op::less:
        return b_.CreateFCmpOLT(a, b);
      case Op::less_equal:
        return b_.CreateFCmpOLE(a, b);
      case Op::greater:
        return b_.CreateFCmpOGT(a, b);
      case Op::greater_equal:
        return b_.CreateFCmpOGE(a, b);
      case Op::equal:
        return b_.CreateFCmpOEQ(a, b);
      default:
        return b_.CreateFCmpUNE(a, b);
    }
  }

  llvm::IRBuilder<>& b_;
  const Expression& expression_;
  const std::function<Value*(Variable)>& variable_;
  std::vector<Value*> values_;
};

}  // namespace

Value* build_value(llvm::IRBuilder<>& builder, const Expression& expression, const std::function<Value*(Variable)>& variable) {
  return ValueBuilder(builder, expression, variable).run();
}

llvm::Type* type_of(llvm::LLVMContext& context, Type type) {
  if (type == Type::floating) return llvm::Type::getFloatTy(context);
  return llvm::Type::getIntNTy(context, type == Type::boolean ? 1 : 32);
}

Result<void> verify_and_optimise(llvm::Module& module) {
  std::string message;
  llvm::raw_string_ostream stream(message);
  if (llvm::verifyModule(module, &stream)) {
    return Error{ErrorCode::internal, fmt::format("the IR of an expression does not verify: {}", message)};
  }
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager graphs;
  llvm::ModuleAnalysisManager modules;
  llvm::TargetLibraryInfoImpl no_library{llvm::Triple(module.getTargetTriple())};
  no_library.disableAllFunctions();
  functions.registerPass([&] { return llvm::TargetLibraryAnalysis(no_library); });
  llvm::PassBuilder passes;
  passes.registerModuleAnalyses(modules);
  passes.registerCGSCCAnalyses(graphs);
  passes.registerFunctionAnalyses(functions);
  passes.registerLoopAnalyses(loops);
  passes.crossRegisterProxies(loops, functions, graphs, modules);
  passes.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O2).run(module, modules);
  return {};
}

}  // namespace ordo::expression
