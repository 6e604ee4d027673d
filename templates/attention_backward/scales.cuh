// `exact` only, before preprocess: max_j |K_jd| of every column and max_j ||V_j||, as exponents.
// Grid: {row blocks, walks}; Scratch::key_exponents zeroed before.
#pragma once

#include "attention_backward/elementwise.cuh"

namespace ordo::attention_backward {

ORDO_DEVICE void run_scales(const ScalesParams& params) {
  __shared__ int columns[config.head_dim];  // bits of the largest magnitude: non-negative floats order as integers
  __shared__ int value;                     // biased exponent of the largest norm
  const schedule::Geometry g = geometry(params.shape);
  const int thread = static_cast<int>(threadIdx.x);
  const int walk = static_cast<int>(blockIdx.y);
  const int batch = walk / kv_heads(params.shape), kv_head = walk - batch * kv_heads(params.shape);
  const int row_in_pass = thread / kRowThreads, column = thread % kRowThreads * 8;
  if (thread < config.head_dim) columns[thread] = 0;
  if (thread == 0) value = 0;
  __syncthreads();

  float largest[8] = {};
  int norm_exponent = 0;
#pragma unroll 2
  for (int pass = 0; pass < kScaleRows / kPassRows; ++pass) {
    const int row = static_cast<int>(blockIdx.x) * kScaleRows + pass * kPassRows + row_in_pass;
    const bool inside = row < g.seqlen_k;
    float k[8], v[8];
    const uint4 zero{0, 0, 0, 0};
    unpack(k, inside ? load_16_bytes(params.k, row_offset(params.k_strides, batch, row, kv_head) + column) : zero);
    unpack(v, inside ? load_16_bytes(params.v, row_offset(params.v_strides, batch, row, kv_head) + column) : zero);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (is_finite(k[i])) largest[i] = fmaxf(largest[i], fabsf(k[i]));
    const ScaledNorm norm = norm_row(v);
    if (norm.mantissa > 0.f)
      norm_exponent = schedule::maximum(norm_exponent, ceil_log2(norm.mantissa) + norm.exponent + kExponentBias);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) atomicMax(&columns[column + i], __float_as_int(largest[i]));
  if (column == 0) atomicMax(&value, norm_exponent);
  __syncthreads();

  int* exponents = params.scratch.key_exponents + static_cast<size_t>(walk) * (config.head_dim + 1);
  if (thread < config.head_dim && columns[thread] != 0)
    atomicMax(exponents + thread, ceil_log2(__int_as_float(columns[thread])) + kExponentBias);
  if (thread == 0 && value != 0) atomicMax(exponents + config.head_dim, value);
}

}  // namespace ordo::attention_backward

extern "C" __global__ void __launch_bounds__(ordo::attention_backward::kElementwiseThreads, 4)
    ordo_scales(const __grid_constant__ ordo::attention_backward::ScalesParams params) {
  ordo::attention_backward::run_scales(params);
}
