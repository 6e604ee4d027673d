// Matrices on the device, and fp64 products to hold them against.
#pragma once

#include <array>
#include <cstdint>

#include "ordo/overlap_kernel.hpp"
#include "runtime/device.hpp"
#include "runtime/measure/helper_kernels.hpp"

namespace ordo::measure {

/// A matrix in memory of its own, its lines (rows, or columns of Storage::column) padded, with bytes behind its end that nobody
/// may touch.
class ORDO_API DeviceMatrix {
 public:
  /// `line`, `lines`: elements of a line, and their number (at least one is allocated). `padding`: at least that many elements
  /// more a line.
  static Result<DeviceMatrix> create(std::int64_t line, std::int64_t lines, int element_bytes, std::int64_t padding);

  [[nodiscard]] MatrixView view() const { return {buffer_.data(), stride_}; }
  [[nodiscard]] DeviceBuffer& buffer() { return buffer_; }
  [[nodiscard]] const DeviceBuffer& buffer() const { return buffer_; }
  [[nodiscard]] std::int64_t stride() const { return stride_; }

  /// Standard normal, 16-bit, padding included; in the order of `stream`.
  Result<void> fill_random(const HelperKernels& kernels, DType dtype, std::uint64_t seed, CUstream_st* stream = nullptr);
  /// NaN everywhere, in the order of `stream`.
  Result<void> poison(CUstream_st* stream = nullptr) { return buffer_.fill(0xff, stream); }
  /// Bytes outside the 16-byte units of the elements that are no longer poison. Waits for the device.
  [[nodiscard]] Result<std::uint64_t> touched_padding(const HelperKernels& kernels) const;

 private:
  DeviceBuffer buffer_;
  std::int64_t line_ = 0, lines_ = 0, stride_ = 0;
  int element_bytes_ = 2;
};

/// The matrix as the reference reads it, from element (row, column) on.
ORDO_API helpers::Operand operand_of(const DeviceMatrix& matrix, Storage storage, std::int64_t row = 0, std::int64_t column = 0);

/// How far an output is from the fp64 product.
struct GemmDeviation {
  double worst = 0;          ///< error over allowed error
  std::uint64_t beyond = 0;  ///< elements with more than allowed
};

/// fp64 sums of products, element by element. Works on the legacy default stream.
class ORDO_API GemmReference {
 public:
  static Result<GemmReference> create(const HelperKernels& kernels, DType dtype, std::int64_t m, std::int64_t n);

  /// Adds A B to `rows` rows from `row` on.
  Result<void> add(const helpers::Operand& a, const helpers::Operand& b, std::int64_t k, std::int64_t row, std::int64_t rows);
  /// `d`: rows of the sum from `row` on. `partials_rounded`: what was added may have been rounded to the 16-bit type before.
  /// Waits.
  [[nodiscard]] Result<GemmDeviation> compare(const OverlapGemm& problem, const void* bias, const MatrixView& d, std::int64_t row,
                                              std::int64_t rows, bool partials_rounded = false) const;

 private:
  GemmReference(HelperKernels kernels, DType dtype, std::int64_t n) : kernels_(std::move(kernels)), dtype_(dtype), n_(n) {}
  /// sum, parts and mass from a row on.
  [[nodiscard]] std::array<double*, 3> sums_from(std::int64_t row) const;

  HelperKernels kernels_;
  DType dtype_;
  std::int64_t n_;
  DeviceBuffer sum_, parts_, mass_;
};

}  // namespace ordo::measure
