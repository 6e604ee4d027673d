#include "codegen/generate/wgmma.hpp"

#include <fmt/format.h>

namespace ordo {
namespace {

/// "%first, %first+1, ..." of `count` operands.
std::string operands(int first, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("{}%{}", i == 0 ? "" : ", ", first + i);
  return text;
}

/// "\"+f\"(d[0]), ..." of `count` accumulators.
std::string accumulators(const char* constraint, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("{}\"{}\"(d[{}])", i == 0 ? "" : ", ", constraint, i);
  return text;
}

const char* major(bool transposed) { return transposed ? "Major::mn" : "Major::k"; }

}  // namespace

std::string wgmma_wrapper(const WgmmaForm& form, DType dtype) {
  const int registers = form.n / 2;
  const char* type = dtype == DType::bf16 ? "bf16" : "f16";
  const std::string signature =
      form.a_in_registers ? fmt::format("{}<{}, {}>(float (&d)[{}], u32 a0, u32 a1, u32 a2, u32 a3, u64 b)",
                                        form.first ? "mma_first" : "mma", major(form.transpose_b), registers, registers)
                          : fmt::format("{}<{}, {}, {}>(float (&d)[{}], u64 a, u64 b)", form.first ? "mma_first" : "mma",
                                        major(form.transpose_a), major(form.transpose_b), registers, registers);
  const std::string a = form.a_in_registers ? fmt::format("{{{}}}", operands(registers, 4)) : operands(registers, 1);
  const std::string b = operands(registers + (form.a_in_registers ? 4 : 1), 1);
  const std::string transposes =
      form.a_in_registers ? fmt::format("{:d}", form.transpose_b) : fmt::format("{:d}, {:d}", form.transpose_a, form.transpose_b);
  const char* inputs = form.a_in_registers ? "\"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3), \"l\"(b)" : "\"l\"(a), \"l\"(b)";
  // The predicate is scale-d: false means D = A B.
  return fmt::format(
      "template <>\n__device__ __forceinline__ void {signature} {{\n"
      "  asm volatile(\"{{\\n.reg .pred accumulate;\\nsetp.eq.u32 accumulate, {accumulate}, 1;\\n\"\n"
      "               \"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{type}.{type} {{{d}}}, {a}, {b}, accumulate, 1, 1, "
      "{transposes};\\n}}\"\n"
      "               : {outputs}\n               : {inputs});\n}}\n",
      fmt::arg("signature", signature), fmt::arg("accumulate", form.first ? 0 : 1), fmt::arg("n", form.n), fmt::arg("type", type),
      fmt::arg("d", operands(0, registers)), fmt::arg("a", a), fmt::arg("b", b), fmt::arg("transposes", transposes),
      fmt::arg("outputs", accumulators(form.first ? "=f" : "+f", registers)), fmt::arg("inputs", inputs));
}

std::string conversion_wrappers(DType dtype) {
  if (dtype == DType::bf16)
    return R"(/// Two floats to a pair of bf16, `low` in the low half, round to nearest even.
ORDO_DEVICE u32 pack(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
ORDO_DEVICE float2 unpack_pair(u32 pair) { return float2{__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)}; }
)";
  return R"(/// Two floats to a pair of fp16, `low` in the low half, round to nearest even; beyond the range: infinity.
ORDO_DEVICE u32 pack(float low, float high) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
ORDO_DEVICE float2 unpack_pair(u32 pair) {
  float2 x;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}" : "=f"(x.x), "=f"(x.y) : "r"(pair));
  return x;
}
)";
}

}  // namespace ordo
