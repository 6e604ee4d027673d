// Accumulate::exact in scalars: the exponents of rows and columns, and fixed point. The device code (scales.cuh, preprocess.cuh,
// convert.cuh) chooses the same grid.
//
// A partial of dQ[i][d] is rounded to a multiple of 2^(r_i + c_d - 30) and summed in int32, where
//   2^r_i >= ||dO_i|| * 2^v + |delta_i|,   2^v >= max_j ||V_j||,   2^c_d >= max_j |K_jd|,
// maxima over the keys of the row's (batch, KV head), finite values only. As sum_j P_ij <= 1, every partial sum stays within
// 2^30; the factor 2 up to int32's end covers the rounding of P and dS, of these bounds, and of the partials. If the LSE does not
// belong to Q and K, sum_j P_ij may reach 2 and the sum may wrap: that is the caller's precondition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "runtime/reference/numbers.hpp"

namespace ordo::reference::exact {

/// Bits before the sign that a sum of partials may use.
inline constexpr int kBudget = 30;

/// Exponents are kept where 2^-r and 2^(30-c) are floats. Raising one only makes the grid coarser; none needs to be above 128,
/// because a dS beyond fp32's range is infinite and poisons its row. So a zero row or column needs no special case either: its
/// partials are zeros. (2^-128 is subnormal: multiply without flush-to-zero.)
inline constexpr int kLeastRow = -112;
inline constexpr int kLeastColumn = -90;
inline constexpr int kMost = 128;

/// 2^e for -149 <= e <= 127.
inline float power_of_two(int e) {
  return e >= -126 ? float_of(static_cast<std::uint32_t>(e + 127) << 23) : float_of(1u << (e + 149));
}

/// The least e with |x| <= 2^e, from the bits; -126 for subnormals, -127 for zero, 128 for infinity.
inline int ceil_exponent(float x) { return static_cast<int>(((bits_of(x) & 0x7fffffffu) + 0x7fffffu) >> 23) - 127; }

/// A bound on ||x|| / 16 over the finite elements, for at most 256 of them: the division keeps the norms of fp16 and bf16 rows
/// inside fp32. Scaled by the largest exponent, so that no square overflows or vanishes.
inline float norm_over_16(const float* x, std::int64_t count) {
  float largest = 0;
  for (std::int64_t d = 0; d < count; ++d) largest = std::max(largest, finite(x[d]) ? std::fabs(x[d]) : 0.0f);
  const int e = std::clamp(ceil_exponent(largest), -122, 126);
  float sum = 0;
  for (std::int64_t d = 0; d < count; ++d) {
    const float scaled = finite(x[d]) ? x[d] * power_of_two(-e) : 0.0f;
    sum = std::fma(scaled, scaled, sum);
  }
  return std::sqrt(sum) * 1.00001f * power_of_two(e - 4);  // up past the error of the sum
}

/// r of a row, from norm_over_16 of dO_i and the largest norm_over_16 of V. A product that overflows gives 128, which is enough.
inline int row_exponent(float norm_d_o, float largest_norm_v, float delta) {
  const float v = largest_norm_v == 0 ? 0.0f : power_of_two(std::min(ceil_exponent(largest_norm_v), 127));
  const float bound = 256.0f * (norm_d_o * v) + (finite(delta) ? std::fabs(delta) : 0.0f);
  return std::clamp(ceil_exponent(bound), kLeastRow, kMost);
}

/// c of a column, from the largest finite |K_jd|.
inline int column_exponent(float largest) { return std::clamp(ceil_exponent(largest), kLeastColumn, kMost); }

/// The row's and the column's factor of a partial, applied in this order (their product need not be a float).
inline float row_factor(int r) { return power_of_two(-r); }
inline float column_factor(int c) { return power_of_two(kBudget - c); }

/// The partial in fixed point; nullopt when its row is poisoned: NaN, infinite, or out of range (a broken precondition).
inline std::optional<std::int32_t> fixed(float partial, float row, float column) {
  const float x = partial * row * column;
  if (!(std::fabs(x) < 0x1p31f)) return std::nullopt;   // false for NaN
  return static_cast<std::int32_t>(std::nearbyint(x));  // to nearest, ties to even, as cvt.rni.s32.f32
}

/// Adds as the GPU does: two's complement, without a trap.
inline std::int32_t add(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}

/// The sum back in fp32. Column first: what stands between is then no larger than about the column's K.
inline float value(std::int32_t sum, int r, int c) {
  // 2^128 is not a float: two steps for the largest exponent.
  const float in_row = static_cast<float>(sum) * power_of_two(c - kBudget);
  return r == kMost ? in_row * 2.0f * power_of_two(kMost - 1) : in_row * power_of_two(r);
}

}  // namespace ordo::reference::exact
