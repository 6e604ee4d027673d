#include "runtime/io/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

namespace ordo::io {
namespace {

Error io_error(std::string message) { return {ErrorCode::io, std::move(message)}; }

// Takes the parser's events and accepts only
//   { "__metadata__": {string: string, ...}, name: {"dtype": string, "shape": [n...], "data_offsets": [n, n]}, ... }
// An event that does not fit stops the parse, so hostile nesting costs nothing. Events rather than a document, because a document
// keeps only the last of two equal keys.
class HeaderReader final : public nlohmann::json::json_sax_t {
 public:
  Header header;
  std::string problem;  ///< why the parse stopped

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { return unexpected(fmt::format("{}", value)); }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected(fmt::format("the number {}", printable(text)));
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return unexpected(fmt::format("{}", value));
      tensor_.shape.push_back(static_cast<std::int64_t>(value));
      return tensor_.shape.size() <= kMaxRank ||
             fail(fmt::format("tensor {} has more than {} dimensions", printable(tensor_.name), kMaxRank));
    }
    if (state_ == State::offsets) {
      offsets_.push_back(value);
      return offsets_.size() <= 2 || unexpected("a third offset");
    }
    return unexpected(fmt::format("the number {}", value));
  }

  bool string(string_t& value) override {
    if (state_ == State::metadata) {
      header.metadata[key_] = std::move(value);
      return true;
    }
    if (state_ == State::tensor && key_ == "dtype") {
      tensor_.dtype = std::move(value);
      return true;
    }
    return unexpected(fmt::format("the string {}", printable(value)));
  }

  bool start_object(std::size_t) override {
    if (state_ == State::start) {
      state_ = State::top;
      return true;
    }
    if (state_ != State::top) return unexpected("an object");
    keys_.clear();
    tensor_ = {};
    tensor_.name = key_;
    state_ = key_ == "__metadata__" ? State::metadata : State::tensor;
    return true;
  }

  bool key(string_t& value) override {
    if (state_ == State::tensor && value != "dtype" && value != "shape" && value != "data_offsets") {
      return fail(fmt::format("tensor {} has an unknown key {}; it may have dtype, shape and data_offsets",
                              printable(tensor_.name), printable(value)));
    }
    if (!(state_ == State::top ? names_ : keys_).insert(value).second) {
      return fail(state_ == State::top ? fmt::format("the name {} stands twice", printable(value))
                                       : fmt::format("{}: the key {} stands twice", place(), printable(value)));
    }
    key_ = std::move(value);
    return true;
  }

  bool end_object() override {
    if (state_ == State::tensor) {
      if (keys_.size() != 3)
        return fail(fmt::format("tensor {} lacks one of dtype, shape, data_offsets", printable(tensor_.name)));
      header.tensors.push_back(std::move(tensor_));
    }
    state_ = state_ == State::top ? State::done : State::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::tensor || key_ == "dtype") return unexpected("an array");
    state_ = key_ == "shape" ? State::shape : State::offsets;
    offsets_.clear();
    return true;
  }

  bool end_array() override {
    if (state_ == State::offsets) {
      if (offsets_.size() != 2) return fail(fmt::format("tensor {}: data_offsets needs two numbers", printable(tensor_.name)));
      tensor_.begin = offsets_[0];
      tensor_.end = offsets_[1];
    }
    state_ = State::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    return fail(fmt::format("the header is not JSON (at its byte {})", position));
  }

 private:
  enum class State { start, top, metadata, tensor, shape, offsets, done };
  static constexpr std::size_t kMaxRank = 64;

  bool fail(std::string message) {
    if (problem.empty()) problem = std::move(message);
    return false;
  }

  [[nodiscard]] std::string place() const {
    switch (state_) {
      case State::start:
        return "the header must be a JSON object";
      case State::top:
        return fmt::format("the value of {} must be an object", printable(key_));
      case State::metadata:
        return "__metadata__ maps strings to strings";
      case State::tensor:
        return fmt::format("tensor {}, {}", printable(tensor_.name), key_);
      case State::shape:
        return fmt::format("tensor {}: shape holds integers of at least 0", printable(tensor_.name));
      case State::offsets:
        return fmt::format("tensor {}: data_offsets holds two integers of at least 0", printable(tensor_.name));
      case State::done:
        return "the header has ended";
    }
    return {};
  }

  bool unexpected(const std::string& what) { return fail(fmt::format("{}; found {}", place(), what)); }

  State state_ = State::start;
  std::string key_;
  std::set<std::string> names_;  ///< of tensors
  std::set<std::string> keys_;   ///< of the object in hand
  HeaderTensor tensor_;
  std::vector<std::uint64_t> offsets_;
};

// Bytes that shape and dtype ask for; nullopt when they do not fit 64 bits.
std::optional<std::uint64_t> byte_count(const HeaderTensor& tensor, int element_bytes) {
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return 0;
  auto bytes = static_cast<std::uint64_t>(element_bytes);
  for (const std::int64_t size : tensor.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) return std::nullopt;
  }
  return bytes;
}

}  // namespace

int dtype_bytes(std::string_view dtype) {
  static constexpr std::pair<std::string_view, int> kSizes[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
      {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};
  for (const auto& [name, bytes] : kSizes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

std::string printable(std::string_view name) {
  constexpr std::size_t kLongest = 60;
  std::string out = "'";
  for (const char c : name.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f || c == '\'' || c == '\\') {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + (name.size() > kLongest ? "'..." : "'");
}

Result<Header> parse_header(std::string_view text) {
  // The parser takes a NUL for the end of its input, which would hide what follows.
  if (text.find('\0') != std::string_view::npos) return io_error("the header holds a NUL byte");
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text, &reader)) return io_error(reader.problem);
  return std::move(reader.header);
}

Result<void> check_layout(Header& header, std::uint64_t data_bytes) {
  auto& tensors = header.tensors;
  std::sort(tensors.begin(), tensors.end(),
            [](const HeaderTensor& a, const HeaderTensor& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t expected = 0;
  for (const HeaderTensor& tensor : tensors) {
    const std::string name = printable(tensor.name);
    const int element_bytes = dtype_bytes(tensor.dtype);
    if (element_bytes == 0) return io_error(fmt::format("tensor {} has the unknown dtype {}", name, printable(tensor.dtype)));
    if (tensor.end < tensor.begin) {
      return io_error(fmt::format("tensor {} ends (byte {}) before it begins (byte {})", name, tensor.end, tensor.begin));
    }
    if (tensor.begin != expected) {
      return io_error(
          fmt::format("tensor {} begins at byte {} of the data where {} was expected: tensors must follow each other without {}",
                      name, tensor.begin, expected, tensor.begin < expected ? "overlap" : "gap"));
    }
    const auto bytes = byte_count(tensor, element_bytes);
    if (!bytes || *bytes != tensor.end - tensor.begin) {
      return io_error(fmt::format("tensor {} spans {} bytes, but its shape [{}] of {} needs {}", name, tensor.end - tensor.begin,
                                  fmt::join(tensor.shape, ", "), tensor.dtype,
                                  bytes ? fmt::format("{}", *bytes) : "more than 2^64"));
    }
    expected = tensor.end;
    if (expected > data_bytes) {
      return io_error(fmt::format("tensor {} ends at byte {} of the data, but the file holds only {}: it is truncated", name,
                                  expected, data_bytes));
    }
  }
  if (expected != data_bytes) {
    return io_error(fmt::format("{} bytes follow the last tensor", data_bytes - expected));
  }
  return {};
}

}  // namespace ordo::io
