// Standard normal numbers, the same for the same seed on every device: inputs of benchmarks and checks.
#pragma once

#include "helpers/params.cuh"
#include "sm90/basic.cuh"

namespace ordo::helpers {

/// splitmix64 (Steele, Lea and Flood 2014).
ORDO_DEVICE u64 mix(u64 x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// Two numbers by Box and Muller from 24 random bits each.
ORDO_DEVICE float2 normal_pair(u64 bits) {
  const float u = (static_cast<float>(static_cast<u32>(bits >> 40)) + 0.5f) / 16777216.f;
  const float v = static_cast<float>(static_cast<u32>(bits) & 0xffffffu) / 16777216.f;
  const float radius = sqrtf(-2.f * logf(u)), angle = 6.2831853f * v;
  return {radius * cosf(angle), radius * sinf(angle)};
}

ORDO_DEVICE u32 pack_as(bool fp16, float2 x) {
  u32 pair;
  if (fp16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(x.y), "f"(x.x));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(x.y), "f"(x.x));
  return pair;
}

}  // namespace ordo::helpers

extern "C" __global__ void __launch_bounds__(ordo::helpers::kThreads)
    ordo_normal(const __grid_constant__ ordo::helpers::NormalParams params) {
  const auto step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < params.pairs; i += step)
    params.out[i] = ordo::helpers::pack_as(
        params.fp16, ordo::helpers::normal_pair(ordo::helpers::mix(params.seed * 0x100000001B3ull + static_cast<u64>(i))));
}
