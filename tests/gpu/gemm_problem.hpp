// What the tests of OverlapGemm share.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runtime/measure/overlap_inputs.hpp"

namespace ordo::test {

using measure::DeviceMatrix;
using measure::GemmReference;
using measure::HelperKernels;
using measure::operand_of;

/// The helpers' kernels, compiled in this process.
Result<HelperKernels> compile_helpers();

/// The kernels of `plans`, in their order, compiled on all processors. One that fails is left out, its error printed and counted.
std::vector<std::optional<OverlapGemmKernel>> prepare_overlap(Engine& engine, std::span<const OverlapPlan> plans, int& failures);

}  // namespace ordo::test
