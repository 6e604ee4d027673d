// Random expressions that check_ranges() accepts.
#pragma once

#include <algorithm>
#include <random>
#include <string>

#include <fmt/format.h>

#include "codegen/expression/parse.hpp"
#include "codegen/expression/range.hpp"

namespace ordo::testing {

/// Texts of expressions over the mask's variables. Every operator occurs; divisors are kept off 0.
class RandomExpressions {
 public:
  explicit RandomExpressions(unsigned seed) : random_(seed) {}

  std::string condition(int depth) {
    switch (depth <= 0 ? below(2) : below(9)) {
      case 0:
        return fmt::format("{}{}{}", number(depth - 1), comparison(), number(depth - 1));
      case 1:
        return fmt::format("{}{}{}", fraction(depth - 1), comparison(), fraction(depth - 1));
      case 2:
      case 3:
        return fmt::format("({} && {})", condition(depth - 1), condition(depth - 1));
      case 4:
      case 5:
        return fmt::format("({}||{})", condition(depth - 1), condition(depth - 1));
      case 6:
        return fmt::format("!({})", condition(depth - 1));
      case 7:
        return fmt::format("({} ? {} : {})", condition(depth - 1), condition(depth - 1), condition(depth - 1));
      default:
        return fmt::format("({}) {} ({})", condition(depth - 1), below(2) == 0 ? "==" : "!=", condition(depth - 1));
    }
  }

  std::string number(int depth) {
    constexpr const char* kNames[] = {"q", "k", "head", "batch", "seqlen_q", "seqlen_k"};
    if (depth <= 0) return below(3) == 0 ? fmt::format("{}", below(300)) : kNames[below(6)];
    switch (below(10)) {
      case 0:
        return fmt::format("-({})", number(depth - 1));
      case 1:
        return fmt::format("abs({})", number(depth - 1));
      case 2:
        return fmt::format("min({}, {})", number(depth - 1), number(depth - 1));
      case 3:
        return fmt::format("max({}, {})", number(depth - 1), number(depth - 1));
      case 4:
        return fmt::format("({}) / (1 + abs({}))", number(depth - 1), number(depth - 2));
      case 5:
        return fmt::format("({}) % {}", number(depth - 1), 1 + below(70));
      case 6:
        return fmt::format("({} ? {} : {})", condition(depth - 1), number(depth - 1), number(depth - 1));
      case 7:
        return fmt::format("({}) * ({})", number(depth - 2), number(depth - 2));
      case 8:
        return fmt::format("({} - {})", number(depth - 1), number(depth - 1));
      default:
        return fmt::format("({} + {})", number(depth - 1), number(depth - 1));
    }
  }

  std::string fraction(int depth) {
    if (depth <= 0) return below(2) == 0 ? fmt::format("{}.{}", below(20), below(100)) : fmt::format("float({})", number(0));
    switch (below(5)) {
      case 0:
        return fmt::format("({} / {})", fraction(depth - 1), fraction(depth - 1));
      case 1:
        return fmt::format("min({}, -{})", fraction(depth - 1), fraction(depth - 1));
      case 2:
        return fmt::format("max({}, abs({}))", fraction(depth - 1), fraction(depth - 1));
      case 3:
        return fmt::format("({} - {})", fraction(depth - 1), fraction(depth - 1));
      default:
        return fmt::format("({} * {} + {})", fraction(depth - 1), fraction(depth - 1), fraction(depth - 1));
    }
  }

  /// A condition that passes check_ranges() on `domain`.
  expression::Expression next(const expression::Domain& domain, int depth = 4) {
    while (true) {
      auto parsed = expression::parse(condition(depth), expression::Scope::mask, expression::Type::boolean);
      if (parsed && expression::check_ranges(*parsed, domain)) return *std::move(parsed);
    }
  }

  int below(int count) { return std::uniform_int_distribution(0, count - 1)(random_); }

  /// Values inside `domain`, its corners more often than others.
  expression::Values values(const expression::Domain& domain) {
    expression::Values out{};
    for (std::size_t i = 0; i < out.size(); ++i) {
      const expression::Interval interval = domain.intervals[i];
      const int kind = below(4);
      const std::int64_t any = std::uniform_int_distribution<std::int64_t>(interval.low, interval.high)(random_);
      out[i] = static_cast<std::int32_t>(kind == 0 ? interval.low : kind == 1 ? interval.high : any);
    }
    return out;
  }

 private:
  const char* comparison() {
    constexpr const char* kComparisons[] = {" < ", "<=", ">", " >= ", "==", "!="};
    return kComparisons[below(6)];
  }

  std::mt19937 random_;
};

/// Positions of a small problem.
inline expression::Domain small_domain() {
  using expression::Variable;
  expression::Domain domain;
  for (expression::Interval& interval : domain.intervals) interval = {0, 0};
  domain[Variable::q] = {0, 1023};
  domain[Variable::k] = {0, 2047};
  domain[Variable::head] = {0, 15};
  domain[Variable::batch] = {0, 3};
  domain.set(Variable::seqlen_q, 1000);
  domain.set(Variable::seqlen_k, 2000);
  return domain;
}

}  // namespace ordo::testing
