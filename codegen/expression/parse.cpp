#include "codegen/expression/parse.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>

#include "codegen/expression/lexer.hpp"
#include "codegen/fields.hpp"

namespace ordo::expression {
namespace {

using Kind = Token::Kind;

/// A node's number, or why there is none.
using Parsed = Result<int>;

std::optional<Op> operator_of(const Token& token, int level) {
  if (token.kind != Kind::symbol) return std::nullopt;
  for (Op op = Op::add; op < Op::select; op = static_cast<Op>(static_cast<int>(op) + 1)) {
    if (!is_function(op) && precedence(op) == level && spelling(op) == token.text) return op;
  }
  return std::nullopt;
}

std::optional<Op> function_of(std::string_view name) {
  for (const Op op : {Op::absolute, Op::to_float, Op::minimum, Op::maximum}) {
    if (spelling(op) == name) return op;
  }
  return std::nullopt;
}

class Parser {
 public:
  Parser(std::string_view text, Scope scope) : lexer_(text), scope_(scope) {}

  Result<Expression> run(Type type) {
    if (auto read = advance(); !read) return read.error();
    if (auto read = advance(); !read) return read.error();  // now token_ and ahead_ are the first two
    while (token_.kind == Kind::name && is(ahead_, "=")) {
      if (auto defined = definition(); !defined) return defined.error();
    }
    const std::size_t column = token_.column;
    auto root = expression();
    if (!root) return root.error();
    if (token_.kind != Kind::end) {
      return syntax_error(token_.column, fmt::format("found {} where an operator or the end of the text is allowed{}",
                                                     describe(token_), is(token_, "=") ? "; == compares" : ""));
    }
    if (type_of(*root) != type) {
      return syntax_error(column,
                          fmt::format("the expression is a {}; a {} is needed", describe(type_of(*root)), describe(type)));
    }
    if (const Definition* unused = unused_definition(*root)) {
      return Error{ErrorCode::invalid_argument, fmt::format("{} is defined and never used", text::quote(unused->name))};
    }
    return std::move(out_);
  }

 private:
  static bool is(const Token& token, std::string_view symbol) { return token.kind == Kind::symbol && token.text == symbol; }

  Result<void> advance() {
    auto next = lexer_.next();
    if (!next) return next.error();
    token_ = ahead_;
    ahead_ = *next;
    return {};
  }

  Result<void> expect(std::string_view symbol) {
    if (is(token_, symbol)) return advance();
    return syntax_error(token_.column, fmt::format("found {} where \"{}\" or an operator is allowed", describe(token_), symbol));
  }

  [[nodiscard]] Type type_of(int node) const { return out_.nodes[static_cast<std::size_t>(node)].type; }

  /// Appends a node. Refuses what is too large when every name is written out, as the generated kernel does.
  Parsed add(std::size_t column, Node node) {
    std::int64_t size = 1;
    for (const int operand : node.operands)
      if (operand >= 0) size += sizes_[static_cast<std::size_t>(operand)];
    if (size > kMostNodes) return syntax_error(column, fmt::format("the expression has more than {} operations", kMostNodes));
    out_.nodes.push_back(node);
    sizes_.push_back(size);
    return static_cast<int>(out_.nodes.size()) - 1;
  }

  Result<void> definition() {
    const Token name = token_;
    const auto taken = [&](Variable v) { return to_string(v) == name.text; };
    const std::vector<Variable> variables = variables_of(scope_);
    if (std::any_of(variables.begin(), variables.end(), taken) || function_of(name.text) || name.text == "true" ||
        name.text == "false") {
      return syntax_error(name.column, fmt::format("{} has a meaning already; choose another name", describe(name)));
    }
    if (find_definition(name.text) != nullptr) {
      return syntax_error(name.column, fmt::format("{} is defined twice", describe(name)));
    }
    if (auto read = advance(); !read) return read;
    if (auto read = advance(); !read) return read;
    auto value = expression();
    if (!value) return value.error();
    for (const Definition& other : out_.definitions) {
      if (other.node == *value)
        return syntax_error(name.column, fmt::format("{} is only another name for {}", describe(name), text::quote(other.name)));
    }
    out_.definitions.push_back({std::string(name.text), *value});
    return expect(";");
  }

  [[nodiscard]] const Definition* find_definition(std::string_view name) const {
    for (const Definition& definition : out_.definitions) {
      if (definition.name == name) return &definition;
    }
    return nullptr;
  }

  [[nodiscard]] const Definition* unused_definition(int root) const {
    std::vector<bool> used(out_.nodes.size());
    used[static_cast<std::size_t>(root)] = true;
    for (int i = root; i >= 0; --i) {
      if (!used[static_cast<std::size_t>(i)]) continue;
      for (const int operand : out_.nodes[static_cast<std::size_t>(i)].operands)
        if (operand >= 0) used[static_cast<std::size_t>(operand)] = true;
    }
    for (const Definition& definition : out_.definitions) {
      if (!used[static_cast<std::size_t>(definition.node)]) return &definition;
    }
    return nullptr;
  }

  /// Everything that recurses comes through here.
  Parsed expression() {
    if (++depth_ > kDeepest) return syntax_error(token_.column, fmt::format("nested deeper than {}", kDeepest));
    auto value = conditional();
    --depth_;
    return value;
  }

  Parsed conditional() {
    auto condition = binary(precedence(Op::select) + 1);
    if (!condition || !is(token_, "?")) return condition;
    const std::size_t column = token_.column;
    if (auto read = advance(); !read) return read.error();
    auto yes = expression();
    if (!yes) return yes;
    if (auto read = expect(":"); !read) return read.error();
    auto no = expression();
    if (!no) return no;
    if (type_of(*condition) != Type::boolean) {
      return syntax_error(column,
                          fmt::format("\"?\" asks a condition, and a {} stands before it", describe(type_of(*condition))));
    }
    if (type_of(*yes) != type_of(*no)) {
      return syntax_error(column, fmt::format("\"?:\" chooses between a {} and a {}; both must be of one kind",
                                              describe(type_of(*yes)), describe(type_of(*no))));
    }
    return add(column, {.op = Op::select, .type = type_of(*yes), .operands = {*condition, *yes, *no}});
  }

  /// Operators of `level` and tighter ones, from the left.
  Parsed binary(int level) {
    if (level == precedence(Op::negate)) return unary();
    auto left = binary(level + 1);
    if (!left) return left;
    const bool compares = level == precedence(Op::less) || level == precedence(Op::equal);
    for (int count = 0;; ++count) {
      const std::optional<Op> op = operator_of(token_, level);
      if (!op) return left;
      const Token symbol = token_;
      if (compares && count > 0) {
        return syntax_error(symbol.column,
                            fmt::format("{} compares a comparison; write a <= b && b <= c, or parentheses", describe(symbol)));
      }
      if (auto read = advance(); !read) return read.error();
      auto right = binary(level + 1);
      if (!right) return right;
      auto joined = join(symbol, *op, *left, *right);
      if (!joined) return joined;
      left = *joined;
    }
  }

  Parsed join(const Token& symbol, Op op, int left, int right) {
    const Type a = type_of(left), b = type_of(right);
    const bool logical = op == Op::logical_and || op == Op::logical_or;
    const bool equality = op == Op::equal || op == Op::not_equal;
    const bool compares = op >= Op::less && op <= Op::not_equal;
    if (logical && (a != Type::boolean || b != Type::boolean)) {
      return syntax_error(symbol.column,
                          fmt::format("{} joins two conditions, and its {} side is a {}", describe(symbol),
                                      a != Type::boolean ? "left" : "right", describe(a != Type::boolean ? a : b)));
    }
    if (!logical && !equality && (a == Type::boolean || b == Type::boolean)) {
      return syntax_error(symbol.column, fmt::format("{} takes numbers, and its {} side is a condition", describe(symbol),
                                                     a == Type::boolean ? "left" : "right"));
    }
    if (a != b) {
      return syntax_error(
          symbol.column, fmt::format("{} has a {} on its left and a {} on its right{}", describe(symbol), describe(a),
                                     describe(b), a == Type::boolean || b == Type::boolean ? "" : "; float(x) makes a fraction"));
    }
    if (op == Op::modulo && a == Type::floating) {
      return syntax_error(symbol.column, "\"%\" takes whole numbers");
    }
    return add(symbol.column, {.op = op, .type = logical || compares ? Type::boolean : a, .operands = {left, right, -1}});
  }

  Parsed unary() {
    const Token symbol = token_;
    if (!is(symbol, "-") && !is(symbol, "!")) return primary();
    if (auto read = advance(); !read) return read.error();
    if (++depth_ > kDeepest) return syntax_error(symbol.column, fmt::format("nested deeper than {}", kDeepest));
    auto operand = unary();
    --depth_;
    if (!operand) return operand;
    const bool negates = symbol.text == "-", condition = type_of(*operand) == Type::boolean;
    if (negates == condition) {
      return syntax_error(symbol.column, fmt::format("{} takes a {}, and a {} follows", describe(symbol),
                                                     negates ? "number" : "condition", describe(type_of(*operand))));
    }
    return add(symbol.column,
               {.op = negates ? Op::negate : Op::logical_not, .type = type_of(*operand), .operands = {*operand, -1, -1}});
  }

  Parsed primary() {
    const Token token = token_;
    if (is(token, "(")) {
      if (auto read = advance(); !read) return read.error();
      auto inner = expression();
      if (!inner) return inner;
      if (auto read = expect(")"); !read) return read.error();
      return inner;
    }
    if (token.kind == Kind::integer || token.kind == Kind::fraction) return number(token);
    if (token.kind == Kind::name) {
      if (is(ahead_, "(") || function_of(token.text)) return call(token);
      return name(token);
    }
    return syntax_error(token.column,
                        fmt::format("found {} where a name, a number, \"(\", \"-\" or \"!\" is allowed", describe(token)));
  }

  Parsed number(const Token& token) {
    Node node{.op = Op::literal, .type = token.kind == Kind::integer ? Type::integer : Type::floating};
    const char* const begin = token.text.data();  // NOLINT(bugprone-suspicious-stringview-data-usage): its end goes along
    const char* const end = begin + token.text.size();
    const auto read =
        token.kind == Kind::integer ? std::from_chars(begin, end, node.integer) : std::from_chars(begin, end, node.fraction);
    if (read.ec != std::errc() || read.ptr != end) {
      return syntax_error(token.column, fmt::format("{} is out of range: whole numbers reach 2147483647, fractions about 3.4e38",
                                                    describe(token)));
    }
    if (auto next = advance(); !next) return next.error();
    return add(token.column, node);
  }

  Parsed name(const Token& token) {
    if (auto next = advance(); !next) return next.error();
    if (const Definition* definition = find_definition(token.text)) return definition->node;
    if (token.text == "true" || token.text == "false") {
      return add(token.column, {.op = Op::literal, .type = Type::boolean, .integer = token.text == "true" ? 1 : 0});
    }
    std::string known;
    for (const Variable variable : variables_of(scope_)) {
      if (to_string(variable) == token.text)
        return add(token.column, {.op = Op::variable, .type = Type::integer, .variable = variable});
      known += fmt::format("{}, ", to_string(variable));
    }
    for (const Definition& definition : out_.definitions) known += definition.name + ", ";
    return syntax_error(token.column, fmt::format("{} is unknown; names are {}and what \"NAME = ...;\" defines before its use",
                                                  describe(token), known));
  }

  Parsed call(const Token& token) {
    const std::optional<Op> op = function_of(token.text);
    if (!op)
      return syntax_error(token.column,
                          fmt::format("{} is not a function; the functions are min, max, abs and float", describe(token)));
    if (auto next = advance(); !next) return next.error();
    if (!is(token_, "(")) return syntax_error(token_.column, fmt::format("found {} where \"(\" is allowed", describe(token_)));
    if (auto next = advance(); !next) return next.error();
    std::array<int, 3> operands{-1, -1, -1};
    for (int i = 0; i < operand_count(*op); ++i) {
      if (i > 0) {
        if (auto read = expect(","); !read) return read.error();
      }
      auto operand = expression();
      if (!operand) return operand;
      operands[static_cast<std::size_t>(i)] = *operand;
    }
    if (auto read = expect(")"); !read) return read.error();
    return apply(token, *op, operands);
  }

  Parsed apply(const Token& token, Op op, const std::array<int, 3>& operands) {
    if (operand_count(op) == 2) return join(token, op, operands[0], operands[1]);
    const Type type = type_of(operands[0]);
    const bool fits = op == Op::to_float ? type == Type::integer : type != Type::boolean;
    if (!fits) return syntax_error(token.column, fmt::format("{} does not take a {}", describe(token), describe(type)));
    return add(token.column, {.op = op, .type = op == Op::to_float ? Type::floating : type, .operands = operands});
  }

  Lexer lexer_;
  Scope scope_;
  Token token_, ahead_;
  Expression out_;
  std::vector<std::int64_t> sizes_;  ///< of every node, names written out
  int depth_ = 0;
};

}  // namespace

Result<Expression> parse(std::string_view text, Scope scope, Type type) {
  if (text.size() > kLongestText) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the expression has {} characters; at most {} are read", text.size(), kLongestText)};
  }
  auto parsed = Parser(text, scope).run(type);
  // Fractions may be longer in canonical form: what is printed must be read again.
  if (parsed && to_text(*parsed).size() > kLongestText) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the expression's canonical text has more than {} characters", kLongestText)};
  }
  return parsed;
}

}  // namespace ordo::expression
