// Counts the words in which two buffers differ: whether a repeat gave the same bits.
#pragma once

#include "helpers/params.cuh"
#include "sm90/basic.cuh"

extern "C" __global__ void __launch_bounds__(ordo::helpers::kThreads)
    ordo_differ(const __grid_constant__ ordo::helpers::DifferParams params) {
  unsigned long long count = 0;
  const auto step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < params.words; i += step)
    count += params.a[i] != params.b[i] ? 1 : 0;
  if (count != 0) atomicAdd(params.count, count);
}
