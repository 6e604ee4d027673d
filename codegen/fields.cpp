#include "codegen/fields.hpp"

#include <fmt/format.h>

#include <charconv>
#include <set>

namespace ordo::text {

std::string quote(std::string_view value) {
  constexpr std::size_t kLongest = 60;
  std::string out = "\"";
  for (const char c : value.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  return out + (value.size() > kLongest ? "...\"" : "\"");
}

Result<std::int64_t> read_integer(std::string_view key, std::string_view value, std::int64_t low, std::int64_t high) {
  std::int64_t number = 0;
  const char* const begin = value.data();  // NOLINT(bugprone-suspicious-stringview-data-usage): its end goes along
  const char* const end = begin + value.size();
  const auto [stop, error] = std::from_chars(begin, end, number);
  const bool whole = !value.empty() && stop == end;
  if (whole && error == std::errc() && number >= low && number <= high) return number;
  if (whole && (error == std::errc::result_out_of_range || error == std::errc())) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}={} is out of range; it must be within {} .. {}", key, quote(value), low, high)};
  }
  return Error{ErrorCode::invalid_argument, fmt::format("{}={} is not a whole number", key, quote(value))};
}

namespace {

/// Takes the next word off the front of `text`; empty when there is none.
std::string_view next_word(std::string_view& text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) {
    text = {};
    return {};
  }
  text.remove_prefix(begin);
  const std::string_view word = text.substr(0, text.find_first_of(kSpace));
  text.remove_prefix(word.size());
  return word;
}

std::string keys_of(const std::vector<Field>& fields) {
  std::string keys;
  for (const Field& field : fields) keys += (keys.empty() ? "" : ", ") + std::string(field.key);
  return keys;
}

}  // namespace

Result<void> read_fields(std::string_view text, std::string_view noun, const std::vector<Field>& fields, ErrorCode code) {
  const std::string_view first = next_word(text);
  if (first != noun) {
    return Error{code, fmt::format("the text begins with {} where \"{}\" was expected", quote(first), noun)};
  }
  std::set<std::string_view> seen;
  for (std::string_view word = next_word(text); !word.empty(); word = next_word(text)) {
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos) {
      return Error{code, fmt::format("{} in the text of {} is not key=value", quote(word), noun)};
    }
    const std::string_view key = word.substr(0, equals);
    const Field* found = nullptr;
    for (const Field& field : fields) {
      if (field.key == key) found = &field;
    }
    if (found == nullptr) {
      return Error{code, fmt::format("{} has no key {}; its keys are: {}", noun, quote(key), keys_of(fields))};
    }
    if (!seen.insert(found->key).second) {
      return Error{code, fmt::format("the key {} appears twice in the text of {}", found->key, noun)};
    }
    if (auto taken = found->take(word.substr(equals + 1)); !taken) return Error{code, taken.error().message};
  }
  return {};
}

Result<bool> parse_yes_no(std::string_view text) {
  if (text == "yes") return true;
  if (text == "no") return false;
  return Error{ErrorCode::invalid_argument, quote(text) + " is neither yes nor no"};
}

std::string write_fields(std::string_view noun, const std::vector<Field>& fields) {
  std::string text(noun);
  for (const Field& field : fields) {
    text += ' ';
    text += field.key;
    text += '=';
    text += field.give();
  }
  return text;
}

}  // namespace ordo::text
