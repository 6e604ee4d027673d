// Predicted time and registers of a plan on a problem and a target.
#pragma once

#include "codegen/schedule/costs.hpp"
#include "ordo/plan.hpp"
#include "ordo/problem.hpp"
#include "ordo/target.hpp"

namespace ordo::cost {

struct Prediction {
  double ms = 0;            ///< the whole backward
  double stall_ms = 0;      ///< of it: waiting for turns to add into dQ
  double imbalance_ms = 0;  ///< of it: workers without work while others finish (wave quantisation and tails)
  double auxiliary_ms = 0;  ///< of it: preprocess, convert and launches
  bool simulated = false;   ///< stalls and balance come from the event simulation, else from closed forms
};

/// Only for pairs that check_fit accepts. Pure; at most about a millisecond for any size.
ORDO_API Prediction predict(const AttentionBackward& problem, const Plan& plan, const Target& target);

/// The tasks of a plan's schedule in SM clocks: what its simulation is told. Whole numbers, whatever made the plan's arrival.
ORDO_API SimulationCosts task_clocks(const Plan& plan, const Target& target);

/// Registers of a consumer thread at the widest point: accumulators of S, dP, dK, dV, and what stays live beside them.
ORDO_API int predict_registers(const Plan& plan);

}  // namespace ordo::cost
