#include <bit>
#include <map>
#include <optional>
#include <utility>

#include "codegen/expression/range.hpp"

namespace ordo::expression {
namespace {

Node literal(Type type, std::int32_t value) {
  Node node{.op = Op::literal, .type = type};
  if (type == Type::floating)
    node.fraction = std::bit_cast<float>(value);
  else
    node.integer = value;
  return node;
}

/// Copies what counts of an expression, equal nodes once.
class Folder {
 public:
  Folder(const Expression& from, const Domain& domain) : from_(from), evaluator_(from) {
    (void)evaluator_(domain);
    find_safe();
  }

  Expression run() {
    copies_.assign(from_.nodes.size(), -1);
    const int root = copy(static_cast<int>(from_.nodes.size()) - 1);
    // The value must come last; nodes after it are none of its operands.
    out_.nodes.resize(static_cast<std::size_t>(root) + 1);
    return prune();
  }

 private:
  int copy(int node) {
    int& done = copies_[static_cast<std::size_t>(node)];
    if (done < 0) done = make(node);
    return done;
  }

  int make(int node) {
    const Node& n = from_.nodes[static_cast<std::size_t>(node)];
    const Interval range = evaluator_.nodes()[static_cast<std::size_t>(node)];
    if (n.type != Type::floating && range.single() && safe_[static_cast<std::size_t>(node)]) {
      return add(literal(n.type, static_cast<std::int32_t>(range.low)));
    }
    if (n.op == Op::select) {
      const Interval condition = evaluator_.nodes()[static_cast<std::size_t>(n.operands[0])];
      if (condition.single()) return copy(n.operands[condition.low != 0 ? 1 : 2]);
    }
    Node made = n;
    for (int i = 0; i < operand_count(n.op); ++i) {
      auto& operand = made.operands[static_cast<std::size_t>(i)];
      operand = copy(operand);
    }
    if (const std::optional<int> neutral = neutral_operand(made)) return *neutral;
    return add(made);
  }

  /// Of every node: whether leaving it out hides nothing from check_ranges, that is, no division by what may be 0 and no overflow
  /// in it or below it. Operands that the others decide against are not evaluated and do not count.
  void find_safe() {
    safe_.assign(from_.nodes.size(), true);
    const auto range = [this](int node) { return evaluator_.nodes()[static_cast<std::size_t>(node)]; };
    for (std::size_t i = 0; i < safe_.size(); ++i) {
      const Node& n = from_.nodes[i];
      std::array<bool, 3> counts{true, true, true};
      if (n.op == Op::select) {
        counts[1] = range(n.operands[0]).high == 1;
        counts[2] = range(n.operands[0]).low == 0;
      } else if (n.op == Op::logical_and) {
        counts[1] = range(n.operands[0]).high == 1;
      } else if (n.op == Op::logical_or) {
        counts[1] = range(n.operands[0]).low == 0;
      }
      bool safe = n.type != Type::integer || within_32_bits(range(static_cast<int>(i)));
      if ((n.op == Op::divide || n.op == Op::modulo) && n.type == Type::integer) safe = safe && !holds_zero(range(n.operands[1]));
      for (std::size_t o = 0; o < 3; ++o)
        if (n.operands[o] >= 0 && counts[o]) safe = safe && safe_[static_cast<std::size_t>(n.operands[o])];
      safe_[i] = safe;
    }
  }

  /// The operand that a joint of conditions comes down to when the other is its neutral element.
  [[nodiscard]] std::optional<int> neutral_operand(const Node& node) const {
    if (node.op != Op::logical_and && node.op != Op::logical_or) return std::nullopt;
    const std::int32_t neutral = node.op == Op::logical_and ? 1 : 0;
    for (std::size_t i = 0; i < 2; ++i) {
      const Node& operand = out_.nodes[static_cast<std::size_t>(node.operands[i])];
      if (operand.op == Op::literal && operand.integer == neutral) return node.operands[1 - i];
    }
    return std::nullopt;
  }

  int add(const Node& node) {
    for (std::size_t i = 0; i < out_.nodes.size(); ++i)
      if (out_.nodes[i] == node) return static_cast<int>(i);
    out_.nodes.push_back(node);
    return static_cast<int>(out_.nodes.size()) - 1;
  }

  /// Drops what became of operands that were decided.
  Expression prune() {
    std::vector<bool> used(out_.nodes.size());
    used.back() = true;
    for (std::size_t i = out_.nodes.size(); i-- > 0;) {
      if (!used[i]) continue;
      for (const int operand : out_.nodes[i].operands)
        if (operand >= 0) used[static_cast<std::size_t>(operand)] = true;
    }
    std::vector<int> number(out_.nodes.size(), -1);
    Expression kept;
    for (std::size_t i = 0; i < out_.nodes.size(); ++i) {
      if (!used[i]) continue;
      Node node = out_.nodes[i];
      for (int& operand : node.operands)
        if (operand >= 0) operand = number[static_cast<std::size_t>(operand)];
      number[i] = static_cast<int>(kept.nodes.size());
      kept.nodes.push_back(node);
    }
    return kept;
  }

  const Expression& from_;
  RangeEvaluator evaluator_;
  Expression out_;
  std::vector<bool> safe_;
  std::vector<int> copies_;
};

}  // namespace

Expression fold(const Expression& expression, const Domain& domain) { return Folder(expression, domain).run(); }

}  // namespace ordo::expression
