// Plans that tests and benchmarks ask for by schedule, accumulation and cluster, beyond the planner's own choice.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "codegen/schedule/arrival.hpp"
#include "ordo/plan.hpp"
#include "ordo/problem.hpp"
#include "ordo/target.hpp"

namespace ordo::test {

inline const Plan* find_cluster(const PlanChoice& choice, int cluster) {
  const auto it = std::find_if(choice.candidates.begin(), choice.candidates.end(),
                               [&](const Candidate& candidate) { return candidate.plan.cluster == cluster; });
  return it == choice.candidates.end() ? nullptr : &it->plan;
}

inline Result<Plan> checked(const AttentionBackward& problem, const Plan& plan) {
  if (auto fits = check_fit(problem, plan); !fits) return fits.error();
  return plan;
}

/// Levels of a factor that schedule_of() turns into schedules of any mask; masks with fewer have some twice.
inline constexpr int kScheduleLevels = 5;
inline Schedule schedule_of(Mask mask, int level) {
  const std::vector<Schedule> schedules = schedules_of(mask);
  return schedules[static_cast<std::size_t>(level) % schedules.size()];
}

/// The planner's plan for this schedule and accumulation, in clusters of `cluster`. Where the planner offers no such cluster (it
/// keeps to one for `atomic` and `exact`), its plan for `ordered` is taken over, or the cluster alone is changed.
inline Result<Plan> plan_with(const AttentionBackward& problem, const Target& target, Schedule schedule, Accumulate accumulate,
                              int cluster, bool static_shape = false) {
  PlanRequest request{.schedule = schedule, .accumulate = accumulate, .static_shape = static_shape};
  auto choice = make_plan(problem, target, request);
  if (!choice) return choice.error();
  if (const Plan* plan = find_cluster(*choice, cluster)) return *plan;
  request.accumulate = Accumulate::ordered;
  if (auto ordered = make_plan(problem, target, request)) {
    if (const Plan* found = find_cluster(*ordered, cluster)) {
      Plan plan = *found;
      plan.accumulate = accumulate;
      plan.dq_buffers = 1;
      return checked(problem, plan);
    }
  }
  Plan plan = choice->plan;
  plan.workers = std::max(1, plan.workers * plan.cluster / cluster);
  plan.head_group = std::min(plan.head_group, plan.workers);  // walks that wait for each other must be resident together
  plan.cluster = cluster;
  plan.dq_buffers = 1;
  auto hashed = with_arrival_hash(problem, plan);
  if (!hashed) return hashed.error();
  return checked(problem, *hashed);
}

/// Every schedule of the problem's mask in every cluster size that exists, the planner's choice first; no two alike.
inline Result<std::vector<Plan>> all_plans(const AttentionBackward& problem, const Target& target, Accumulate accumulate,
                                           bool static_shape = false) {
  auto choice = make_plan(problem, target, {.schedule = {}, .accumulate = accumulate, .static_shape = static_shape});
  if (!choice) return choice.error();
  std::vector<Plan> plans{choice->plan};
  for (const Schedule schedule : schedules_of(problem.mask)) {
    for (const int cluster : {2, 1}) {
      if (cluster == 2 && problem.head_dim != 128) continue;
      auto plan = plan_with(problem, target, schedule, accumulate, cluster, static_shape);
      if (!plan) continue;  // alternate, for one, has none where a walk is longer than the device is wide
      if (std::find(plans.begin(), plans.end(), *plan) == plans.end()) plans.push_back(*std::move(plan));
    }
  }
  return plans;
}

}  // namespace ordo::test
