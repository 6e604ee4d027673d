// What the kernels before the main one share: a block a Q tile, rows in 16-byte pieces.
#pragma once

#include "attention_backward/dq_piece.cuh"
#include "sm90/numbers.cuh"

namespace ordo::attention_backward {

inline constexpr int kRowThreads = config.head_dim / 8;              // threads of a row, 8 elements (16 bytes) each
inline constexpr int kPassRows = kElementwiseThreads / kRowThreads;  // rows a block covers at once

ORDO_DEVICE uint4 load_16_bytes(const void* base, long long element) {
  return *reinterpret_cast<const uint4*>(static_cast<const u16*>(base) + element);
}

/// Eight 16-bit elements as floats.
ORDO_DEVICE void unpack(float (&x)[8], uint4 piece) {
  const u32 words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_pair(words[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

/// Sum over the threads of a row, the same bits in each of them: x + y is commutative, so a butterfly gives all lanes one order.
ORDO_DEVICE float sum_row(float x) {
#pragma unroll
  for (int offset = kRowThreads / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}
ORDO_DEVICE float max_row(float x) {
#pragma unroll
  for (int offset = kRowThreads / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

/// Largest finite magnitude of the pieces of a row.
ORDO_DEVICE float max_finite(const float (&x)[8]) {
  float largest = 0.f;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (is_finite(x[i])) largest = fmaxf(largest, fabsf(x[i]));
  return largest;
}

/// A bound on the Euclidean norm of a row's finite elements, as mantissa * 2^exponent with 0 <= mantissa <= 17. Scaled by the
/// largest exponent first, so that neither 1e-24 nor 1e20 leaves the range when squared.
struct ScaledNorm {
  float mantissa;
  int exponent;
};
ORDO_DEVICE ScaledNorm norm_row(const float (&x)[8]) {
  const float largest = max_row(max_finite(x));
  const int exponent = largest == 0.f ? 0 : ceil_log2(largest);
  // Two steps: 2^-exponent alone may leave the range of a float.
  const float half_scale = power_of_two(-exponent / 2), rest_scale = power_of_two(-exponent - -exponent / 2);
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (is_finite(x[i])) {
      const float scaled = x[i] * half_scale * rest_scale;
      sum = __fmaf_rn(scaled, scaled, sum);
    }
  return {sqrtf(sum_row(sum)) * 1.00001f, exponent};  // rounded up past the error of the sum
}

}  // namespace ordo::attention_backward
