// The JSON header of a safetensors file: read strictly, made canonically.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ordo/error.hpp"

namespace ordo::io {

/// One tensor as the header states it. Offsets are bytes from the end of the header.
struct HeaderTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct Header {
  std::vector<HeaderTensor> tensors;  ///< by rising offset once check_layout has passed
  std::map<std::string, std::string> metadata;
};

/// Bytes of one element of a safetensors dtype, 0 for a name the format does not know.
int dtype_bytes(std::string_view dtype);

/// A name from a file, fit for a message: quoted, control characters escaped, cut when long.
std::string printable(std::string_view name);

/// Reads exactly the format's grammar; anything else (unknown keys, duplicates, negative or fractional sizes, deep nesting) is an
/// error whose message starts with what is wrong. The parse is streamed: memory stays within a small multiple of `text`.
Result<Header> parse_header(std::string_view text);

/// Sorts the tensors by offset and checks that they tile [0, data_bytes) without overlap or gap and that each length is what
/// shape and dtype say.
Result<void> check_layout(Header& header, std::uint64_t data_bytes);

}  // namespace ordo::io
