// Text to Expression.
#pragma once

#include <string_view>

#include "codegen/expression/expression.hpp"

namespace ordo::expression {

/// Longest text, deepest nesting, and most nodes with every name written out: what keeps generated kernels and recursion small.
inline constexpr std::size_t kLongestText = 4096;
inline constexpr int kDeepest = 64;
inline constexpr std::int64_t kMostNodes = 2048;

/// Reads an expression over the variables of `scope` that gives a `type`. Errors (invalid_argument) name the column, counted from
/// 1, what was found there and what is allowed.
ORDO_API Result<Expression> parse(std::string_view text, Scope scope, Type type);

}  // namespace ordo::expression
