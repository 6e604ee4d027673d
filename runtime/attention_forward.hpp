// The forward that a backward starts from, on a GPU: O and LSE for benchmarks, checks and examples. Generated, compiled and
// cached as every kernel of ordo.
#pragma once

#include <memory>

#include "ordo/ordo.hpp"
#include "runtime/kernel_builder.hpp"

namespace ordo {

/// Device tensors of one attention forward: O = softmax(scale Q K^T) V and LSE, the natural log of the sum of exp(scale Q K^T).
/// Shapes, types and mask as in AttentionBackward. A row that sees nothing gets O = 0 and LSE = -inf.
struct AttentionForwardTensors {
  TensorView q, k, v;    ///< not written
  TensorView o;          ///< every element is written
  float* lse = nullptr;  ///< contiguous [batch, heads, seqlen_q]: every element is written
  float scale = 0;       ///< softmax scale, > 0 and finite
};

/// Deterministic: the same inputs give the same bits. Copies share the compiled kernel. Thread-safe.
class ORDO_API AttentionForward {
 public:
  /// Compiles the kernel for the problem's dtype, head_dim and mask, or takes it from the cache. Needs no GPU. Errors: an invalid
  /// problem; toolchain, compile.
  static Result<AttentionForward> create(const AttentionBackward& problem, const KernelBuilderOptions& options);

  [[nodiscard]] const KernelReport& report() const;

  /// Enqueues the forward on `stream` of the current context; any problem of the dtype, head_dim and mask of create(). No
  /// workspace, no synchronisation. Errors: another dtype, head_dim or mask; tensors that TMA cannot read; more than 2^31 - 1
  /// blocks of 128 rows; driver failures.
  Result<void> launch(const AttentionBackward& problem, const AttentionForwardTensors& tensors, CUstream_st* stream) const;

 private:
  struct Impl;
  explicit AttentionForward(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace ordo
