// 16-bit floating point on the CPU, and the executor's exp2. Every function is branch-free, so that loops over it vectorise, and
// uses only IEEE operations (fma explicitly), so that it gives the same bits on every CPU. Compile with -ffp-contract=off.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ordo/problem.hpp"

namespace ordo::reference {

#define ORDO_INLINE [[gnu::always_inline]] inline

/// What a NaN becomes in an output: the bits that the GPU's conversions give for either type.
inline constexpr std::uint16_t kNaN16 = 0x7fff;

ORDO_INLINE std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
ORDO_INLINE float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
/// condition ? yes : no, by bits: the operator keeps GCC from vectorising where a comparison or an operand is floating point.
ORDO_INLINE std::uint32_t select(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = std::uint32_t{0} - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}
ORDO_INLINE float select(bool condition, float yes, float no) { return float_of(select(condition, bits_of(yes), bits_of(no))); }
ORDO_INLINE bool finite(float x) { return (bits_of(x) & 0x7f800000u) != 0x7f800000u; }

/// The value of 16-bit floating-point bits; exact.
template <DType dtype>
ORDO_INLINE float widen(std::uint16_t bits) {
  if constexpr (dtype == DType::bf16) return float_of(std::uint32_t{bits} << 16);
  const std::uint32_t magnitude = bits & 0x7fffu;
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  // Reads the exponent field with fp32's bias, then corrects it: right for subnormals too.
  const float value = float_of(magnitude << 13) * 0x1p112f;
  const std::uint32_t special = 0x7f800000u | magnitude << 13;  // infinity or NaN
  return float_of(sign | select(magnitude >= 0x7c00u, special, bits_of(value)));
}

/// `x` rounded to the nearest value of the type, ties to even: subnormals kept, overflow to infinity, NaN kept.
template <DType dtype>
ORDO_INLINE float rounded(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  float value = 0;
  if constexpr (dtype == DType::bf16) {
    value = float_of((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
  } else {
    const std::uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u)) & ~0x1fffu;
    // fp16 subnormals are multiples of 2^-24, which is the spacing of fp32 at 0.5: that addition rounds.
    const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f - 0.5f);
    const std::uint32_t limited = select(normal >= 0x47800000u, 0x7f800000u, normal);  // 2^16 and above: infinity
    value = float_of((bits & 0x80000000u) | select(magnitude < 0x38800000u, subnormal, limited));
  }
  return select(magnitude > 0x7f800000u, std::numeric_limits<float>::quiet_NaN(), value);
}

/// The type's bits of `x`, rounded as rounded() does.
template <DType dtype>
ORDO_INLINE std::uint16_t narrow(float x) {
  const std::uint32_t bits = bits_of(rounded<dtype>(x));
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return kNaN16;
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  if constexpr (dtype == DType::bf16) return static_cast<std::uint16_t>(sign | magnitude >> 16);
  if (magnitude == 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u)
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(float_of(magnitude) * 0x1p24f));
  return static_cast<std::uint16_t>(sign | (magnitude - 0x38000000u) >> 13);
}

/// The type's bits of `x`, rounded once from fp64.
template <DType dtype>
inline std::uint16_t narrow(double x) {
  // fp32 with the last bit made sticky rounds to 16 bits as the fp64 value would: it keeps more than two bits beyond the
  // target's.
  auto near = static_cast<float>(x);
  if (std::isfinite(near) && static_cast<double>(near) != x) {
    const std::uint32_t bits = bits_of(near);
    const bool away = std::fabs(static_cast<double>(near)) > std::fabs(x);
    near = float_of((away ? bits - 1 : bits) | 1u);
  }
  return narrow<dtype>(near);
}

/// Run-time forms of the above, for code where speed does not matter.
inline float widen(DType dtype, std::uint16_t bits) {
  return dtype == DType::bf16 ? widen<DType::bf16>(bits) : widen<DType::fp16>(bits);
}
inline std::uint16_t narrow(DType dtype, float x) {
  return dtype == DType::bf16 ? narrow<DType::bf16>(x) : narrow<DType::fp16>(x);
}
inline std::uint16_t narrow(DType dtype, double x) {
  return dtype == DType::bf16 ? narrow<DType::bf16>(x) : narrow<DType::fp16>(x);
}

/// 2^x within 2 ulp; results below 2^-126 become 0, as ex2.approx.ftz.f32 has it. The GPU's instruction differs in the last bits.
ORDO_INLINE float exp2_fp32(float x) {
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const float shifted = x + kRound;
  const float fraction = x - (shifted - kRound);  // in [-0.5, 0.5]
  // Minimax polynomial of 2^f (Cephes, exp2f).
  float power = 1.535336188319500e-4f;
  power = __builtin_fmaf(power, fraction, 1.339887440266574e-3f);
  power = __builtin_fmaf(power, fraction, 9.618437357674640e-3f);
  power = __builtin_fmaf(power, fraction, 5.550332471162809e-2f);
  power = __builtin_fmaf(power, fraction, 2.402264791363012e-1f);
  power = __builtin_fmaf(power, fraction, 6.931472028550421e-1f);
  power = __builtin_fmaf(power, fraction, 1.0f);
  const std::uint32_t exponent = bits_of(shifted) - bits_of(kRound);
  float result = float_of(bits_of(power) + (exponent << 23));
  result = select(x < -126.0f, 0.0f, result);
  result = select(x >= 128.0f, std::numeric_limits<float>::infinity(), result);
  return select(x != x, x, result);
}

}  // namespace ordo::reference
