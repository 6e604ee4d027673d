// Expression to CUDA C++.
#pragma once

#include <string>

#include "codegen/expression/expression.hpp"

namespace ordo::expression {

/// One C++ expression over `int` names as the variables are called. min, max and abs are the functions of
/// templates/expression/functions.cuh. Names of definitions are written out, so that a guarded division stays guarded. The same
/// value as evaluate() wherever check_ranges() passes; floating-point contraction must be off.
ORDO_API std::string to_cuda(const Expression& expression);

}  // namespace ordo::expression
