// After the main kernel, for `atomic` and `exact`: dQ sums to the caller's layout and type. (With `ordered` the main kernel does
// it, because there the semaphores tell when a tile is finished.) Grid: one block a Q tile; each warp turns one 16 x 64 piece.
#pragma once

#include "attention_backward/dq_piece.cuh"
#include "sm90/numbers.cuh"

namespace ordo::attention_backward {

/// exact: the value of a fixed-point sum. C_d in two steps, because 2^exponent alone may overflow where the product does not.
ORDO_DEVICE float from_fixed_point(float sum, float inverse_row_scale, int column_exponent) {
  const float x = static_cast<float>(__float_as_int(sum)) * inverse_row_scale;
  return x * power_of_two(column_exponent / 2) * power_of_two(column_exponent - column_exponent / 2);
}

/// exact, in place: fixed-point sums of one row to floats; NaN if the row is poisoned.
ORDO_DEVICE void decode_fixed_point(float2 (&x)[8], const ConvertParams& params, const TilePlace& place, Piece piece, int half) {
  const size_t row = static_cast<size_t>(place.tile) * config.tile_q + piece.row() + 8 * half + lane_id() / 4;
  const int walk = place.batch * kv_heads(params.shape) + place.head / config.group;
  const int* exponents =
      params.scratch.key_exponents + static_cast<size_t>(walk) * (config.head_dim + 1) + piece.column() + 2 * (lane_id() % 4);
  const float scale = params.scratch.row_scale[row], inverse = scale == 0.f ? 0.f : 1.f / scale;
  const bool sick = params.scratch.poison[row] != 0;
  const float nan = __uint_as_float(0x7fffffffu);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    x[j].x = sick ? nan : from_fixed_point(x[j].x, inverse, exponents[8 * j] - kExponentBias);
    x[j].y = sick ? nan : from_fixed_point(x[j].y, inverse, exponents[8 * j + 1] - kExponentBias);
  }
}

ORDO_DEVICE void run_convert(const ConvertParams& params) {
  const schedule::Geometry g = geometry(params.shape);
  const TilePlace place = place_of(params.shape, g, static_cast<int>(blockIdx.x));
  const Piece piece{warp_id() / 4, warp_id() % 4};
  const char* from = static_cast<const char*>(params.scratch.dq) +
                     (static_cast<size_t>(place.tile) * kSlices + piece.slice) * kSliceBytes + piece.quarter * 4096 +
                     lane_id() * 16;
  wait_for_predecessors();
  float2 upper[8], lower[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 x = *reinterpret_cast<const float4*>(from + j * 512);
    upper[j] = float2{x.x, x.y};
    lower[j] = float2{x.z, x.w};
  }
  if constexpr (kExact) {
    decode_fixed_point(upper, params, place, piece, 0);
    decode_fixed_point(lower, params, place, piece, 1);
  }
  store_half_piece(params.dq, g, place, piece, 0, upper);
  store_half_piece(params.dq, g, place, piece, 1, lower);
}

}  // namespace ordo::attention_backward

extern "C" __global__ void __launch_bounds__(ordo::attention_backward::convert_threads(ordo::attention_backward::config))
    ordo_convert(const __grid_constant__ ordo::attention_backward::ConvertParams params) {
  ordo::attention_backward::run_convert(params);
}
