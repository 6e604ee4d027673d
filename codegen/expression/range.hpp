// Which values an expression can take on a box of its variables.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "codegen/expression/expression.hpp"

namespace ordo::expression {

/// low <= x <= high. Booleans are 0 and 1.
struct Interval {
  std::int64_t low = 0;
  std::int64_t high = 0;

  [[nodiscard]] bool single() const { return low == high; }
  friend bool operator==(const Interval&, const Interval&) = default;
};

/// Any value of 32 bits.
inline constexpr Interval kAnyInteger{INT32_MIN, INT32_MAX};

inline bool within_32_bits(Interval x) { return x.low >= kAnyInteger.low && x.high <= kAnyInteger.high; }
inline bool holds_zero(Interval x) { return x.low <= 0 && x.high >= 0; }

/// What is known of the variables: an interval each, of which a single value is a constant.
struct Domain {
  std::array<Interval, kVariables> intervals;

  Domain() { intervals.fill(kAnyInteger); }
  Interval& operator[](Variable v) { return intervals[static_cast<std::size_t>(v)]; }
  const Interval& operator[](Variable v) const { return intervals[static_cast<std::size_t>(v)]; }
  void set(Variable v, std::int64_t value) { (*this)[v] = {value, value}; }
};

/// Intervals of an expression's nodes over one box after another, without allocating between them. A sound outer bound: every
/// value is inside, not every value inside occurs. Nothing is known of floating values.
class RangeEvaluator {
 public:
  explicit RangeEvaluator(const Expression& expression) : expression_(expression), ranges_(expression.nodes.size()) {}

  /// The interval of the expression's value.
  Interval operator()(const Domain& domain);
  /// Of every node, after a call.
  [[nodiscard]] const std::vector<Interval>& nodes() const { return ranges_; }

 private:
  const Expression& expression_;
  std::vector<Interval> ranges_;
};

/// Whether every integer stays within 32 bits and no divisor can be 0, whatever the variables are in `domain`. The error
/// (invalid_problem) names the part that may not, and its range.
Result<void> check_ranges(const Expression& expression, const Domain& domain);

/// `expression` with the domain's constants put in and everything that then is constant worked out; definitions are dissolved,
/// nodes that do not count are gone. Comparisons that the domain's intervals decide are constants too. Equal values on the whole
/// domain, provided that check_ranges passes.
Expression fold(const Expression& expression, const Domain& domain);

}  // namespace ordo::expression
