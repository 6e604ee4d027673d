// Runs a plan some times, on a GPU or on the CPU, and compares the bits.
#pragma once

#include <optional>
#include <string>

#include "cli/options.hpp"
#include "cli/report.hpp"
#include "runtime/device.hpp"
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

/// o and lse where `inputs` has them not: by the generated forward on a GPU (`device` its number), in fp64 without one.
Result<void> complete_inputs(const Options& options, std::optional<int> device, const AttentionBackward& problem, float scale,
                             reference::HostInputs& inputs);

/// The device's context, for a verb that has a kernel: declared before it, so that the kernel frees in a living one. Nothing
/// without a device.
Result<std::optional<DeviceContext>> hold_context(std::optional<int> device);

/// Runs `plan` `repeats` times (at least once). On a GPU (`device` its number) `kernel` is launched, outputs and workspace
/// poisoned before each launch; without one the CPU executor runs, with another number of threads each time (`threads` first; 0:
/// all).
Result<Execution> execute_repeatedly(std::optional<int> device, const Choice& made, const AttentionBackwardKernel* kernel,
                                     float scale, const reference::HostInputs& inputs, int repeats, int threads);

/// The comparison with fp64, with a progress bar. A GPU's tensor cores may spread a NaN inside a tile.
reference::CheckResult compare_with_fp64(const Choice& made, float scale, const reference::HostInputs& inputs,
                                         const reference::HostGradients& gradients, bool on_gpu);

/// What Accumulate::exact rests on.
struct ExactReport {
  double probability_sum = 0;    ///< reference::largest_probability_sum
  double bound_over_actual = 0;  ///< reference::exact_bound_over_actual
  [[nodiscard]] bool safe() const { return probability_sum < 2; }
};

/// For plans that accumulate exactly; nullopt for others.
std::optional<ExactReport> report_exact(const Choice& made, float scale, const reference::HostInputs& inputs,
                                        const reference::HostGradients& gradients);

/// {probability_sum, bound_over_actual}; null where not finite, and for nullopt.
Json exact_json(const std::optional<ExactReport>& exact);
void print_exact(const std::optional<ExactReport>& exact);

/// Compiles the plan's kernels, or takes them from the cache.
Result<AttentionBackwardKernel> prepare_kernel(const Options& options, const Choice& made, Flavour flavour = Flavour::normal);

}  // namespace ordo::cli
