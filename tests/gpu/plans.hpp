// Plans that tests and benchmarks ask for by schedule, accumulation and cluster, beyond the planner's own choice.
#pragma once

#include <vector>

#include "ordo/plan.hpp"
#include "ordo/problem.hpp"
#include "ordo/target.hpp"

namespace ordo::test {

/// The schedules that exist for a mask: ascending, descending, and shift or alternate.
std::vector<Schedule> schedules_of(Mask mask);

/// The planner's plan for this schedule and accumulation, in clusters of `cluster`. Where the planner offers no such cluster (it
/// keeps to one for `atomic` and `exact`), its plan for `ordered` is taken over, or the cluster alone is changed.
Result<Plan> plan_with(const AttentionBackward& problem, const Target& target, Schedule schedule, Accumulate accumulate,
                       int cluster, bool static_shape = false);

/// Every schedule of the problem's mask in every cluster size that exists, the planner's choice first; no two alike.
Result<std::vector<Plan>> all_plans(const AttentionBackward& problem, const Target& target, Accumulate accumulate,
                                    bool static_shape = false);

}  // namespace ordo::test
