// A plan in the task model of the simulator: its orders, its workers, and what the cost model says a task takes.
#pragma once

#include "codegen/schedule/simulator.hpp"
#include "ordo/plan.hpp"
#include "ordo/problem.hpp"
#include "ordo/target.hpp"

namespace ordo::cost {

/// Simulates a plan that fits the problem; times are SM clocks. With `record` also the intervals, for charts. Errors:
/// check_fit's, and more than 2^24 tasks.
ORDO_API Result<SimulationReport> simulate_plan(const AttentionBackward& problem, const Plan& plan, const Target& target,
                                                bool record = false);

}  // namespace ordo::cost
