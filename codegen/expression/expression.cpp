#include "codegen/expression/expression.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace ordo::expression {
namespace {

struct Spelling {
  Op op;
  std::string_view text;
  int operands;
  int precedence;
};

constexpr int kAtom = 9;

constexpr std::array<Spelling, 22> kSpellings{{
    {Op::literal, "", 0, kAtom},
    {Op::variable, "", 0, kAtom},
    {Op::negate, "-", 1, 8},
    {Op::absolute, "abs", 1, kAtom},
    {Op::to_float, "float", 1, kAtom},
    {Op::logical_not, "!", 1, 8},
    {Op::add, "+", 2, 6},
    {Op::subtract, "-", 2, 6},
    {Op::multiply, "*", 2, 7},
    {Op::divide, "/", 2, 7},
    {Op::modulo, "%", 2, 7},
    {Op::minimum, "min", 2, kAtom},
    {Op::maximum, "max", 2, kAtom},
    {Op::less, "<", 2, 5},
    {Op::less_equal, "<=", 2, 5},
    {Op::greater, ">", 2, 5},
    {Op::greater_equal, ">=", 2, 5},
    {Op::equal, "==", 2, 4},
    {Op::not_equal, "!=", 2, 4},
    {Op::logical_and, "&&", 2, 3},
    {Op::logical_or, "||", 2, 2},
    {Op::select, "?", 3, 1},
}};

const Spelling& spelling_of(Op op) { return kSpellings[static_cast<std::size_t>(op)]; }

constexpr std::array<std::string_view, kVariables> kNames{"q",        "k",      "head",    "batch", "seqlen_q",
                                                          "seqlen_k", "tile",   "unit",    "down",  "q_tiles",
                                                          "units",    "tile_q", "unit_kv", "wave",  "stride"};

std::string literal_text(const Node& node) {
  if (node.type == Type::boolean) return node.integer != 0 ? "true" : "false";
  if (node.type == Type::integer) return fmt::format("{}", node.integer);
  std::string text = fmt::format("{}", node.fraction);
  // A literal needs its point to be read back as a fraction.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

class Printer {
 public:
  explicit Printer(const Expression& expression) : expression_(expression) {}

  /// `node` where an operator of precedence `outer` stands around it; at the top, 0. A definition's own text is not its name.
  void print(int node, int outer, bool by_name = true) {
    if (by_name) {
      for (const Definition& definition : expression_.definitions) {
        if (definition.node == node) {
          text += definition.name;
          return;
        }
      }
    }
    const Node& n = expression_.nodes[static_cast<std::size_t>(node)];
    const int own = precedence(n.op);
    const bool parentheses = own < outer;
    if (parentheses) text += '(';
    print_operation(n, own);
    if (parentheses) text += ')';
  }

  std::string text;

 private:
  void print_operation(const Node& n, int own) {
    const auto operand = [&n](int i) { return n.operands[static_cast<std::size_t>(i)]; };
    if (n.op == Op::literal) {
      text += literal_text(n);
    } else if (n.op == Op::variable) {
      text += to_string(n.variable);
    } else if (is_function(n.op)) {
      text += spelling(n.op);
      for (int i = 0; i < operand_count(n.op); ++i) {
        text += i == 0 ? '(' : ',';
        print(operand(i), 0);
      }
      text += ')';
    } else if (n.op == Op::select) {
      print(operand(0), own + 1);
      text += '?';
      print(operand(1), 0);
      text += ':';
      print(operand(2), own);
    } else if (operand_count(n.op) == 1) {
      text += spelling(n.op);
      print(operand(0), own);
    } else {
      const bool chains = precedence(Op::equal) != own && precedence(Op::less) != own;
      print(operand(0), chains ? own : own + 1);
      text += spelling(n.op);
      print(operand(1), own + 1);
    }
  }

  const Expression& expression_;
};

std::int32_t wrap(std::int64_t x) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(x)); }

float as_float(std::int32_t bits) { return std::bit_cast<float>(bits); }
std::int32_t as_bits(float x) { return std::bit_cast<std::int32_t>(x); }

template <class T>
bool compare(Op op, T a, T b) {
  switch (op) {
    case Op::less:
      return a < b;
    case Op::less_equal:
      return a <= b;
    case Op::greater:
      return a > b;
    case Op::greater_equal:
      return a >= b;
    case Op::equal:
      return a == b;
    default:
      return a != b;
  }
}

std::int32_t integer_operation(Op op, std::int32_t a, std::int32_t b) {
  const std::int64_t x = a, y = b;
  switch (op) {
    case Op::negate:
      return wrap(-x);
    case Op::absolute:
      return wrap(x < 0 ? -x : x);
    case Op::to_float:
      return as_bits(static_cast<float>(a));
    case Op::add:
      return wrap(x + y);
    case Op::subtract:
      return wrap(x - y);
    case Op::multiply:
      return wrap(x * y);
    case Op::divide:
      return y == 0 ? 0 : wrap(x / y);
    case Op::modulo:
      return y == 0 ? 0 : wrap(x % y);
    case Op::minimum:
      return std::min(a, b);
    case Op::maximum:
      return std::max(a, b);
    default:
      return compare(op, a, b) ? 1 : 0;
  }
}

std::int32_t floating_operation(Op op, float a, float b) {
  switch (op) {
    case Op::negate:
      return as_bits(-a);
    case Op::absolute:
      return as_bits(a < 0 ? -a : a);
    case Op::add:
      return as_bits(a + b);
    case Op::subtract:
      return as_bits(a - b);
    case Op::multiply:
      return as_bits(a * b);
    case Op::divide:
      return as_bits(a / b);
    case Op::minimum:
      return as_bits(b < a ? b : a);
    case Op::maximum:
      return as_bits(a < b ? b : a);
    default:
      return compare(op, a, b) ? 1 : 0;
  }
}

}  // namespace

std::string_view to_string(Variable variable) { return kNames[static_cast<std::size_t>(variable)]; }

std::string_view describe(Type type) {
  return type == Type::boolean ? "condition" : type == Type::integer ? "whole number" : "fraction";
}

std::vector<Variable> variables_of(Scope scope) {
  std::vector<Variable> out;
  for (std::size_t i = 0; i < kVariables; ++i) {
    const auto variable = static_cast<Variable>(i);
    if (scope == Scope::mask ? variable < Variable::tile : variable >= Variable::seqlen_q) out.push_back(variable);
  }
  return out;
}

bool Expression::uses(Variable variable) const {
  return std::any_of(nodes.begin(), nodes.end(),
                     [variable](const Node& node) { return node.op == Op::variable && node.variable == variable; });
}

int operand_count(Op op) { return spelling_of(op).operands; }
std::string_view spelling(Op op) { return spelling_of(op).text; }
int precedence(Op op) { return spelling_of(op).precedence; }
bool is_function(Op op) { return precedence(op) == kAtom && operand_count(op) > 0; }

std::string to_text(const Expression& expression) {
  Printer printer(expression);
  for (const Definition& definition : expression.definitions) {
    printer.text += definition.name + '=';
    printer.print(definition.node, 0, false);
    printer.text += ';';
  }
  printer.print(static_cast<int>(expression.nodes.size()) - 1, 0);
  return printer.text;
}

std::string to_text(const Expression& expression, int node) {
  Printer printer(expression);
  printer.print(node, 0);
  return printer.text;
}

std::int32_t evaluate(const Expression& expression, const Values& values) {
  std::vector<std::int32_t> results(expression.nodes.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Node& n = expression.nodes[i];
    const auto operand = [&](std::size_t which) { return results[static_cast<std::size_t>(n.operands[which])]; };
    const int count = operand_count(n.op);
    if (n.op == Op::literal) {
      results[i] = n.type == Type::floating ? as_bits(n.fraction) : n.integer;
    } else if (n.op == Op::variable) {
      results[i] = values[static_cast<std::size_t>(n.variable)];
    } else if (n.op == Op::select) {
      results[i] = operand(0) != 0 ? operand(1) : operand(2);
    } else if (n.op == Op::logical_not) {
      results[i] = operand(0) == 0 ? 1 : 0;
    } else if (n.op == Op::logical_and || n.op == Op::logical_or) {
      results[i] = n.op == Op::logical_and ? operand(0) & operand(1) : operand(0) | operand(1);
    } else {
      const std::int32_t a = operand(0), b = count > 1 ? operand(1) : 0;
      const bool floating = expression.nodes[static_cast<std::size_t>(n.operands[0])].type == Type::floating;
      results[i] = floating ? floating_operation(n.op, as_float(a), as_float(b)) : integer_operation(n.op, a, b);
    }
  }
  return results.back();
}

}  // namespace ordo::expression
