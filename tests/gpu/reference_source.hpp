// A slow, plain fp64 attention in CUDA, so that the GPU suite can check hundreds of shapes in minutes. It shares no code with the
// kernels under test. Compiled by NVRTC at test time; `HALF` is defined to 1 for fp16.
#pragma once

namespace ordo::test {

inline constexpr const char* kReferenceSource = R"cuda(
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Sizes { int batch, sq, sk, heads, kv_heads, d, mask; double scale; };

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

// [batch, seqlen, heads, d] contiguous
__device__ long long at(int b, int i, int h, int s, int heads, int d) { return (((long long)b * s + i) * heads + h) * d; }
// Masks by number: full, causal, then those of masks.hpp, written here a second time.
__device__ bool sees(const Sizes& z, int i, int j, int h, int b) {
  switch (z.mask) {
    case 0: return true;
    case 1: return j <= i + z.sk - z.sq;
    case 2: return i >= j && i < j + 200;
    case 3: return j < 5 || (i >= j && i < j + 64);
    case 4: return i / 300 == j / 300 && i >= j;
    case 5: { int x = i + z.sk - z.sq - j; return x < 150 && x > -150; }
    case 6: return i % 3 == j % 3;
    case 7: return i >= j && i < j + 100 * (h + 1) && (b != 1 || j > 70);
    case 8: return i > 300 && i < 500;
  }
  return false;
}
__device__ int visible_end(const Sizes& z, int i) {  // no key from here on is seen by row i
  if (z.mask != 1) return z.sk;
  int end = i + z.sk - z.sq + 1;
  return end < 0 ? 0 : end > z.sk ? z.sk : end;
}
__device__ double dot(const u16* x, const u16* y, int d) {
  double s = 0;
  for (int i = 0; i < d; ++i) s += (double)to_float(x[i]) * (double)to_float(y[i]);
  return s;
}

// Standard normal from a counter: splitmix64 and Box-Muller.
__device__ u64 mix(u64 x) {
  x += 0x9E3779B97F4A7C15ull; x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull; x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}
extern "C" __global__ void ref_random(u16* out, long long n, u64 seed, float factor) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u64 r = mix(seed * 0x100000001B3ull + (u64)i);
  float u = ((float)(u32)(r >> 40) + 0.5f) / 16777216.f, v = (float)(u32)(r & 0xffffff) / 16777216.f;
  out[i] = round16(factor * sqrtf(-2.f * logf(u)) * cosf(6.2831853f * v));
}

// Noise of every bit pattern: what a workspace may hold.
extern "C" __global__ void ref_noise(u32* out, long long words, u64 seed) {
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += (long long)gridDim.x * blockDim.x)
    out[i] = (u32)(mix(seed * 0x100000001B3ull + (u64)i) >> 32);
}

// One block a row: O and LSE in fp64.
extern "C" __global__ void ref_forward(Sizes z, const u16* q, const u16* k, const u16* v, double* o, double* lse) {
  __shared__ double part[128];
  __shared__ double p[128];
  int i = blockIdx.x, h = blockIdx.y % z.heads, b = blockIdx.y / z.heads, hk = h / (z.heads / z.kv_heads), t = threadIdx.x;
  int end = visible_end(z, i);
  const u16* qi = q + at(b, i, h, z.sq, z.heads, z.d);
  double m = -1e300;
  for (int j = t; j < end; j += 128) if (sees(z, i, j, h, b)) m = fmax(m, z.scale * dot(qi, k + at(b, j, hk, z.sk, z.kv_heads, z.d), z.d));
  part[t] = m; __syncthreads();
  for (int s = 64; s; s /= 2) { if (t < s) part[t] = fmax(part[t], part[t + s]); __syncthreads(); }
  m = part[0]; __syncthreads();
  double sum = 0, acc = 0;
  for (int base = 0; base < end; base += 128) {
    int j = base + t;
    p[t] = j < end && sees(z, i, j, h, b) ? exp(z.scale * dot(qi, k + at(b, j, hk, z.sk, z.kv_heads, z.d), z.d) - m) : 0;
    __syncthreads();
    for (int x = 0; x < 128 && base + x < end; ++x) {
      sum += p[x];
      if (t < z.d) acc += p[x] * (double)to_float(v[at(b, base + x, hk, z.sk, z.kv_heads, z.d) + t]);
    }
    __syncthreads();
  }
  if (t < z.d) o[at(b, i, h, z.sq, z.heads, z.d) + t] = sum > 0 ? acc / sum : 0;
  if (t == 0) lse[((long long)b * z.heads + h) * z.sq + i] = sum > 0 ? m + log(sum) : -__longlong_as_double(0x7ff0000000000000ll);
}

// P and dS of one pair; `rounded`: the straightforward fp32 method, P and dS rounded to the type.
struct Pair { double p, ds, mass; };  // mass: the magnitudes that cancel in dS
__device__ Pair pair(const Sizes& z, const u16* q, const u16* k, const u16* v, const u16* d_o, double lse, double delta, int rounded) {
  if (isinf(lse)) return {0, 0, 0};  // by contract a row that sees nothing, whichever sign the forward gave it
  double s = dot(q, k, z.d), dp = dot(d_o, v, z.d);
  if (!rounded) { double p = exp(z.scale * s - lse); return {p, p * (dp - delta), p * (fabs(dp) + fabs(delta))}; }
  float pf = exp2f((float)s * (float)(z.scale * 1.4426950408889634) - (float)lse * 1.4426950408889634f);
  float dsf = pf * ((float)dp - (float)delta);
  return {(double)to_float(round16(pf)), (double)to_float(round16(dsf)), (double)pf * (fabs(dp) + fabs(delta))};
}

extern "C" __global__ void ref_delta(Sizes z, const u16* o, const u16* d_o, double* delta) {
  long long r = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= (long long)z.batch * z.heads * z.sq) return;
  int i = r % z.sq, h = (r / z.sq) % z.heads, b = r / z.sq / z.heads;
  delta[r] = dot(o + at(b, i, h, z.sq, z.heads, z.d), d_o + at(b, i, h, z.sq, z.heads, z.d), z.d);
}

// One block a query row. `mass` is the same sum of magnitudes.
extern "C" __global__ void ref_dq(Sizes z, const u16* q, const u16* k, const u16* v, const u16* d_o, const double* lse, const double* delta,
                                  double* dq, double* mass, int rounded) {
  __shared__ double ds[128], ms[128];
  int i = blockIdx.x, h = blockIdx.y % z.heads, b = blockIdx.y / z.heads, hk = h / (z.heads / z.kv_heads), t = threadIdx.x;
  int end = visible_end(z, i);
  long long r = ((long long)b * z.heads + h) * z.sq + i, row = at(b, i, h, z.sq, z.heads, z.d);
  double acc = 0, sum = 0; float accf = 0;
  for (int base = 0; base < end; base += 128) {
    int j = base + t;
    long long kr = at(b, j, hk, z.sk, z.kv_heads, z.d);
    Pair x = {0, 0, 0};
    if (j < end && sees(z, i, j, h, b)) x = pair(z, q + row, k + kr, v + kr, d_o + row, lse[r], delta[r], rounded);
    ds[t] = x.ds; ms[t] = x.mass;
    __syncthreads();
    if (t < z.d) for (int x = 0; x < 128 && base + x < end; ++x) {
      double ke = to_float(k[at(b, base + x, hk, z.sk, z.kv_heads, z.d) + t]), y = ds[x] * ke;
      if (rounded) accf += (float)y; else acc += y;
      sum += ms[x] * fabs(ke);
    }
    __syncthreads();
  }
  if (t < z.d) { dq[row + t] = rounded ? (double)to_float(round16(accf * (float)z.scale)) : acc * z.scale; mass[row + t] = sum * z.scale; }
}

// One block a key row.
extern "C" __global__ void ref_dkv(Sizes z, const u16* q, const u16* k, const u16* v, const u16* d_o, const double* lse, const double* delta,
                                   double* dk, double* dv, double* mass_k, double* mass_v, int rounded) {
  __shared__ double p[128], ds[128], ms[128];
  int j = blockIdx.x, hk = blockIdx.y % z.kv_heads, b = blockIdx.y / z.kv_heads, group = z.heads / z.kv_heads, t = threadIdx.x;
  long long kr = at(b, j, hk, z.sk, z.kv_heads, z.d);
  int first = z.mask == 1 ? j - (z.sk - z.sq) : 0; if (first < 0) first = 0;
  double ak = 0, av = 0, sk = 0, sv = 0; float fk = 0, fv = 0;
  for (int g = 0; g < group; ++g) {
    int h = hk * group + g;
    for (int base = first; base < z.sq; base += 128) {
      int i = base + t;
      if (i < z.sq) {
        long long row = at(b, i, h, z.sq, z.heads, z.d), r = ((long long)b * z.heads + h) * z.sq + i;
        Pair x = {0, 0, 0};
        if (sees(z, i, j, h, b)) x = pair(z, q + row, k + kr, v + kr, d_o + row, lse[r], delta[r], rounded);
        p[t] = x.p; ds[t] = x.ds; ms[t] = x.mass;
      }
      __syncthreads();
      if (t < z.d) for (int x = 0; x < 128 && base + x < z.sq; ++x) {
        long long row = at(b, base + x, h, z.sq, z.heads, z.d);
        double qe = to_float(q[row + t]), yk = ds[x] * qe, yv = p[x] * (double)to_float(d_o[row + t]);
        if (rounded) { fk += (float)yk; fv += (float)yv; } else { ak += yk; av += yv; }
        sk += ms[x] * fabs(qe); sv += fabs(yv);
      }
      __syncthreads();
    }
  }
  if (t < z.d) {
    dk[kr + t] = rounded ? (double)to_float(round16(fk * (float)z.scale)) : ak * z.scale; dv[kr + t] = rounded ? (double)to_float(round16(fv)) : av;
    mass_k[kr + t] = sk * z.scale; mass_v[kr + t] = sv;
  }
}

// Sums of squares: ||got - ref||, ||ref||, ||straight - ref||, ||mass||, and how many elements of got are not finite. One block.
extern "C" __global__ void ref_compare(const u16* got, const double* ref, const double* straight, const double* mass, long long n, double* out) {
  __shared__ double part[1024];
  double s[5] = {0, 0, 0, 0, 0};
  for (long long i = threadIdx.x; i < n; i += 1024) {
    double g = to_float(got[i]), r = ref[i], f = straight[i] - r, m = mass[i];
    if (!(fabs(g) < 1e300)) { s[4] += 1; continue; }
    s[0] += (g - r) * (g - r); s[1] += r * r; s[2] += f * f; s[3] += m * m;
  }
  for (int c = 0; c < 5; ++c) {
    part[threadIdx.x] = s[c]; __syncthreads();
    for (int w = 512; w; w /= 2) { if (threadIdx.x < w) part[threadIdx.x] += part[threadIdx.x + w]; __syncthreads(); }
    if (threadIdx.x == 0) out[c] = part[0];
    __syncthreads();
  }
}

// Number of 4-byte words that differ.
extern "C" __global__ void ref_differ(const u32* a, const u32* b, long long words, u64* count) {
  u64 c = 0;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += (long long)gridDim.x * blockDim.x) c += a[i] != b[i];
  if (c) atomicAdd(count, c);
}

// Keeps SMs busy for about `clocks`, holding `shared` bytes if launched with them: other work beside the kernel under test.
extern "C" __global__ void ref_disturb(long long clocks, float* sink) {
  extern __shared__ float keep[];
  long long start = clock64(); float x = threadIdx.x;
  while (clock64() - start < clocks) { for (int i = 0; i < 64; ++i) x = x * 1.0001f + 0.5f; }
  keep[threadIdx.x % 32] = x;
  if (x == -1.f) *sink = keep[0];
}
)cuda";

}  // namespace ordo::test
