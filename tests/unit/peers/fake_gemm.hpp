// What the kernel of an OverlapGemm does, as a host function: the same memory, waits and signals, plain loops for the product.
#pragma once

#include <cstdint>
#include <vector>

#include "ordo/overlap_kernel.hpp"

namespace ordo::test {

/// bf16 of numbers that it holds exactly.
std::uint16_t to_bf16(float value);
float from_bf16(std::uint16_t bits);

/// A matrix in host memory, by rows, of bf16 or fp32.
struct HostMatrix {
  std::int64_t rows = 0, columns = 0, stride = 0;
  bool fp32 = false;
  std::vector<std::uint8_t> bytes;

  /// `pitch` 0: rows one behind the other, padded to 16 bytes. Filled with 0xff: NaN.
  static HostMatrix poisoned(std::int64_t rows, std::int64_t columns, bool fp32, std::int64_t pitch = 0);
  [[nodiscard]] MatrixView view() { return {bytes.data(), stride}; }
};

/// Elements of a matrix by rows anywhere in host memory.
float load(const MatrixView& matrix, bool fp32, std::int64_t row, std::int64_t column);
void store(const MatrixView& matrix, bool fp32, std::int64_t row, std::int64_t column, float value);

/// Computes this rank's product as the kernel would. A and B by rows, bf16; no activation. Ends early, with nothing more stored
/// or signalled, when a wait fails.
void fake_gemm(const OverlapGemm& problem, const OverlapPlan& plan, const OverlapGemmTensors& tensors,
               const OverlapExchange& exchange);

}  // namespace ordo::test
