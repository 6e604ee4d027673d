// The device of a benchmark and what belongs to it.
#pragma once

#include <optional>

#include "cli/nvml.hpp"
#include "ordo/ordo.hpp"
#include "runtime/device.hpp"
#include "runtime/driver.hpp"
#include "tests/gpu/gpu_problem.hpp"

namespace ordo::bench {

/// Everything but what a case needs of its own. Members are destroyed in reverse: the context last.
struct Device {
  const Driver* driver;
  DeviceContext context;
  Engine engine;
  test::ReferenceKernels reference;
  Stream stream;
  std::optional<cli::Nvml> nvml;  ///< absent: clocks and watts are not reported

  /// `cache`: file for compiled kernels; empty: memory only. Errors: no_device when there is none.
  static Result<Device> open(const std::string& cache);
};

/// A problem on the device with a kernel and its workspace.
class Subject {
 public:
  static Result<Subject> create(Device& device, test::GpuProblem& problem, const AttentionBackwardKernel& kernel);
  /// Enqueues one backward.
  Result<void> launch() { return kernel_.launch(problem_->problem(), tensors_, workspace_.data(), workspace_.bytes(), stream()); }
  /// Soils the workspace with `byte`, poisons the outputs, launches and waits.
  Result<void> launch_poisoned(std::uint8_t byte);
  [[nodiscard]] test::GpuProblem& problem() { return *problem_; }
  [[nodiscard]] CUstream_st* stream() const { return stream_->get(); }

 private:
  Subject(test::GpuProblem& problem, AttentionBackwardKernel kernel, const Stream& stream)
      : problem_(&problem), kernel_(std::move(kernel)), tensors_(problem.tensors()), stream_(&stream) {}
  test::GpuProblem* problem_;
  AttentionBackwardKernel kernel_;
  AttentionBackwardTensors tensors_;
  const Stream* stream_;
  DeviceBuffer workspace_;
};

}  // namespace ordo::bench
