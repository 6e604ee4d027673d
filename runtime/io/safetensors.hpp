// Reads and writes safetensors files. Any bytes are safe to read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ordo/error.hpp"

namespace ordo::io {

struct Tensor {
  std::string dtype;  ///< "BF16", "F16", "F32", ... as in the file
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;  ///< row-major, little-endian
};

struct SafeTensors {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Errors (ErrorCode::io): unreadable, truncated, header longer than the file or 100 MB, not JSON, offsets that overlap, leave
/// the file, leave gaps or disagree with shape and dtype, duplicate names. Names file, tensor, and what is wrong.
ORDO_API Result<SafeTensors> read_safetensors(const std::string& path);
/// Writes to a temporary file beside `path` and renames it.
ORDO_API Result<void> write_safetensors(const std::string& path, const SafeTensors& content);

}  // namespace ordo::io
