// Runs a plan some times, on a GPU or on the CPU, and compares the bits.
#pragma once

#include <optional>
#include <string>

#include "cli/options.hpp"
#include "runtime/reference/attention.hpp"

namespace ordo::cli {

struct Execution {
  std::string device;  ///< "cpu (8 threads)" or the GPU's name
  reference::HostGradients gradients;
  int repeats = 0;
  bool same_bits = false;  ///< all repeats gave the bits of the first
};

/// Refuses (unsupported) a problem whose tensors on the host, with the sums and the fp64 reference beside them, exceed the
/// machine's memory: the system would end the process half-way.
Result<void> check_memory(const AttentionBackward& problem);

/// Runs `plan` `repeats` times (at least once). On a GPU (`device` its number) `kernel` is launched, outputs and workspace
/// poisoned before each launch; without one the CPU executor runs, with another number of threads each time (`threads` first; 0:
/// all).
Result<Execution> execute_repeatedly(std::optional<int> device, const Choice& made, const AttentionBackwardKernel* kernel,
                                     float scale, const reference::HostInputs& inputs, int repeats, int threads);

/// The comparison with fp64, with a progress bar. A GPU's tensor cores may spread a NaN inside a tile.
reference::CheckResult compare_with_fp64(const Choice& made, float scale, const reference::HostInputs& inputs,
                                         const reference::HostGradients& gradients, bool on_gpu);

/// Compiles the plan's kernels, or takes them from the cache. nullopt, with a note, where NVRTC is missing and `optional`.
Result<std::optional<AttentionBackwardKernel>> prepare_kernel(const Options& options, const Choice& made, bool optional);

}  // namespace ordo::cli
