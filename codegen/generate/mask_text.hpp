// The mask of a kernel as CUDA text.
#pragma once

#include <string>

#include "codegen/expression/range.hpp"
#include "ordo/problem.hpp"

namespace ordo {

/// The function visible() that the templates call where the mask is an expression, with what `known` fixes put in. Masks that the
/// templates know themselves get one that is never called.
std::string visible_text(Mask mask, const expression::Domain& known);

/// What a kernel for every shape may rely on: positions and sizes are not negative.
expression::Domain any_shape();

}  // namespace ordo
