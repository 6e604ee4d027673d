// 16-bit numbers as the helpers read them.
#pragma once

#include "helpers/params.cuh"
#include "sm90/basic.cuh"

namespace ordo::helpers {

ORDO_DEVICE float to_float(u16 bits, bool fp16) {
  if (!fp16) return __uint_as_float(static_cast<u32>(bits) << 16);
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

ORDO_DEVICE float element(const Operand& matrix, bool fp16, long long i, long long j) {
  const long long at = matrix.column ? j * matrix.stride + i : i * matrix.stride + j;
  return to_float(static_cast<const u16*>(matrix.data)[at], fp16);
}

}  // namespace ordo::helpers
