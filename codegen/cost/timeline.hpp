// When each cluster of the main kernel is done, from who waits for whom: the makespan of the cost model.
#pragma once

#include <cstdint>
#include <vector>

#include "templates/schedule/schedule.cuh"

namespace ordo::cost {

/// Times of any one unit.
struct StepTimes {
  double compute = 1;  ///< consumers: one Q tile
  double masked = 0;   ///< on top (or below 0), for a tile that the mask or the end of a sequence crosses
  double item = 0;     ///< an item besides its steps: K and V loaded, pipeline filled, dK and dV stored
  double add = 0;      ///< the adding warp: one dQ tile
  double hop = 0;      ///< from the end of an add to the start of the next unit's into the same tile
};

struct Launch {
  schedule::Geometry geometry{};
  int workers = 1;
  bool ordered = true;  ///< adds wait for their turn
  /// Finished dQ tiles that wait for the adding warp while the consumers go on; 0: a consumer waits until its tile is added, as
  /// in the task model of `simulate`.
  int buffers = 0;
  /// Kernels that read their visits from a table (schedule.cuh): its words, else null. Must outlive the call.
  const unsigned* table = nullptr;
  /// By unit and Q tile, where the geometry does not know the mask: 1 where it crosses the tile.
  std::vector<std::uint8_t> edges = {};
};

struct Timeline {
  double makespan = 0;
  double work = 0;     ///< what a worker computes, in the mean
  double waiting = 0;  ///< what a worker waits for turns, in the mean
  bool whole = true;   ///< every task was timed; else groups of heads were extrapolated, or tiles taken together
};

/// The add order fixes a DAG, so no event queue is needed: each task starts when its worker, its buffer and the add before it
/// allow, and items are taken in dispatch order by the worker that is free first. At most `most_tasks` tasks are timed: of more
/// walks the first groups, continued at the rate of the last half; of longer sequences coarser tiles of the same shape, but where
/// there is a table, which is walked as it is. With buffers 0 and every task timed, the makespan is simulate()'s. Only for
/// geometries that prove_schedule accepts. Pure.
Timeline time_launch(const Launch& launch, const StepTimes& times, double most_tasks);

}  // namespace ordo::cost
