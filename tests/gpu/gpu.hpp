// What every GPU test needs: the device, an engine, the reference kernels, a watchdog, and one launch with everything poisoned.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ordo/ordo.hpp"
#include "runtime/device.hpp"
#include "runtime/driver.hpp"
#include "tests/gpu/deadline.hpp"
#include "tests/gpu/gpu_problem.hpp"
#include "tests/gpu/prepare.hpp"

namespace ordo::test {

/// A kernel of the tests that keeps SMs busy, see ref_disturb.
struct Disturbance {
  unsigned blocks = 1;
  unsigned threads = 128;
  unsigned shared_bytes = 1024;  ///< a block; at least 128
  long long clocks = 0;
};

/// The device and what belongs to it. Never destroyed: the driver may go before static objects do.
struct Gpu {
  const Driver* driver;
  DeviceContext context;
  Engine engine;
  ReferenceKernels reference;
  Stream stream;
  std::array<Stream, 2> others;  ///< for work beside the kernels under test
  DeviceBuffer sink;

  [[nodiscard]] const Target& target() const { return engine.target(); }
  Result<void> disturb(const Disturbance& disturbance, const Stream& on);
};

/// The first device, or null, with one line "skipped: no GPU" the first time. Anything but a missing device fails the test.
Gpu* gpu();

/// Ends the process (status 4) when the context is lost: no later test could say anything.
void check_context(Gpu& device, const std::string& what);

inline void must(const Result<void>& result) {
  if (!result) FAIL(result.error().message);
}
template <class T>
T must(Result<T> result) {
  if (!result) FAIL(result.error().message);
  return *std::move(result);
}

/// One problem with the kernel of one plan and a workspace.
class Run {
 public:
  static Result<Run> create(Gpu& device, const GpuProblem& problem, const AttentionBackwardKernel& kernel);

  /// Fills the workspace with noise of this seed (0: all bits set), poisons the outputs, and enqueues the backward on `stream`.
  Result<void> enqueue(GpuProblem& problem, std::uint64_t noise, const Stream& stream);
  /// The same on the device's stream; returns when it is done.
  Result<void> operator()(GpuProblem& problem, std::uint64_t noise);

  [[nodiscard]] const AttentionBackwardKernel& kernel() const { return kernel_; }
  [[nodiscard]] DeviceBuffer& workspace() { return workspace_; }

 private:
  Run(Gpu& device, AttentionBackwardKernel kernel) : device_(&device), kernel_(std::move(kernel)) {}
  Gpu* device_;
  AttentionBackwardKernel kernel_;
  DeviceBuffer workspace_;
};

/// "batch=1 seqlen_q=... / schedule=..." in one line, for messages.
std::string describe(const AttentionBackward& problem, const Plan& plan);

/// FNV-1a over the bytes of dq, dk and dv.
Result<std::uint64_t> hash_outputs(const GpuProblem& problem);

}  // namespace ordo::test
