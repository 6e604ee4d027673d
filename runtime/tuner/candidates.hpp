// What the tuner measures for a problem: the planner's candidates and their variants, pruned by the cost model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ordo/plan.hpp"

namespace ordo::tuner {

struct Pruning {
  int most = 12;            ///< candidates in all, the planner's choice included
  double slowest = 1.3;     ///< predicted time over the best predicted one
  std::string fingerprint;  ///< not empty: only plans of this order fingerprint
};

/// Best predicted first, but the planner's choice before all others; no two alike; each fits the problem. To the planner's own
/// candidates come every schedule and cluster size that a kernel exists for, the same with heads dispatched in larger and
/// smaller groups, and with the shape baked in where that saves spills or instructions of the mask; where the fingerprint is
/// fixed, also other stages and staging buffers. Pure: the same arguments give the same list on any machine. `request` is what
/// the caller fixed: its schedule and accumulation hold for all candidates; static_shape for all if it is set. Errors: those of
/// make_plan; invalid_plan when no plan has the fingerprint.
ORDO_API Result<std::vector<Candidate>> candidates(const AttentionBackward& problem, const Target& target,
                                                   const PlanRequest& request, const Pruning& pruning = {});

}  // namespace ordo::tuner
