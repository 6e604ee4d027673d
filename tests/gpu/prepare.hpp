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

/// Fills the cache that $ORDO_CACHE names with the kernels of plans, so that a machine lent for minutes need not compile them.
/// Needs no GPU.
void precompile(const Target& target, std::span<const Plan> plans);

}  // namespace ordo::test
