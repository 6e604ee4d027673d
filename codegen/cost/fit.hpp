// Constants of the cost model from measured times.
#pragma once

#include <string>
#include <vector>

#include "codegen/cost/measurements.hpp"

namespace ordo::cost {

struct Fit {
  Constants constants;
  std::size_t rows = 0;
  double median_error = 0, worst_error = 0;  ///< |predicted / measured - 1|
};

/// Least squares (Levenberg-Marquardt) on the logarithms of the times, from `start`. What the rows say nothing about keeps its
/// value of `start`: each constant is held to it by a prior, loosely where it is a property of the kernel, tightly where it is a
/// small correction. Within a problem differences between plans count more than the common level, because the planner compares
/// plans. `origin` and the target's name go into the result. Pure; seconds. Errors: no rows.
ORDO_API Result<Fit> fit(const std::vector<Measurement>& rows, const Target& target, const Constants& start,
                         const std::string& origin);

}  // namespace ordo::cost
