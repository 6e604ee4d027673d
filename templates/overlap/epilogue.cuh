// Between a wgmma accumulator and chunks of 64 rows in shared memory, swizzled as TMA does: in rows of 128 bytes (SWIZZLE_128B)
// the 16-byte unit u of row r lies at u ^ (r % 8), in rows of 64 bytes (SWIZZLE_64B) at u ^ (r / 2 % 4).
//
// Thread t of a warpgroup holds d[4 j .. 4 j + 3]: rows 16 (t / 32) + t % 32 / 4 (+ 8 for the last two), columns 8 j + 2 (t % 4)
// and the one after it (PTX ISA, "wgmma", D fragment).
#pragma once

#include "overlap/layout.cuh"

namespace ordo::overlap {

/// Offset of the row that lane `lane` addresses for store_matrix4 and load_matrix4, columns 0 .. 15; exclusive-or 32 k gives the
/// columns from 16 k on.
ORDO_DEVICE u32 matrix_offset(int warp, int lane) {
  const int matrix = lane >> 3, row = lane & 7;
  const int swizzle = kHalfRowBytes == 128 ? row : row >> 1;
  return static_cast<u32>((16 * warp + (matrix & 1) * 8 + row) * kHalfRowBytes + (((matrix >> 1) ^ swizzle) << 4));
}

/// Offset of a thread's first fp32 pair in a row of 32, columns 0 .. 7; exclusive-or 32 k gives the columns from 8 k on.
ORDO_DEVICE u32 pair_offset(int warp, int lane) {
  const int row = lane >> 2, pair = lane & 3;
  return static_cast<u32>((16 * warp + row) * kRowBytes + (((pair >> 1) ^ row) << 4) + (pair & 1) * 8);
}

template <bool Fp32, int N>
ORDO_DEVICE void write_chunk(const float (&d)[N], int chunk, u32 to, int warp, int lane) {
  if constexpr (Fp32) {
    const u32 address = to + pair_offset(warp, lane);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float* x = d + (chunk * 4 + k) * 4;
      store_shared2(address ^ (k * 32u), x[0], x[1]);
      store_shared2((address ^ (k * 32u)) + 8 * kRowBytes, x[2], x[3]);
    }
  } else {
    const u32 address = to + matrix_offset(warp, lane);
#pragma unroll
    for (int k = 0; k < kHalfRowBytes / 32; ++k) {
      const float* x = d + (chunk * (kHalfRowBytes / 32) + k) * 8;
      store_matrix4(address ^ (k * 32u), pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
    }
  }
}

/// d += the chunk that write_chunk would have written.
template <bool Fp32, int N>
ORDO_DEVICE void add_chunk(float (&d)[N], int chunk, u32 from, int warp, int lane) {
  if constexpr (Fp32) {
    const u32 address = from + pair_offset(warp, lane);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float* x = d + (chunk * 4 + k) * 4;
      const float2 low = load_shared2(address ^ (k * 32u)), high = load_shared2((address ^ (k * 32u)) + 8 * kRowBytes);
      x[0] += low.x;
      x[1] += low.y;
      x[2] += high.x;
      x[3] += high.y;
    }
  } else {
    const u32 address = from + matrix_offset(warp, lane);
#pragma unroll
    for (int k = 0; k < kHalfRowBytes / 32; ++k) {
      u32 pairs[4];
      load_matrix4(address ^ (k * 32u), pairs[0], pairs[1], pairs[2], pairs[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 y = unpack_pair(pairs[i]);
        d[(chunk * (kHalfRowBytes / 32) + k) * 8 + 2 * i] += y.x;
        d[(chunk * (kHalfRowBytes / 32) + k) * 8 + 2 * i + 1] += y.y;
      }
    }
  }
}

/// Adds one value a column to chunk `chunk` of `Columns` columns.
template <int Columns, int N>
ORDO_DEVICE void add_bias(float (&d)[N], int chunk, u32 bias, int lane) {
  const u32 address = bias + static_cast<u32>(lane & 3) * 4;
#pragma unroll
  for (int j = chunk * (Columns / 8); j < (chunk + 1) * (Columns / 8); ++j) {
    const float2 y = unpack_pair(load_shared_u32(address + j * 16u));
    d[4 * j] += y.x;
    d[4 * j + 1] += y.y;
    d[4 * j + 2] += y.x;
    d[4 * j + 3] += y.y;
  }
}

/// 1 / x, to two units in the last place.
ORDO_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// x / (1 + exp(-y)), y given as -log2(e) y.
ORDO_DEVICE float gate(float x, float scaled) { return x * reciprocal(1.f + exp2_approx(scaled)); }

ORDO_DEVICE float activate(float x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kGelu = -2.f * 0.797884561f * kLog2E;                           // -2 sqrt(2 / pi) log2(e)
  if constexpr (config.activation == Activation::relu) return x < 0.f ? 0.f : x;  // NaN stays NaN
  if constexpr (config.activation == Activation::silu) return gate(x, -kLog2E * x);
  if constexpr (config.activation == Activation::gelu) return gate(x, kGelu * x * __fmaf_rn(0.044715f * x, x, 1.f));
  return x;
}

template <int Columns, int N>
ORDO_DEVICE void activate_chunk(float (&d)[N], int chunk) {
  if constexpr (config.activation != Activation::none) {
#pragma unroll
    for (int i = chunk * (Columns / 2); i < (chunk + 1) * (Columns / 2); ++i) d[i] = activate(d[i]);
  }
}

}  // namespace ordo::overlap
