// What an OverlapGemmKernel holds: shared by the engine, which makes it, and the launch.
#pragma once

#include "ordo/overlap_kernel.hpp"
#include "runtime/kernel_set.hpp"

namespace ordo {

struct OverlapGemmKernel::Impl {
  OverlapPlan plan;
  KernelReport report;
  KernelSet kernels;
};

}  // namespace ordo
