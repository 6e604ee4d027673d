// cuBLAS, opened at run time: what our GEMM is measured beside.
#pragma once

#include <memory>
#include <string>

#include "ordo/overlap_kernel.hpp"

namespace ordo::measure {

class ORDO_API Cublas {
 public:
  /// `path`: of libcublas.so, whose libcublasLt lies beside it; empty: the loader's. Errors (toolchain): not found or refused.
  static Result<Cublas> open(const std::string& path);

  /// D = A B with fp32 sums, without bias and activation, as the default algorithm does it. Copies share one handle: one thread.
  Result<void> multiply(const OverlapGemm& problem, const OverlapGemmTensors& tensors, CUstream_st* stream) const;

  [[nodiscard]] int version() const;  ///< as cublasGetVersion gives it

 private:
  struct Library;
  explicit Cublas(std::shared_ptr<Library> library) : library_(std::move(library)) {}
  std::shared_ptr<Library> library_;
};

}  // namespace ordo::measure
