// Plain fp64 matrix products in CUDA, and what the GEMM tests do to device memory. Shares no code with the kernels under test.
// Compiled by NVRTC at test time; `HALF` is defined to 1 for fp16.
#pragma once

namespace ordo::test {

inline constexpr const char* kGemmSource = R"cuda(
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ float to_float(u16 x) {
#if HALF
  float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y;
#else
  return __uint_as_float((u32)x << 16);
#endif
}
__device__ u16 round16(float x) {
#if HALF
  u16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y;
#else
  u16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y;
#endif
}

struct Matrix {
  const u16* data;
  long long stride;
  int column;  // element (i, j) is data[j * stride + i], else data[i * stride + j]
  __device__ double at(long long i, long long j) const { return (double)to_float(data[column ? j * stride + i : i * stride + j]); }
};

__device__ u64 mix(u64 x) {
  x += 0x9E3779B97F4A7C15ull; x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull; x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Standard normal from a counter (Box-Muller).
extern "C" __global__ void gemm_random(u16* out, long long n, u64 seed) {
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
    u64 r = mix(seed * 0x100000001B3ull + (u64)i);
    float u = ((float)(u32)(r >> 40) + 0.5f) / 16777216.f, v = (float)(u32)(r & 0xffffff) / 16777216.f;
    out[i] = round16(sqrtf(-2.f * logf(u)) * cosf(6.2831853f * v));
  }
}

// On [m][n]: sum += A B, parts += |A B|, mass += |A| |B|.
extern "C" __global__ void gemm_accumulate(double* sum, double* parts, double* mass, int m, int n, int k, Matrix a, Matrix b) {
  const long long element = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (element >= (long long)m * n) return;
  const int row = (int)(element / n), column = (int)(element % n);
  double s = 0, t = 0;
  for (int i = 0; i < k; ++i) {
    const double x = a.at(row, i) * b.at(i, column);
    s += x;
    t += fabs(x);
  }
  sum[element] += s;
  parts[element] += fabs(s);
  mass[element] += t;
}

__device__ double activated(double x, int activation) {
  if (activation == 1) return x < 0 ? 0 : x;
  if (activation == 2) return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
  if (activation == 3) return x / (1 + exp(-x));
  return x;
}

struct Check {
  int m, n, fp32, activation, has_bias;
  double relative, of_parts, of_mass;  // allowed: relative |D| + of_parts parts + of_mass mass
  long long stride;
};

// Worst error over allowed error, as float bits, in counters[0]; elements beyond it in counters[1].
extern "C" __global__ void gemm_check(const double* sum, const double* parts, const double* mass, const u16* bias, const void* d, Check c, u32* counters) {
  const long long element = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (element >= (long long)c.m * c.n) return;
  const long long row = element / c.n, column = element % c.n;
  const double b = c.has_bias ? (double)to_float(bias[column]) : 0;
  const double want = activated(sum[element] + b, c.activation);
  const long long at = row * c.stride + column;
  const double got = c.fp32 ? (double)((const float*)d)[at] : (double)to_float(((const u16*)d)[at]);
  const double allowed = c.relative * fabs(want) + c.of_parts * parts[element] + c.of_mass * (mass[element] + fabs(b)) + 1e-7;
  const double ratio = fabs(got - want) / allowed;
  if (!(ratio <= 1)) atomicAdd(counters + 1, 1u);
  atomicMax(counters, ratio == ratio ? __float_as_uint((float)ratio) : 0x7f800000u);
}

// Bytes of [rows][stride] behind the first `used` of a row, and of `guard` behind the last row, that are no longer 0xff.
extern "C" __global__ void gemm_padding(const unsigned char* d, long long rows, long long stride, long long used, long long guard,
                                        u32* counter) {
  const long long total = rows * stride + guard;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += (long long)gridDim.x * blockDim.x) {
    const bool padding = i >= rows * stride || i % stride >= used;
    if (padding && d[i] != 0xff) atomicAdd(counter, 1u);
  }
}

// Words that differ.
extern "C" __global__ void gemm_differ(const u32* x, const u32* y, long long words, u32* counter) {
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += (long long)gridDim.x * blockDim.x)
    if (x[i] != y[i]) atomicAdd(counter, 1u);
}
)cuda";

}  // namespace ordo::test
