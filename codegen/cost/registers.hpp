// Registers of a consumer thread of the main kernel, and whether they fit.
#pragma once

#include "ordo/plan.hpp"

namespace ordo::cost {

/// Where they go. `total` is what ptxas states for the consumer path alone (generate_probe), spilled values counted.
struct Registers {
  int accumulators = 0;  ///< dK, dV, S and dP
  int fragments = 0;     ///< row statistics in flight, or P and dS rounded
  int schedule = 0;      ///< schedule_state consumer: the walk
  int shape = 0;         ///< mask bounds, lengths and strides that are run-time parameters, scales of `exact`
  int addressing = 0;    ///< descriptors, barriers, thread coordinates, loop state
  int total = 0;
  int budget = 0;       ///< setmaxnreg of a consumer
  int spill_bytes = 0;  ///< stores and loads a thread of the main kernel, consumer and producer; 0: none
};

/// Only for valid plans. Pure.
ORDO_API Registers predict_registers(const Plan& plan);

}  // namespace ordo::cost
