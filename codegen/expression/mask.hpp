// The expression of a mask, and what a problem makes of it.
#pragma once

#include <string>
#include <string_view>

#include "codegen/expression/expression.hpp"
#include "codegen/expression/range.hpp"
#include "ordo/problem.hpp"

namespace ordo::expression {

inline constexpr std::string_view kMaskPrefix = "expr:";

/// What an ordo::Mask refers to. Immutable.
struct Mask {
  Expression expression;
  std::string text;  ///< canonical, with the prefix
};

/// Reads "expr:..." and keeps it for the lifetime of the process: equal canonical texts give the same object, so that masks are
/// compared and copied like enumerators. Thread-safe. Errors (invalid_argument) begin with the mask's text and name the column
/// behind the prefix.
Result<const Mask*> keep_mask(std::string_view text);

/// The values that a kernel may evaluate the mask of `problem` with: positions up to the end of the last tile, whatever its size,
/// heads and batch; the lengths are constants.
Domain mask_domain(const AttentionBackward& problem);

/// check_ranges() on that domain, for a problem with an expression mask. Errors: invalid_problem.
Result<void> check_mask(const AttentionBackward& problem);

}  // namespace ordo::expression
