// cuBLAS, opened at run time: the peer of our GEMM in the same process.
#pragma once

#include <memory>
#include <string>

#include "ordo/overlap_kernel.hpp"

namespace ordo::bench {

class Cublas {
 public:
  /// `path`: of libcublas.so, whose libcublasLt lies beside it; empty: the loader's. Errors (toolchain): not found or refused.
  static Result<Cublas> open(const std::string& path);

  /// D = A B, 16-bit in and out, fp32 sums; A by rows, B by columns, D by rows, as the default algorithm does it.
  Result<void> multiply(const OverlapGemm& problem, const OverlapGemmTensors& tensors, CUstream_st* stream) const;

  [[nodiscard]] int version() const;  ///< as cublasGetVersion gives it

 private:
  struct Library;
  explicit Cublas(std::shared_ptr<Library> library) : library_(std::move(library)) {}
  std::shared_ptr<Library> library_;
};

}  // namespace ordo::bench
