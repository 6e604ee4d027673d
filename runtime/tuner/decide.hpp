// From measured times to one plan. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ordo/plan.hpp"
#include "runtime/measure/measure.hpp"

namespace ordo::tuner {

/// A plan with all its rounds.
struct Measured {
  Plan plan;
  std::vector<measure::Sample> rounds;  ///< not empty

  [[nodiscard]] double ms() const;      ///< median of the rounds' medians
  [[nodiscard]] double spread() const;  ///< largest over smallest median of the rounds, less 1
};

struct Decision {
  std::size_t winner = 0;            ///< of the given list
  std::vector<std::size_t> ranking;  ///< fastest first
  std::string reason;                ///< one sentence
};

/// The fastest plan wins only if it leads every other by more than `margin` (0.01: one in a hundred). Among plans within the
/// margin of the fastest, `preferred` wins if it is one of them, else the first by canonical text: what chance decides from one
/// run to the next must not change the choice. `measured` is not empty.
ORDO_API Decision decide(const std::vector<Measured>& measured, const Plan& preferred, double margin);

}  // namespace ordo::tuner
