// One attention problem on a GPU: its tensors, from the host or random, and the backward of any plan that fits it.
#pragma once

#include <array>
#include <cstdint>

#include "ordo/ordo.hpp"
#include "runtime/attention_forward.hpp"
#include "runtime/device.hpp"
#include "runtime/measure/helper_kernels.hpp"
#include "runtime/reference/attention.hpp"

namespace ordo::measure {

/// Owns device memory of the context that was current when it was made; works on one stream of it, which must outlive it. Inputs
/// and outputs that nothing was put into are poisoned: a forgotten element shows as NaN.
class ORDO_API DeviceProblem {
 public:
  /// Copies q, k, v, dO, and o and lse where they are not empty. Errors: driver (out of memory included).
  static Result<DeviceProblem> upload(const AttentionBackward& problem, float scale, const reference::HostInputs& inputs,
                                      CUstream_st* stream);
  /// q, k, v and dO standard normal, scale 1/sqrt(head_dim).
  static Result<DeviceProblem> random(const AttentionBackward& problem, std::uint64_t seed, const HelperKernels& helpers,
                                      CUstream_st* stream);

  [[nodiscard]] const AttentionBackward& problem() const { return problem_; }
  [[nodiscard]] const AttentionBackwardTensors& tensors() const { return tensors_; }
  [[nodiscard]] CUstream_st* stream() const { return stream_; }

  /// Enqueues the forward: o and lse become what belongs to q, k and v.
  Result<void> run_forward(const AttentionForward& forward);
  /// Waits, and copies o and lse to the host.
  Result<void> download_forward(reference::HostInputs& inputs) const;

  /// Makes room for the kernel's workspace; kernels share it.
  Result<void> reserve(const AttentionBackwardKernel& kernel);
  /// Fills outputs and workspace with `byte`; 0xff is NaN in every type.
  Result<void> poison(std::uint8_t byte = 0xff);
  /// Enqueues the backward. The kernel's workspace is reserved.
  Result<void> launch(const AttentionBackwardKernel& kernel);
  /// What the last launch of a kernel of Flavour::stalls measured. Waits.
  [[nodiscard]] Result<std::vector<CtaStalls>> stalls(const AttentionBackwardKernel& kernel) const;
  Result<void> synchronize() const;
  /// Waits, and copies dq, dk and dv to the host.
  Result<reference::HostGradients> download() const;

  /// Launches `repeats` times after the first, outputs and workspace soiled differently before each, and counts the 4-byte words
  /// of dq, dk and dv that differ from the first's.
  Result<std::uint64_t> differing_words(const AttentionBackwardKernel& kernel, int repeats, const HelperKernels& helpers);

 private:
  DeviceProblem(const AttentionBackward& problem, CUstream_st* stream) : problem_(problem), stream_(stream) {}
  Result<void> allocate(float scale);

  AttentionBackward problem_;
  CUstream_st* stream_;
  DeviceBuffer q_, k_, v_, o_, d_o_, lse_, dq_, dk_, dv_, workspace_;
  AttentionBackwardTensors tensors_;
};

}  // namespace ordo::measure
