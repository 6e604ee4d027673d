// Expression to LLVM IR: verified and optimised for what is known of the variables; and what the IR tells. LLVM's own headers
// stay in the .cpp files.
#pragma once

#include <string>

#include "codegen/expression/expression.hpp"
#include "codegen/expression/range.hpp"

namespace ordo::expression {

/// What a function of the optimised IR needs, if every value lives from its definition to its last use.
struct LiveRegisters {
  int instructions = 0;  ///< the return not counted
  int words = 0;         ///< most 32-bit registers live at once; inputs that are still needed count
  int predicates = 0;    ///< most conditions live at once
  int inputs = 0;        ///< distinct inputs that are not constants: what must be kept from step to step
};

/// Measures the expression as a function of its variables. Values that `known` fixes are constants, so they take no register.
/// About a millisecond; thread-safe. Errors (internal): IR that does not verify, a bug.
Result<LiveRegisters> live_registers(const Expression& expression, const Domain& known = {});

/// The optimised IR of the same function, for people.
Result<std::string> ir_text(const Expression& expression, const Domain& known = {});

}  // namespace ordo::expression
