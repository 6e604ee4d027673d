// After the main kernel: dQ from the accumulator's fragment order and scale to the caller's layout and type.
// Grid: one block a Q tile; each warp turns one 16 x 64 piece.
#pragma once

#include "attention_backward/elementwise.cuh"

namespace ordo::attention_backward {

/// exact: the value of a fixed-point sum. C_d in two steps, because 2^exponent alone may overflow where the product does not.
ORDO_DEVICE float from_fixed_point(u32 bits, float inverse_row_scale, int column_exponent) {
  const float x = static_cast<float>(static_cast<int>(bits)) * inverse_row_scale;
  return x * power_of_two(column_exponent / 2) * power_of_two(column_exponent - column_exponent / 2);
}

ORDO_DEVICE void run_convert(const ConvertParams& params) {
  __shared__ __align__(128) unsigned char transpose[4 * kSlices * 2048];
  const schedule::Geometry g = geometry(params.shape);
  const TilePlace place = place_of(params.shape, g);
  const int warp = warp_id(), lane = lane_id();
  const int slice = warp / 4;
  // In the tile: slices are column halves at head_dim 128, row halves at 64.
  const int piece_row = (config.head_dim == 64 ? 64 * slice : 0) + 16 * (warp % 4), piece_column = config.head_dim == 64 ? 0 : 64 * slice;
  const bool untouched = schedule::contributors(g, place.q) == 0;  // no KV tile sees this Q tile: nobody wrote its partial sums
  wait_for_predecessors();

  uint4 x[8];
  const char* from = static_cast<const char*>(params.scratch.dq) + (static_cast<size_t>(place.tile) * kSlices + slice) * kSliceBytes +
                     warp % 4 * 4096 + lane * 16;
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] = untouched ? uint4{0, 0, 0, 0} : *reinterpret_cast<const uint4*>(from + j * 512);

  u32 low[8], high[8];  // 16-bit pairs of row lane / 4 and of the row 8 below
  const size_t row = static_cast<size_t>(place.tile) * config.tile_q + piece_row + lane / 4;
  float inverse[2] = {0.f, 0.f};
  bool sick[2] = {false, false};
  if constexpr (kExact) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float scale = params.scratch.row_scale[row + 8 * r];
      inverse[r] = scale == 0.f ? 0.f : 1.f / scale;
      sick[r] = params.scratch.poison[row + 8 * r] != 0;
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    float y[4] = {__uint_as_float(x[j].x), __uint_as_float(x[j].y), __uint_as_float(x[j].z), __uint_as_float(x[j].w)};
    if constexpr (kExact) {
      const int walk = place.batch * kv_heads(params.shape) + place.head / config.group;
      const int* exponents =
          params.scratch.key_exponents + static_cast<size_t>(walk) * (config.head_dim + 1) + piece_column + 8 * j + 2 * (lane % 4);
      const float nan = __uint_as_float(0x7fffffffu);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        y[e] = sick[e / 2] ? nan : from_fixed_point(__float_as_uint(y[e]), inverse[e / 2], exponents[e % 2] - kExponentBias);
    }
    low[j] = pack(y[0] * params.scale, y[1] * params.scale);
    high[j] = pack(y[2] * params.scale, y[3] * params.scale);
  }

  // Through shared memory to whole rows: swizzled, so that neither side meets bank conflicts.
  const u32 buffer = static_cast<u32>(__cvta_generic_to_shared(transpose)) + warp * 2048;
  const int matrix = lane >> 3, matrix_row = lane & 7;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const u32 to = buffer + ((matrix & 1) * 8 + matrix_row) * 128 + (((2 * k + (matrix >> 1)) ^ matrix_row) << 4);
    store_matrix4(to, low[2 * k], high[2 * k], low[2 * k + 1], high[2 * k + 1]);
  }
  __syncwarp();
#pragma unroll
  for (int pass = 0; pass < 4; ++pass) {
    const int r = pass * 4 + lane / 8, piece = lane % 8;
    const int4 value = load_shared_int4(buffer + r * 128 + ((piece ^ (r & 7)) << 4));
    const int out_row = place.first_row + piece_row + r;
    if (out_row < g.seqlen_q) {
      const long long element = row_offset(params.dq_strides, place.batch, out_row, place.head) + piece_column + piece * 8;
      *reinterpret_cast<int4*>(static_cast<u16*>(params.dq) + element) = value;
    }
  }
}

}  // namespace ordo::attention_backward

extern "C" __global__ void __launch_bounds__(ordo::attention_backward::convert_threads(ordo::attention_backward::config))
    ordo_convert(const __grid_constant__ ordo::attention_backward::ConvertParams params) {
  ordo::attention_backward::run_convert(params);
}
