// How long a launch takes, rested and hot.
#pragma once

#include <functional>
#include <optional>

#include "runtime/device.hpp"
#include "runtime/measure/nvml.hpp"

namespace ordo::bench {

using Launch = std::function<Result<void>(CUstream_st* stream)>;

struct GemmTiming {
  double burst_ms = 0;              ///< median of 7: 25 ms of rest, then three launches
  double steady_ms = 0;             ///< median over batches of 10 ms, after `warm_seconds` of launches; 0: not measured
  double clock_mhz = 0, watts = 0;  ///< means while steady_ms was measured
};

/// Errors: of launches and events.
Result<double> burst_ms(const Launch& launch, const Stream& stream);
Result<void> measure_steady(const Launch& launch, const Stream& stream, const std::optional<measure::Nvml>& nvml,
                            double warm_seconds, double seconds, GemmTiming& timing);

}  // namespace ordo::bench
