// A small typed expression over positions and sizes: what masks are, and what score modifiers and the state of schedules are
// costed by. README.md beside this file is the language.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ordo/error.hpp"

namespace ordo::expression {

enum class Type : std::uint8_t { boolean, integer, floating };

enum class Op : std::uint8_t {
  literal,   ///< of any type
  variable,  ///< integer
  negate,
  absolute,
  to_float,
  logical_not,
  add,
  subtract,
  multiply,
  divide,  ///< integers: towards zero, as in C
  modulo,  ///< integers only, the sign of the dividend
  minimum,
  maximum,
  less,
  less_equal,
  greater,
  greater_equal,
  equal,
  not_equal,
  logical_and,
  logical_or,
  select,  ///< condition ? a : b
};

/// What an expression may depend on; all are 32-bit integers.
enum class Variable : std::uint8_t {
  // Masks: the pair and its problem.
  q,      ///< position of the query in its sequence, 0 .. seqlen_q-1
  k,      ///< position of the key in its sequence, 0 .. seqlen_k-1
  head,   ///< query head
  batch,  ///< index in the batch
  // Both.
  seqlen_q,  ///< lengths of the problem
  seqlen_k,
  // Schedules: schedule::Geometry, and where a unit is in its walk.
  tile,     ///< the Q tile
  unit,     ///< the KV unit
  down,     ///< 1 where the walk runs downwards, else 0
  q_tiles,  ///< the rest as in schedule::Geometry
  units,
  tile_q,
  unit_kv,
  wave,
  stride,
};
inline constexpr std::size_t kVariables = 15;

/// Which variables an expression may name.
enum class Scope : std::uint8_t { mask, schedule };

std::string_view to_string(Variable variable);

/// "condition", "whole number" or "fraction": for messages.
std::string_view describe(Type type);

/// The variables of a scope, in the order of the enumeration.
std::vector<Variable> variables_of(Scope scope);

/// The value of every variable, by number.
using Values = std::array<std::int32_t, kVariables>;

struct Node {
  Op op = Op::literal;
  Type type = Type::boolean;
  std::array<int, 3> operands{-1, -1, -1};  ///< numbers of other nodes, all below this one's; -1: none
  std::int32_t integer = 0;                 ///< literal: boolean (0, 1) and integer
  float fraction = 0;                       ///< literal: floating
  Variable variable = Variable::q;          ///< variable

  friend bool operator==(const Node&, const Node&) = default;
};

/// `name = expression;` before the expression itself.
struct Definition {
  std::string name;
  int node = 0;
  friend bool operator==(const Definition&, const Definition&) = default;
};

/// Nodes in an order in which operands come first; the last one is the value. A definition that is used twice is one node.
struct Expression {
  std::vector<Node> nodes;
  std::vector<Definition> definitions;

  [[nodiscard]] const Node& root() const { return nodes.back(); }
  [[nodiscard]] bool uses(Variable variable) const;
  friend bool operator==(const Expression&, const Expression&) = default;
};

/// Operands that `op` has.
int operand_count(Op op);

/// How an operator is written, e.g. "<=", or a function's name, e.g. "min".
std::string_view spelling(Op op);

/// How tightly an operator binds, as in C: 1 (?:) .. 8 (unary), 9 for what needs no parentheses.
int precedence(Op op);

/// Whether the operator is written as a function, e.g. min(a,b).
bool is_function(Op op);

/// The canonical text: no spaces, no parentheses but the necessary ones, definitions in front. parse() reads it back to an equal
/// expression.
ORDO_API std::string to_text(const Expression& expression);

/// The text of one node, definitions by name. For messages.
std::string to_text(const Expression& expression, int node);

/// The value for `values`, by a plain interpreter. Integers wrap around at 32 bits and a division by zero gives 0: what no caller
/// meets after check_ranges(). Booleans are 0 or 1; a floating value comes as its bits.
ORDO_API std::int32_t evaluate(const Expression& expression, const Values& values);

}  // namespace ordo::expression
