#include "codegen/expression/cuda.hpp"

#include <fmt/format.h>

namespace ordo::expression {
namespace {

std::string literal_text(const Node& node) {
  if (node.type == Type::boolean) return node.integer != 0 ? "true" : "false";
  // 2147483648 is no int, so neither is its negative.
  if (node.type == Type::integer) return node.integer == INT32_MIN ? "(-2147483647 - 1)" : fmt::format("{}", node.integer);
  return fmt::format("{:a}f", node.fraction);
}

std::string function_of(Op op) {
  switch (op) {
    case Op::minimum:
      return "ordo::expression::lesser";
    case Op::maximum:
      return "ordo::expression::greater";
    case Op::absolute:
      return "ordo::expression::absolute";
    default:
      return "static_cast<float>";
  }
}

std::string text_of(const Expression& expression, int node, bool nested) {
  const Node& n = expression.nodes[static_cast<std::size_t>(node)];
  const auto operand = [&](std::size_t i, bool inner) { return text_of(expression, n.operands[i], inner); };
  if (n.op == Op::literal) return literal_text(n);
  if (n.op == Op::variable) return std::string(to_string(n.variable));
  if (is_function(n.op)) {
    if (operand_count(n.op) == 1) return fmt::format("{}({})", function_of(n.op), operand(0, false));
    return fmt::format("{}({}, {})", function_of(n.op), operand(0, false), operand(1, false));
  }
  std::string text;
  if (n.op == Op::select) {
    text = fmt::format("{} ? {} : {}", operand(0, true), operand(1, true), operand(2, true));
  } else if (operand_count(n.op) == 1) {
    text = fmt::format("{}{}", spelling(n.op), operand(0, true));
  } else {
    text = fmt::format("{} {} {}", operand(0, true), spelling(n.op), operand(1, true));
  }
  return nested ? fmt::format("({})", text) : text;
}

}  // namespace

std::string to_cuda(const Expression& expression) {
  return text_of(expression, static_cast<int>(expression.nodes.size()) - 1, false);
}

}  // namespace ordo::expression
