// Caller's tensors on their way to the device: checks, and the maps that the copy engine reads them by.
#pragma once

#include "ordo/ordo.hpp"
#include "runtime/driver.hpp"
#include "templates/sm90/tensor_map.cuh"

namespace ordo {

/// Pointer and strides are what TMA and 16-byte loads need; strides of dimensions of size 1 are never used and not looked at.
/// Errors: invalid_argument, naming the tensor.
Result<void> check_view(const char* name, const TensorView& view, std::int64_t batch, std::int64_t seqlen, std::int64_t heads);

/// Errors (invalid_argument): not positive and finite.
Result<void> check_scale(float scale);

/// [batch, seqlen, heads, head_dim] in device memory, 16-bit elements.
struct MappedTensor {
  const TensorView& view;
  std::int64_t batch, seqlen, heads, head_dim;
  DType dtype;
};

/// A 5-d map {64 columns, rows, 64-column chunks, heads, batch}, 128-byte swizzle, with a box of `rows` rows and `chunks` chunks.
/// `what` is a literal: a launch allocates nothing.
Result<void> encode_tensor_map(const Driver& driver, TensorMap& map, const char* what, const MappedTensor& tensor, int rows,
                               int chunks);

}  // namespace ordo
