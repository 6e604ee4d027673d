// Small kernels that benchmarks and checks need beside the one they look at: random inputs, comparison of bits, fp64 products.
#pragma once

#include <cstdint>
#include <memory>

#include "ordo/problem.hpp"
#include "runtime/device.hpp"
#include "runtime/kernel_builder.hpp"
#include "templates/helpers/params.cuh"

namespace ordo::measure {

/// Generated, compiled and cached as every kernel. Copies share them. Thread-safe.
class ORDO_API HelperKernels {
 public:
  /// Errors: toolchain, compile.
  static Result<HelperKernels> create(const KernelBuilderOptions& options);

  /// Fills the buffer with standard normal 16-bit elements, the same for the same seed. Enqueues on `stream`; does not wait.
  Result<void> fill_normal(DeviceBuffer& buffer, DType dtype, std::uint64_t seed, CUstream_st* stream) const;
  /// How many 4-byte words of the buffers differ; both of the same size, a multiple of 4 bytes. Waits for `stream`.
  Result<std::uint64_t> count_differing_words(const DeviceBuffer& a, const DeviceBuffer& b, CUstream_st* stream) const;
  // What the parameters say; each enqueues on `stream` and does not wait. For gemm_reference.hpp.
  Result<void> add_product(const helpers::ProductParams& params, CUstream_st* stream) const;
  Result<void> compare(const helpers::DeviationParams& params, CUstream_st* stream) const;
  Result<void> count_padding(const helpers::PaddingParams& params, CUstream_st* stream) const;

 private:
  struct Impl;
  explicit HelperKernels(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace ordo::measure
