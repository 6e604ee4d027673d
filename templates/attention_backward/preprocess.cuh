// Before the main kernel: delta and LSE as the main kernel wants them, dQ and semaphores cleared, and for `exact` the row scales.
// Grid: one block a Q tile.
#pragma once

#include "attention_backward/elementwise.cuh"

namespace ordo::attention_backward {

/// exact: 2^30 / R with R the smallest power of two >= ||dO_i|| max_j ||V_j|| + |delta_i|, or 0 when that is 0. Since the sum of
/// P over a row is at most 1, |sum_j dS_ij K_jd| <= R_i max_j |K_jd|. Non-finite values are left out: the main kernel poisons
/// their rows.
ORDO_DEVICE float row_scale(const ScaledNorm& norm, float delta, int biased_value_exponent) {
  const bool has_product = norm.mantissa > 0.f && biased_value_exponent > 0;
  const bool has_delta = is_finite(delta) && delta != 0.f;
  if (!has_product && !has_delta) return 0.f;
  const int product_scale = norm.exponent + biased_value_exponent - kExponentBias;
  const int product_exponent = has_product ? ceil_log2(norm.mantissa) + product_scale : -0x7fff;
  const int delta_exponent = has_delta ? ceil_log2(delta) : -0x7fff;
  const int top = schedule::maximum(product_exponent, delta_exponent);
  float bound = 0.f;  // in units of 2^top: at most 2
  if (has_product) bound += norm.mantissa * power_of_two(product_scale - top);
  if (has_delta) bound += fabsf(delta) * power_of_two(-top / 2) * power_of_two(-top - -top / 2);
  const int exponent = 30 - (top + ceil_log2(bound));
  return power_of_two(schedule::minimum(schedule::maximum(exponent, -126), 126));
}

ORDO_DEVICE void run_preprocess(const PreprocessParams& params) {
  wait_for_predecessors();
  const schedule::Geometry g = geometry(params.shape);
  const TilePlace place = place_of(params.shape, g, static_cast<int>(blockIdx.x));
  const int thread = static_cast<int>(threadIdx.x);
  const int row_in_pass = thread / kRowThreads, column = thread % kRowThreads * 8;
  constexpr int passes = config.tile_q / kPassRows;

  uint4 o[passes], d_o[passes];
#pragma unroll
  for (int pass = 0; pass < passes; ++pass) {
    const int row = place.first_row + pass * kPassRows + row_in_pass;
    o[pass] = d_o[pass] = uint4{0, 0, 0, 0};
    if (row < g.seqlen_q) {
      o[pass] = load_16_bytes(params.o, row_offset(params.o_strides, place.batch, row, place.head) + column);
      d_o[pass] = load_16_bytes(params.d_o, row_offset(params.do_strides, place.batch, row, place.head) + column);
    }
  }

  // Clear what the main kernel counts and adds in.
  if (blockIdx.x == 0 && thread < kFirstSemaphore) params.scratch.control[thread] = 0;
  if (thread < 2) params.scratch.control[kFirstSemaphore + 2 * static_cast<size_t>(place.tile) + thread] = 0;
  if constexpr (!kOrdered) {  // `ordered` stores its first partial instead
    uint4* dq = static_cast<uint4*>(params.scratch.dq) + static_cast<size_t>(place.tile) * (kSlices * kSliceBytes / 16);
#pragma unroll
    for (int i = 0; i < kSlices * kSliceBytes / 16 / kElementwiseThreads; ++i)
      dq[i * kElementwiseThreads + thread] = uint4{0, 0, 0, 0};
  }

#pragma unroll
  for (int pass = 0; pass < passes; ++pass) {
    const int row_in_tile = pass * kPassRows + row_in_pass;
    const int row = place.first_row + row_in_tile;
    float x[8], y[8], dot = 0.f;
    unpack(x, o[pass]);
    unpack(y, d_o[pass]);
#pragma unroll
    for (int i = 0; i < 8; ++i) dot = __fmaf_rn(x[i], y[i], dot);
    const float delta = sum_row(dot);
    const size_t to = static_cast<size_t>(place.tile) * config.tile_q + row_in_tile;
    const bool sees_nothing = row >= g.seqlen_q || (g.causal && row + g.seqlen_k - g.seqlen_q < 0);
    if constexpr (kExact) {
      const ScaledNorm norm = norm_row(y);
      const int walk = place.batch * kv_heads(params.shape) + place.head / config.group;
      const int value_exponent =
          params.scratch.key_exponents[static_cast<size_t>(walk) * (config.head_dim + 1) + config.head_dim];
      if (column == 0) {
        params.scratch.row_scale[to] = row_scale(norm, delta, value_exponent);
        params.scratch.poison[to] = 0;
      }
    }
    if (column == 0) {
      const float infinity = __uint_as_float(0x7f800000u);
      float lse = infinity;  // P = exp2(S - inf) = 0: what a row that sees nothing must give
      if (!sees_nothing) {
        lse =
            params
                .lse[(static_cast<size_t>(place.batch) * kv_heads(params.shape) * config.group + place.head) * g.seqlen_q + row];
        if (lse == -infinity) lse = infinity;
      }
      params.scratch.neg_lse2[to] = -(lse * 1.4426950408889634f);
      params.scratch.neg_delta[to] = sees_nothing ? 0.f : -delta;
    }
  }
}

}  // namespace ordo::attention_backward

extern "C" __global__ void __launch_bounds__(ordo::attention_backward::kElementwiseThreads, 4)
    ordo_preprocess(const __grid_constant__ ordo::attention_backward::PreprocessParams params) {
  ordo::attention_backward::run_preprocess(params);
}
