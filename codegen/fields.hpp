// The canonical texts of Problem and Plan: one line, "noun key=value key=value ...". This is the only reader of that form.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "ordo/error.hpp"

namespace ordo::text {

/// `value` in double quotes for a message: at most 60 characters of it, control characters replaced by '?'.
std::string quote(std::string_view value);

/// A whole decimal integer in [low, high]: no sign but '-', no space, nothing behind it. `key` names it in the error.
Result<std::int64_t> read_integer(std::string_view key, std::string_view value, std::int64_t low, std::int64_t high);

/// One key of a text, what takes its value, and what gives it. Fields refer to the object that they are fields of.
struct Field {
  std::string_view key;
  std::function<Result<void>(std::string_view value)> take;
  std::function<std::string()> give = {};  ///< for write_fields; empty where a text is written otherwise
};

/// How a flag is written.
Result<bool> parse_yes_no(std::string_view text);
inline std::string_view to_string(bool flag) { return flag ? "yes" : "no"; }

/// A field of any integer type; the range is the type's own, the rules of the noun are checked by its validate().
template <std::integral Integer>
Field integer_field(std::string_view key, Integer& out) {
  return {key,
          [key, &out](std::string_view value) -> Result<void> {
            auto read = read_integer(key, value, std::numeric_limits<Integer>::min(), std::numeric_limits<Integer>::max());
            if (!read) return read.error();
            out = static_cast<Integer>(*read);
            return {};
          },
          [&out] { return std::to_string(out); }};
}

/// A field that `parse` reads.
template <class Value>
Field parsed_field(std::string_view key, Value& out, Result<Value> (*parse)(std::string_view)) {
  return {key, [&out, parse](std::string_view value) -> Result<void> {
            auto read = parse(value);
            if (!read) return read.error();
            out = *read;
            return {};
          }};
}

/// A field that `parse` reads and to_string() writes, e.g. an enumeration by its names.
template <class Value>
Field named_field(std::string_view key, Value& out, Result<Value> (*parse)(std::string_view)) {
  Field field = parsed_field(key, out, parse);
  field.give = [&out] { return std::string(to_string(out)); };
  return field;
}

/// Reads `text`: `noun` first, then the fields in any order, each at most once, none unknown. Words are separated by white space.
/// Every error has `code`.
Result<void> read_fields(std::string_view text, std::string_view noun, const std::vector<Field>& fields, ErrorCode code);

/// `noun` and every field, in the order of `fields`, each of which gives its value.
std::string write_fields(std::string_view noun, const std::vector<Field>& fields);

/// The value among `values` whose to_string() is `text`. The error lists the names; `what` says what they are names of.
template <class Enum, std::size_t count>
Result<Enum> read_name(std::string_view text, std::string_view what, const std::array<Enum, count>& values) {
  std::string known;
  for (Enum value : values) {
    if (to_string(value) == text) return value;
    known += (known.empty() ? "" : ", ") + std::string(to_string(value));
  }
  return Error{ErrorCode::invalid_argument, std::string(what) + " " + quote(text) + " is unknown; it is one of: " + known};
}

}  // namespace ordo::text
