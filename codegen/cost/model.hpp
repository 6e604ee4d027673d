// Predicted time of a plan on a problem and a target. See README.md in this folder.
#pragma once

#include "codegen/cost/constants.hpp"
#include "codegen/cost/registers.hpp"
#include "codegen/cost/step.hpp"
#include "codegen/schedule/costs.hpp"
#include "ordo/plan.hpp"
#include "ordo/problem.hpp"
#include "ordo/target.hpp"

namespace ordo {
struct ArrivalTable;
}

namespace ordo::cost {

struct Prediction {
  double ms = 0;            ///< the whole backward
  double stall_ms = 0;      ///< of it: waiting for turns to add into dQ
  double imbalance_ms = 0;  ///< of it: workers without work while others finish (wave quantisation and tails)
  double auxiliary_ms = 0;  ///< of it: preprocess, convert and launches
  bool simulated = false;   ///< every task was timed; else some were extrapolated
  StepClocks step;          ///< of a CTA
  double step_clocks = 0;   ///< what a step without masking takes
};

/// Only for pairs that check_fit accepts. Pure; about a millisecond, for any size, but that a plan which reads a table of visits
/// has to have it made: `table` is that table where the caller has it already.
ORDO_API Prediction predict(const AttentionBackward& problem, const Plan& plan, const Target& target, const Constants& constants,
                            const ArrivalTable* table = nullptr);

/// The same with the constants shipped for the target.
ORDO_API Prediction predict(const AttentionBackward& problem, const Plan& plan, const Target& target);

/// The tasks of a plan's schedule in SM clocks: what its simulation is told. Whole numbers, and of the constants that are
/// shipped, so that the orders made by them do not follow a calibration.
ORDO_API SimulationCosts task_clocks(const Plan& plan, const Target& target);

}  // namespace ordo::cost
