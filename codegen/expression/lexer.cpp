#include "codegen/expression/lexer.hpp"

#include <fmt/format.h>

#include <array>

#include "codegen/fields.hpp"

namespace ordo::expression {
namespace {

constexpr std::array<std::string_view, 21> kSymbols{"&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*",
                                                    "/",  "%",  "!",  "?",  ":",  "(",  ")", ",", ";", "="};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

Error syntax_error(std::size_t column, const std::string& what) {
  return {ErrorCode::invalid_argument, fmt::format("column {}: {}", column, what)};
}

std::string describe(const Token& token) {
  return token.kind == Token::Kind::end ? "the end of the text" : text::quote(token.text);
}

/// Digits, and where they follow: a point with digits, and an exponent.
std::size_t Lexer::span_of_number(bool& fraction) const {
  const auto digits_from = [this](std::size_t i) {
    while (i < text_.size() && is_digit(text_[i])) ++i;
    return i;
  };
  std::size_t end = digits_from(at_);
  fraction = false;
  if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
    fraction = true;
    end = digits_from(end + 1);
  }
  if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
    std::size_t exponent = end + 1;
    if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
    if (exponent < text_.size() && is_digit(text_[exponent])) {
      fraction = true;
      end = digits_from(exponent);
    }
  }
  return end - at_;
}

Result<Token> Lexer::next() {
  while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  Token token{Token::Kind::end, text_.substr(at_, 0), at_ + 1};
  if (at_ == text_.size()) return token;
  std::size_t length = 0;
  if (is_digit(text_[at_])) {
    bool fraction = false;
    length = span_of_number(fraction);
    token.kind = fraction ? Token::Kind::fraction : Token::Kind::integer;
    if (at_ + length < text_.size() && is_letter(text_[at_ + length]))
      return syntax_error(at_ + 1, fmt::format("{} is neither a number nor a name", text::quote(text_.substr(at_, length + 1))));
  } else if (is_letter(text_[at_])) {
    token.kind = Token::Kind::name;
    while (at_ + length < text_.size() && (is_letter(text_[at_ + length]) || is_digit(text_[at_ + length]))) ++length;
  } else {
    token.kind = Token::Kind::symbol;
    for (const std::string_view symbol : kSymbols) {
      if (text_.substr(at_).starts_with(symbol)) {
        length = symbol.size();
        break;
      }
    }
    if (length == 0) {
      return syntax_error(at_ + 1, fmt::format("{} begins nothing that an expression holds: names, numbers, ( ) , ; and the "
                                               "operators || && == != < <= > >= + - * / % ! ? : =",
                                               text::quote(text_.substr(at_, 1))));
    }
  }
  token.text = text_.substr(at_, length);
  at_ += length;
  return token;
}

}  // namespace ordo::expression
