#include "codegen/expression/range.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <limits>

namespace ordo::expression {
namespace {

constexpr Interval kEither{0, 1};

Interval hull(std::initializer_list<std::int64_t> values) { return {std::min(values), std::max(values)}; }

/// Quotients rise or fall along each side of the box, so that the corners hold the extremes. 0 is not in `b`.
Interval quotient(Interval a, Interval b) { return hull({a.low / b.low, a.low / b.high, a.high / b.low, a.high / b.high}); }

/// a % b, with a's sign. 0 is not in `b`.
Interval remainder(Interval a, Interval b) {
  const std::int64_t most = std::max(std::abs(b.low), std::abs(b.high)) - 1;
  const bool one_period = b.single() && a.low / b.low == a.high / b.low && (a.low >= 0 || a.high <= 0);
  if (one_period) return {a.low % b.low, a.high % b.low};
  return {a.low < 0 ? std::max(a.low, -most) : 0, a.high > 0 ? std::min(a.high, most) : 0};
}

Interval less(Interval a, Interval b) { return {a.high < b.low ? 1 : 0, a.low < b.high ? 1 : 0}; }
Interval inverse(Interval condition) { return {1 - condition.high, 1 - condition.low}; }
Interval equal(Interval a, Interval b) { return {a.single() && a == b ? 1 : 0, a.low <= b.high && b.low <= a.high ? 1 : 0}; }

Interval comparison(Op op, Interval a, Interval b) {
  switch (op) {
    case Op::less:
      return less(a, b);
    case Op::less_equal:
      return inverse(less(b, a));
    case Op::greater:
      return less(b, a);
    case Op::greater_equal:
      return inverse(less(a, b));
    case Op::equal:
      return equal(a, b);
    default:
      return inverse(equal(a, b));
  }
}

Interval arithmetic(Op op, Interval a, Interval b) {
  switch (op) {
    case Op::negate:
      return {-a.high, -a.low};
    case Op::absolute:
      return {a.low > 0 ? a.low : a.high < 0 ? -a.high : 0, std::max(std::abs(a.low), std::abs(a.high))};
    case Op::add:
      return {a.low + b.low, a.high + b.high};
    case Op::subtract:
      return {a.low - b.high, a.high - b.low};
    case Op::multiply:
      return hull({a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high});
    case Op::divide:
    case Op::modulo:
      if (holds_zero(b)) return kAnyInteger;
      return op == Op::divide ? quotient(a, b) : remainder(a, b);
    case Op::minimum:
      return {std::min(a.low, b.low), std::min(a.high, b.high)};
    case Op::maximum:
      return {std::max(a.low, b.low), std::max(a.high, b.high)};
    default:
      return comparison(op, a, b);
  }
}

/// Sums and products of these stay within 64 bits, whatever an expression does.
Interval cut_to_32_bits(Interval x) {
  return {std::clamp(x.low, kAnyInteger.low, kAnyInteger.high), std::clamp(x.high, kAnyInteger.low, kAnyInteger.high)};
}

bool is_comparison(Op op) { return op >= Op::less && op <= Op::not_equal; }

}  // namespace

Interval RangeEvaluator::operator()(const Domain& domain) {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const Node& n = expression_.nodes[i];
    const auto operand = [&](std::size_t which) { return cut_to_32_bits(ranges_[static_cast<std::size_t>(n.operands[which])]); };
    const auto floating = [&](std::size_t which) {
      return expression_.nodes[static_cast<std::size_t>(n.operands[which])].type == Type::floating;
    };
    Interval& out = ranges_[i];
    if (n.type == Type::floating) {
      out = kAnyInteger;  // nothing is known, and nobody looks
    } else if (n.op == Op::literal) {
      out = {n.integer, n.integer};
    } else if (n.op == Op::variable) {
      out = domain[n.variable];
    } else if (n.op == Op::logical_not) {
      out = inverse(operand(0));
    } else if (n.op == Op::logical_and) {
      out = {operand(0).low & operand(1).low, operand(0).high & operand(1).high};
    } else if (n.op == Op::logical_or) {
      out = {operand(0).low | operand(1).low, operand(0).high | operand(1).high};
    } else if (n.op == Op::select) {
      const Interval condition = operand(0), yes = operand(1), no = operand(2);
      out = condition.low == 1    ? yes
            : condition.high == 0 ? no
                                  : Interval{std::min(yes.low, no.low), std::max(yes.high, no.high)};
    } else if (is_comparison(n.op) && floating(0)) {
      out = kEither;
    } else {
      out = arithmetic(n.op, operand(0), operand_count(n.op) > 1 ? operand(1) : Interval{});
    }
  }
  return ranges_.back();
}

Result<void> check_ranges(const Expression& expression, const Domain& domain) {
  // What the constants decide is not looked at: a division guarded by the lengths is fine.
  const Expression folded = fold(expression, domain);
  RangeEvaluator evaluator(folded);
  (void)evaluator(domain);
  for (std::size_t i = 0; i < folded.nodes.size(); ++i) {
    const Node& node = folded.nodes[i];
    if (node.type != Type::integer) continue;
    const Interval range = evaluator.nodes()[i];
    if (node.op == Op::divide || node.op == Op::modulo) {
      const int divisor = node.operands[1];
      const Interval d = evaluator.nodes()[static_cast<std::size_t>(divisor)];
      if (holds_zero(d)) {
        return Error{ErrorCode::invalid_problem,
                     fmt::format("{} may divide by 0: {} is within {} .. {}", to_text(folded, static_cast<int>(i)),
                                 to_text(folded, divisor), d.low, d.high)};
      }
    }
    if (!within_32_bits(range)) {
      return Error{ErrorCode::invalid_problem, fmt::format("{} may leave 32 bits: it is within {} .. {}",
                                                           to_text(folded, static_cast<int>(i)), range.low, range.high)};
    }
  }
  return {};
}

}  // namespace ordo::expression
