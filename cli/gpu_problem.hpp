// One problem on a GPU: its tensors, a workspace, and launches.
#pragma once

#include "ordo/ordo.hpp"
#include "runtime/device.hpp"
#include "runtime/reference/attention.hpp"

namespace ordo::cli {

/// Owns a device context, a stream and the memory of one problem. Everything that a launch does not write is poisoned, so that a
/// forgotten element shows as NaN.
class GpuProblem {
 public:
  /// Copies the inputs to device `index` and allocates the outputs. Errors: no_device, driver (out of memory included).
  static Result<GpuProblem> create(int index, const AttentionBackward& problem, float scale, const reference::HostInputs& inputs);

  [[nodiscard]] const DeviceFacts& facts() const { return context_.facts(); }
  [[nodiscard]] CUstream_st* stream() const { return stream_.get(); }

  /// Allocates the workspace of `kernel`, and keeps the kernel for launch().
  Result<void> use(const AttentionBackwardKernel& kernel);
  /// Fills outputs and workspace with bits that are NaN in every type.
  Result<void> poison();
  /// Enqueues the backward.
  Result<void> launch();
  Result<void> synchronize() const { return stream_.synchronize(); }
  Result<reference::HostGradients> download() const;

  /// poison, launch, download.
  Result<reference::HostGradients> run();

 private:
  GpuProblem(DeviceContext context, Stream stream, const AttentionBackward& problem)
      : context_(std::move(context)), stream_(std::move(stream)), problem_(problem) {}
  Result<void> upload(float scale, const reference::HostInputs& inputs);

  DeviceContext context_;  // before what lives in it
  Stream stream_;
  AttentionBackward problem_;
  DeviceBuffer q_, k_, v_, o_, d_o_, lse_, dq_, dk_, dv_, workspace_;
  AttentionBackwardTensors tensors_;
  std::optional<AttentionBackwardKernel> kernel_;
};

}  // namespace ordo::cli
