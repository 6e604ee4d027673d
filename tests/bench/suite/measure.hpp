// Sustained time of a launch, with the clocks and watts it was measured at.
#pragma once

#include <optional>

#include "tests/bench/suite/device.hpp"

namespace ordo::bench {

struct Timing {
  double ms_median = 0;  ///< of one launch; median over batches of back-to-back launches
  double ms_min = 0;
  std::optional<double> clock_mhz;  ///< of the SMs; mean over the middle half of the measured time
  std::optional<double> watts;
};

/// Launches for `warm_ms`, then for about `measure_ms` under CUDA events, with no pause in between: the card is limited by power
/// and is 5 .. 15 % faster just after it was idle.
Result<Timing> measure(Subject& subject, const std::optional<cli::Nvml>& nvml, double warm_ms, double measure_ms);

}  // namespace ordo::bench
