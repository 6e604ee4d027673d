// Words of an expression's text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ordo/error.hpp"

namespace ordo::expression {

struct Token {
  enum class Kind : std::uint8_t { end, name, integer, fraction, symbol };
  Kind kind = Kind::end;
  std::string_view text;
  std::size_t column = 1;
};

/// Hands out one token after another. Symbols are taken as long as possible: "<=" before "<".
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  /// The next token; `end` for ever after the last one. Errors: a character that begins nothing.
  Result<Token> next();

 private:
  [[nodiscard]] std::size_t span_of_number(bool& fraction) const;

  std::string_view text_;
  std::size_t at_ = 0;
};

/// "column 7: ..." as an error of an expression's text.
Error syntax_error(std::size_t column, const std::string& what);

/// How a token is called in messages.
std::string describe(const Token& token);

}  // namespace ordo::expression
