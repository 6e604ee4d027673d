// 16-bit elements to floats, and integer exponents. Exponents are worked out on bits: log2f rounds, and 1e-24 squared underflows.
#pragma once

#include "sm90/basic.cuh"

namespace ordo {

/// 2^exponent for -149 <= exponent <= 127, clamped to that range.
ORDO_DEVICE float power_of_two(int exponent) {
  if (exponent > 127) exponent = 127;
  if (exponent < -149) exponent = -149;
  return exponent >= -126 ? __uint_as_float(static_cast<u32>(exponent + 127) << 23)
                          : __uint_as_float(1u << static_cast<u32>(exponent + 149));
}

/// The smallest e with |x| <= 2^e, for finite x != 0.
ORDO_DEVICE int ceil_log2(float x) {
  const u32 bits = __float_as_uint(x) & 0x7fffffffu;
  const u32 exponent = bits >> 23, mantissa = bits & 0x7fffffu;
  if (exponent == 0) {  // subnormal: mantissa * 2^-149
    const int top = 31 - __clz(static_cast<int>(mantissa));
    return top - 149 + ((mantissa & (mantissa - 1)) != 0 ? 1 : 0);
  }
  return static_cast<int>(exponent) - 127 + (mantissa != 0 ? 1 : 0);
}

ORDO_DEVICE bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

}  // namespace ordo
