// Event simulation of a schedule: tasks, the order of adds, and the time they take together.
//
// One task (KV tile i, Q tile j) computes for c and then adds its partial dQ for r. A worker does the tasks of its item one after
// another; an add starts when the task's turn has come, `handover` after the add before it ended. With `staging` 0 the worker
// adds itself, so one that comes too early stalls. With more, a store warp beside it waits and adds, and the worker stalls only
// while as many of its tiles are staged. Items are dispatched in order to the worker that is free first (the lowest number if
// several are). The same definitions drive the kernels: templates/schedule/schedule.cuh.
//
// Everything here is pure and thread-safe. Times have the unit of the costs that were given.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "codegen/schedule/arrival.hpp"
#include "codegen/schedule/costs.hpp"
#include "codegen/schedule/tiles.hpp"
#include "ordo/error.hpp"
#include "ordo/problem.hpp"
#include "templates/schedule/schedule.cuh"

namespace ordo {

/// A problem by its tile counts: what `ordo simulate` takes. Causal masks align to the bottom right.
struct SimulationRequest {
  schedule::Kind schedule = schedule::Kind::ascending;
  Mask mask = Mask::full;
  std::int64_t kv_tiles = 1;
  std::int64_t q_tiles = 1;
  std::int64_t heads = 1;     ///< query heads in total
  std::int64_t kv_heads = 0;  ///< divides heads; 0: as many as heads. A worker's KV tile visits all query heads of its KV head
  std::int64_t workers = 1;
  std::int64_t head_group = 1;  ///< KV heads dispatched together
  std::int64_t shift_stride = 1;
  ArrivalVisits visits = ArrivalVisits::up;  ///< arrival only
  SimulationCosts costs;
};

/// `wait`: with staging, the store warp waits for its turn, which stalls the worker only if its tiles pile up.
enum class Activity { compute, reduce, stall, wait };

/// What a worker does for a while, and for which task.
struct Interval {
  int worker = 0;
  Activity activity = Activity::compute;
  int head = 0;
  int kv = 0;  ///< KV tile (unit)
  int q = 0;   ///< Q tile
  double start = 0;
  double end = 0;
};

struct WorkerTime {
  double busy = 0;   ///< computing, and without staging adding too
  double stall = 0;  ///< not going on because an add's turn has not come (or, with staging, because the store warp is behind);
                     ///< idle time after its last item is neither
  double wait = 0;   ///< whoever adds: a tile is staged and the adder free, but its turn has not come. Without staging = stall
};

struct SimulationReport {
  double makespan = 0;
  bool adds_apart = false;  ///< simulated with staging: adds run beside the computing
  /// max(work_bound, chain_bound): no schedule that keeps a KV tile on one worker is faster.
  double lower_bound = 0;
  double work_bound = 0;   ///< max(all work / workers, the longest KV tile)
  double chain_bound = 0;  ///< the longest chain of adds into one dQ tile, after the shortest compute before it
  double stall_total = 0;
  double wait_total = 0;
  std::vector<WorkerTime> workers;
  /// Computes and adds, in time order, that end with the makespan: each starts when the one before it ends, or hand-over later.
  std::vector<Interval> critical_path;
  std::vector<Interval> intervals;  ///< everything, worker by worker in time order

  /// What was proved before the simulation began (see prove_schedule): a report exists only for schedules that pass.
  struct Proof {
    std::int64_t tasks = 0;         ///< live tiles, each visited exactly once
    std::int64_t items = 0;         ///< dispatched, each exactly once
    std::int64_t resident_set = 0;  ///< most items that may wait for each other; at most `workers`
    std::int64_t adds = 0;          ///< longest chain of adds into one dQ tile, in a gapless order
  } proof;
};

/// Names as `ordo simulate --schedule` takes them: those of plans.
ORDO_API Result<schedule::Kind> parse_schedule_kind(std::string_view text);
ORDO_API std::string_view to_string(Activity activity);

/// Simulates a problem given by tile counts. Errors: sizes or costs out of range, a schedule for the other mask, more than 2^22
/// tasks, or a schedule that the proof refuses for so few workers (the message names the tile).
ORDO_API Result<SimulationReport> simulate(const SimulationRequest& request);

/// The same for any geometry, e.g. make_geometry()'s.
struct Simulation {
  schedule::Geometry geometry{};
  std::int64_t workers = 1;
  const ArrivalTable* table = nullptr;            ///< arrival's; null for other kinds
  std::function<TileKind(int unit, int q)> mask;  ///< empty: the geometry's own
  SimulationCosts costs;
  bool record = true;  ///< fill critical_path and intervals; without, only the totals
  bool prove = true;   ///< false: the caller has proved the geometry; `proof` is then left empty
};
Result<SimulationReport> simulate(const Simulation& simulation);

/// Live tiles of one query head.
std::int64_t live_tiles(const TileMap& tiles);

}  // namespace ordo
