// What an AttentionBackwardKernel holds: shared by the engine, which makes it, and the launch.
#pragma once

#include <vector>

#include "ordo/ordo.hpp"
#include "runtime/arrival_tables.hpp"
#include "runtime/kernel_set.hpp"

namespace ordo {

struct AttentionBackwardKernel::Impl {
  Plan plan;
  Flavour flavour = Flavour::normal;
  std::vector<KernelReport> reports;  ///< the main kernel first, as in `kernels`
  KernelSet kernels;
  ArrivalTables arrival;  ///< empty for other schedules
};

}  // namespace ordo
