// One tuning: measures of a problem's plans what is not measured yet.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ordo/tuner.hpp"
#include "runtime/tuner/log.hpp"
#include "runtime/tuner/measurer.hpp"

namespace ordo::tuner {

struct Job {
  AttentionBackward problem;
  std::vector<Plan> plans;
  std::vector<std::string> kernels;  ///< digest of each plan's generated sources
  MeasurementPolicy policy;
};

struct Outcome {
  int measured = 0, reused = 0;  ///< rounds
  bool stopped = false;
  std::vector<std::string> failed;  ///< plans that could not be measured, and why
  std::vector<std::string> notes;
};

/// Holds the device's lock while it measures; each round is in the log before the next begins. `progress` as in Tuner::tune.
/// Errors: nothing can be measured; the device is lost.
Result<Outcome> measure_missing(Measurer& measurer, Log& log, const Job& job,
                                const std::function<bool(const TuneProgress&)>& progress);

}  // namespace ordo::tuner
