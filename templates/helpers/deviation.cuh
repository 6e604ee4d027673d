// Holds the elements of an output against fp64 sums.
#pragma once

#include "helpers/element.cuh"

namespace ordo::helpers {

ORDO_DEVICE double activated(double x, int activation) {
  if (activation == 1) return x < 0 ? 0 : x;
  if (activation == 2) return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
  if (activation == 3) return x / (1 + exp(-x));
  return x;
}

ORDO_DEVICE void compare(const DeviationParams& p, long long at) {
  const long long row = at / p.n, column = at % p.n;
  const double bias = p.bias != nullptr ? to_float(static_cast<const u16*>(p.bias)[column], p.fp16) : 0;
  const double want = activated(p.sum[at] + bias, p.activation);
  const long long place = row * p.stride + column;
  const double got = p.fp32 ? static_cast<const float*>(p.d)[place] : to_float(static_cast<const u16*>(p.d)[place], p.fp16);
  const double allowed = p.relative * fabs(want) + p.of_parts * p.parts[at] + p.of_mass * (p.mass[at] + fabs(bias)) + 1e-7;
  const double ratio = fabs(got - want) / allowed;
  if (!(ratio <= 1)) atomicAdd(p.result + 1, 1u);
  atomicMax(p.result, ratio == ratio ? __float_as_uint(static_cast<float>(ratio)) : 0x7f800000u);  // NaN: infinity
}

}  // namespace ordo::helpers

extern "C" __global__ void __launch_bounds__(ordo::helpers::kThreads)
    ordo_deviation(const __grid_constant__ ordo::helpers::DeviationParams params) {
  const long long elements = static_cast<long long>(params.m) * params.n;
  const auto step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += step)
    ordo::helpers::compare(params, i);
}
