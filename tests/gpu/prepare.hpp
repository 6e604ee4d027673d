// Compiles many plans at once.
#pragma once

#include <map>
#include <span>
#include <string>

#include "ordo/ordo.hpp"

namespace ordo::test {

using Kernels = std::map<std::string, AttentionBackwardKernel>;  ///< by the plan's text

/// Compiles the plans that differ, on all processors. A plan that fails is left out and its error printed; `failures` counts
/// them.
Kernels prepare_all(Engine& engine, std::span<const Plan> plans, int& failures);

}  // namespace ordo::test
