// The inner loops of the CPU executor, compiled for several instruction sets. Every one gives the same bits: each output element
// is one chain of fused multiply-adds in a stated order, so it does not matter how many elements are computed side by side.
#pragma once

#include <cstdint>

#include "ordo/problem.hpp"

namespace ordo::reference {

/// C[i][j] += sum over p of A(i, p) * B[p][j], p rising, one fma a term. A(i, p) = a[i * a_row + p * a_step].
template <class T>
struct Product {
  T* c = nullptr;
  std::int64_t c_row = 0;
  const T* a = nullptr;
  std::int64_t a_row = 0, a_step = 0;
  const T* b = nullptr;
  std::int64_t b_row = 0;
  std::int64_t m = 0, n = 0, k = 0;  ///< n is a multiple of kColumns
};

/// Row lengths are padded to this: the widest vector of 32-bit lanes.
inline constexpr std::int64_t kColumns = 16;

/// From S and dP, transposed (a row a key, a column a query), to P and dS rounded to the dtype, in place:
///   P = exp2(S * scale_log2e + minus_lse_log2e),  dS = P * (dP - delta).
/// Where column < first_row[key] the mask hides the pair: both are set to zero, not multiplied by it.
struct Probabilities {
  float* s = nullptr;
  float* dp = nullptr;
  std::int64_t row = 0;  ///< elements between keys; all of them are computed
  std::int64_t keys = 0;
  const float* minus_lse_log2e = nullptr;
  const float* delta = nullptr;
  const std::int32_t* first_row = nullptr;
  float scale_log2e = 0;
};

struct Kernels {
  void (*accumulate_f32)(const Product<float>&);
  void (*accumulate_f64)(const Product<double>&);
  void (*probabilities_bf16)(const Probabilities&);
  void (*probabilities_fp16)(const Probabilities&);
};

enum class Isa { generic, avx2, avx512 };

/// The loops for one instruction set; nullptr when this CPU, or this build, has it not.
const Kernels* kernels_for(Isa isa);

/// The best set this CPU has. Thread-safe.
const Kernels& kernels();

inline void accumulate(const Product<float>& product) { kernels().accumulate_f32(product); }
inline void accumulate(const Product<double>& product) { kernels().accumulate_f64(product); }

}  // namespace ordo::reference
