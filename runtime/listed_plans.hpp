// From lists of problems to plans, and to what a cache lacks of their kernels.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cache/store.hpp"
#include "ordo/plan.hpp"
#include "ordo/shape_list.hpp"
#include "ordo/target.hpp"

namespace ordo {

/// Chooses a plan, as Engine::plan() does.
using PlanChooser = std::function<Result<PlanChoice>(const AttentionBackward&, const PlanRequest&)>;

/// The plans that a list comes down to: those it names, and what `choose` takes for each of its problems; with `candidates` above
/// 1 so many of its best. Each once, in the list's order. Errors: those of `choose`, with the problem.
ORDO_API Result<std::vector<Plan>> plans_of(const ShapeList& list, const PlanChooser& choose, std::size_t candidates = 1);

struct MissingKernel {
  std::string name;  ///< "main", ...
  std::string key;
  std::string plan;  ///< the first that needs it
};

struct Completeness {
  std::vector<std::pair<std::string, std::string>> kernels;  ///< key and the first plan that needs it; each key once
  std::vector<MissingKernel> missing;                        ///< or damaged
};

/// Looks every kernel of `plans` and `overlap_plans` up in `stores`, by `toolchain`, and checks its bytes; compiles nothing.
/// Errors: an invalid plan, a store that cannot be read.
ORDO_API Result<Completeness> check_completeness(const std::vector<cache::Store>& stores, const std::vector<Plan>& plans,
                                                 const std::vector<OverlapPlan>& overlap_plans, const Target& target,
                                                 const std::string& toolchain);

}  // namespace ordo
