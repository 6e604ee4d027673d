#include "runtime/reference/kernels.hpp"

#include "runtime/reference/numbers.hpp"

namespace ordo::reference {
namespace {

// GCC's and Clang's vectors; no alignment beyond the element's is assumed.
template <class T, int kLanes>
struct VectorOf {
  // NOLINTNEXTLINE(modernize-use-using): GCC drops such attributes from an alias of a dependent type
  typedef T type __attribute__((vector_size(kLanes * sizeof(T)), aligned(sizeof(T)), may_alias));
};

ORDO_INLINE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
ORDO_INLINE double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

// A kRows x (kVectors * kLanes) block of C in registers. The compilers turn the innermost loop into one vector instruction.
template <class T, int kRows, int kVectors, int kLanes>
ORDO_INLINE void accumulate_block(const Product<T>& x, std::int64_t i0, std::int64_t j0) {
  using Vector = typename VectorOf<T, kLanes>::type;
  Vector sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[i][v] = *reinterpret_cast<const Vector*>(x.c + (i0 + i) * x.c_row + j0 + v * kLanes);
  }
  const T* a = x.a + i0 * x.a_row;
  const T* b = x.b + j0;
  for (std::int64_t p = 0; p < x.k; ++p, a += x.a_step, b += x.b_row) {
    Vector row[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) row[v] = *reinterpret_cast<const Vector*>(b + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const T factor = a[i * x.a_row];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        Vector next{};
#pragma GCC unroll 16
        for (int lane = 0; lane < kLanes; ++lane) next[lane] = fused(factor, T{row[v][lane]}, T{sum[i][v][lane]});
        sum[i][v] = next;
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) *reinterpret_cast<Vector*>(x.c + (i0 + i) * x.c_row + j0 + v * kLanes) = sum[i][v];
  }
}

template <class T, int kRows, int kVectors, int kLanes>
ORDO_INLINE void accumulate_columns(const Product<T>& x, std::int64_t j) {
  std::int64_t i = 0;
  for (; i + kRows <= x.m; i += kRows) accumulate_block<T, kRows, kVectors, kLanes>(x, i, j);
  for (; i < x.m; ++i) accumulate_block<T, 1, kVectors, kLanes>(x, i, j);
}

template <class T, int kRows, int kLanes>
ORDO_INLINE void accumulate_with(const Product<T>& x) {
  constexpr std::int64_t kPair = std::int64_t{2} * kLanes;
  std::int64_t j = 0;
  for (; j + kPair <= x.n; j += kPair) accumulate_columns<T, kRows, 2, kLanes>(x, j);
  for (; j < x.n; j += kLanes) accumulate_columns<T, kRows, 1, kLanes>(x, j);
}

template <DType dtype>
ORDO_INLINE void probabilities_with(const Probabilities& x) {
  for (std::int64_t key = 0; key < x.keys; ++key) {
    float* __restrict s = x.s + key * x.row;
    float* __restrict dp = x.dp + key * x.row;
    const std::int32_t first = x.first_row[key];
    for (std::int32_t r = 0; r < static_cast<std::int32_t>(x.row); ++r) {
      const float p = exp2_fp32(__builtin_fmaf(s[r], x.scale_log2e, x.minus_lse_log2e[r]));
      const float ds = p * (dp[r] - x.delta[r]);
      s[r] = select(r >= first, rounded<dtype>(p), 0.0f);
      dp[r] = select(r >= first, rounded<dtype>(ds), 0.0f);
    }
  }
}

// NOLINTBEGIN(bugprone-macro-parentheses): attributes and names
// The four loops under one target attribute; kRows x 2 vectors of sums must fit the registers.
#define ORDO_KERNELS(NAME, TARGET, ROWS, LANES)                                                                 \
  TARGET void accumulate_f32_##NAME(const Product<float>& x) { accumulate_with<float, ROWS, LANES>(x); }        \
  TARGET void accumulate_f64_##NAME(const Product<double>& x) { accumulate_with<double, ROWS, LANES / 2>(x); }  \
  TARGET void probabilities_bf16_##NAME(const Probabilities& x) { probabilities_with<DType::bf16>(x); }         \
  TARGET void probabilities_fp16_##NAME(const Probabilities& x) { probabilities_with<DType::fp16>(x); }         \
  constexpr Kernels kKernels_##NAME = {accumulate_f32_##NAME, accumulate_f64_##NAME, probabilities_bf16_##NAME, \
                                       probabilities_fp16_##NAME};

ORDO_KERNELS(generic, , 4, 4)
#if defined(__x86_64__)
ORDO_KERNELS(avx2, [[gnu::target("avx2,fma")]], 4, 8)
ORDO_KERNELS(avx512, [[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]], 8, 16)
#endif
#undef ORDO_KERNELS
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace

const Kernels* kernels_for(Isa isa) {
  if (isa == Isa::generic) return &kKernels_generic;
#if defined(__x86_64__)
  if (isa == Isa::avx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &kKernels_avx2;
  if (isa == Isa::avx512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma")) {
    return &kKernels_avx512;
  }
#endif
  return nullptr;
}

const Kernels& kernels() {
  static const Kernels* const best = [] {
    for (const Isa isa : {Isa::avx512, Isa::avx2}) {
      if (const Kernels* found = kernels_for(isa)) return found;
    }
    return kernels_for(Isa::generic);
  }();
  return *best;
}

}  // namespace ordo::reference
