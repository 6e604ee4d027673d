// Counts the bytes between and behind the lines of a matrix that somebody wrote to.
#pragma once

#include "helpers/params.cuh"
#include "sm90/basic.cuh"

extern "C" __global__ void __launch_bounds__(ordo::helpers::kThreads)
    ordo_padding(const __grid_constant__ ordo::helpers::PaddingParams params) {
  const long long total = params.lines * params.pitch + params.guard;
  unsigned long long count = 0;
  const auto step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += step) {
    const bool outside = i >= params.lines * params.pitch || i % params.pitch >= params.used;
    count += outside && params.data[i] != 0xff ? 1 : 0;
  }
  if (count != 0) atomicAdd(params.count, count);
}
