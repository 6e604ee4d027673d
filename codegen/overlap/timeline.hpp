// Event simulation of a StepSchedule: when each rank computes, waits, sends and receives.
//
// A rank computes its steps one after another. Where slices arrive, a step starts when its chunk is there; where partial sums are
// added, a step that adds ends when the last of them is. Each GPU has one engine that sends and one that receives; a transfer
// needs both at once, and a rank's transfers leave in the order of its queue. Pure and thread-safe; times are seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "codegen/overlap/steps.hpp"
#include "ordo/error.hpp"

namespace ordo::overlap {

struct TimelineCosts {
  std::function<double(int rank, const Step& step)> compute;  ///< seconds of a step alone
  double bytes_per_second = 1;                                ///< of one engine
  double transfer_latency = 0;                                ///< added to every transfer
  std::vector<double> start;                                  ///< by rank: when it comes; empty: all at 0
  double jitter = 0;                                          ///< steps and transfers take up to that share longer, at random
  std::uint64_t seed = 0;
};

enum class Lane { compute, stall, send, receive };

/// What a rank does for a while. `index`: of the step (compute, stall) or the transfer.
struct Span {
  int rank = 0;
  Lane lane = Lane::compute;
  int index = 0;
  double start = 0, end = 0;
};

struct RankTime {
  double compute = 0, stall = 0, send = 0, receive = 0, end = 0;
};

struct Timeline {
  double makespan = 0;
  double compute = 0;        ///< the longest rank's steps alone
  double communication = 0;  ///< the busiest engine's transfers alone
  double exposed = 0;        ///< makespan - compute, less what the last rank's coming explains
  double hidden = 1;         ///< share of the communication that no rank waits for: 1 - exposed / communication, within 0 .. 1
  double sequential = 0;     ///< communication, then compute (or the other way round)
  std::vector<RankTime> ranks;
  std::vector<Span> spans;  ///< rank by rank, in time order
};

/// Errors: invalid_plan, with the proof's first violation, for a schedule that prove_steps refuses; invalid_argument (costs that
/// are negative, not finite, or miss a rank).
ORDO_API Result<Timeline> simulate_steps(const StepSchedule& schedule, const TimelineCosts& costs);

/// Two rows a rank (compute and stalls; transfers out and in) over time, as one self-contained SVG document, with hover texts.
ORDO_API std::string render_timeline_svg(const StepSchedule& schedule, const Timeline& timeline, const std::string& title);

/// The same for a terminal: one row of `columns` cells for each, and each rank's times.
ORDO_API std::string render_timeline_text(const StepSchedule& schedule, const Timeline& timeline, int columns = 80);

}  // namespace ordo::overlap
