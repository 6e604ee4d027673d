// Matrices on the device, an fp64 product to hold them against, and poisoned outputs: for the tests and benchmarks of
// OverlapGemm.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ordo/overlap_kernel.hpp"
#include "runtime/device.hpp"
#include "tests/gpu/gpu_problem.hpp"

namespace ordo::test {

/// The kernels of gemm_source.hpp, for both element types.
Result<ReferenceKernels> compile_gemm_kernels(const Driver& driver);

/// The kernels of `plans`, in their order, compiled on all processors. One that fails is left out, its error printed and counted.
std::vector<std::optional<OverlapGemmKernel>> prepare_overlap(Engine& engine, std::span<const OverlapPlan> plans, int& failures);

/// A matrix in memory of its own, its lines (rows, or columns of Storage::column) padded, with bytes behind its end that nobody
/// may touch.
class DeviceMatrix {
 public:
  /// `line`, `lines`: elements of a line, and their number. `padding`: at least that many elements more a line.
  static Result<DeviceMatrix> create(std::int64_t line, std::int64_t lines, int element_bytes, std::int64_t padding);

  [[nodiscard]] MatrixView view() const { return {buffer_.data(), stride_}; }
  [[nodiscard]] DeviceBuffer& buffer() { return buffer_; }
  [[nodiscard]] const DeviceBuffer& buffer() const { return buffer_; }
  [[nodiscard]] std::int64_t stride() const { return stride_; }

  Result<void> fill_random(const ReferenceKernels& kernels, DType dtype, std::uint64_t seed);
  Result<void> poison() { return buffer_.fill(0xff); }
  /// Bytes outside the 16-byte units of the elements that are no longer poison.
  Result<std::uint32_t> touched_padding(const ReferenceKernels& kernels) const;

 private:
  DeviceBuffer buffer_;
  std::int64_t line_ = 0, lines_ = 0, stride_ = 0;
  int element_bytes_ = 2;
};

/// An operand as the reference reads it: element (i, j).
struct Operand {
  void* data;
  long long stride;
  int column;
};
Operand operand_of(const DeviceMatrix& matrix, Storage storage);

/// How far an output is from the fp64 product.
struct GemmDeviation {
  double worst = 0;          ///< error over allowed error
  std::uint32_t beyond = 0;  ///< elements with more than allowed
};

/// fp64 sums of products, element by element.
class GemmReference {
 public:
  static Result<GemmReference> create(const ReferenceKernels& kernels, DType dtype, std::int64_t m, std::int64_t n);

  /// Adds A B to `rows` rows from `row` on.
  Result<void> add(const Operand& a, const Operand& b, std::int64_t k, std::int64_t row, std::int64_t rows);
  /// `d`: rows of the sum from `row` on. `partials_rounded`: what was added may have been rounded to the 16-bit type before.
  [[nodiscard]] Result<GemmDeviation> compare(const OverlapGemm& problem, const void* bias, const MatrixView& d, std::int64_t row,
                                              std::int64_t rows, bool partials_rounded = false) const;

 private:
  /// sum, parts and mass from a row on.
  [[nodiscard]] std::array<double*, 3> sums_from(std::int64_t row) const;

  const ReferenceKernels* kernels_ = nullptr;
  DType dtype_ = DType::bf16;
  std::int64_t m_ = 0, n_ = 0;
  DeviceBuffer sum_, parts_, mass_;
};

}  // namespace ordo::test
