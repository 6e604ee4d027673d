// Event simulation of a schedule: tasks, the order of adds, and the time they take together.
//
// One task (KV tile i, Q tile j) computes for c and then adds its partial dQ for r. A worker does the tasks of its item one after
// another; an add starts when the task's turn has come, `handover` after the add before it ended, so a worker that comes too
// early stalls. Items are dispatched in order to the worker that is free first (the lowest number if several are). The same
// definitions drive the kernels: templates/schedule/schedule.cuh.
//
// Everything here is pure and thread-safe. Times have the unit of the costs that were given.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ordo/error.hpp"
#include "ordo/problem.hpp"
#include "templates/schedule/schedule.cuh"

namespace ordo {

/// Time to compute one tile, by how much of it is visible.
struct TileCosts {
  double full = 1;
  double diagonal = 1;  ///< crossed by the causal boundary
  double partial = 1;   ///< cut off by the end of Q or K, and not diagonal
};

struct SimulationCosts {
  TileCosts compute;
  double reduce = 1;    ///< one add into a dQ tile; adds into one tile exclude each other
  double handover = 0;  ///< from the end of an add to the earliest start of the next into the same tile
};

/// A problem by its tile counts: what `ordo simulate` takes. Causal masks align to the bottom right.
struct SimulationRequest {
  schedule::Kind schedule = schedule::Kind::ascending;
  Mask mask = Mask::full;
  std::int64_t kv_tiles = 1;
  std::int64_t q_tiles = 1;
  std::int64_t heads = 1;  ///< in total
  std::int64_t workers = 1;
  std::int64_t head_group = 1;  ///< heads dispatched together
  std::int64_t shift_stride = 1;
  SimulationCosts costs;
};

enum class Activity { compute, reduce, stall };

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
  double busy = 0;   ///< computing or adding
  double stall = 0;  ///< waiting for its turn to add; idle time after its last item is neither
};

struct SimulationReport {
  double makespan = 0;
  /// max(work_bound, chain_bound): no schedule that keeps a KV tile on one worker is faster.
  double lower_bound = 0;
  double work_bound = 0;   ///< max(all work / workers, the longest KV tile)
  double chain_bound = 0;  ///< the longest chain of adds into one dQ tile, after the shortest compute before it
  double stall_total = 0;
  std::vector<WorkerTime> workers;
  std::vector<Interval> critical_path;  ///< computes and adds, in time order, that end with the makespan; gaps are hand-overs
  std::vector<Interval> intervals;      ///< everything, worker by worker in time order

  /// What was proved before the simulation began (see prove_schedule): a report exists only for schedules that pass.
  struct Proof {
    std::int64_t tasks = 0;         ///< live tiles, each visited exactly once
    std::int64_t items = 0;         ///< dispatched, each exactly once
    std::int64_t resident_set = 0;  ///< most items that may wait for each other; at most `workers`
  } proof;
};

/// Names as `ordo simulate --schedule` takes them: those of plans and "symmetric_shift".
ORDO_API Result<schedule::Kind> parse_schedule_kind(std::string_view text);
ORDO_API std::string_view to_string(Activity activity);

/// Simulates a problem given by tile counts. Errors: sizes or costs out of range, a schedule for the other mask, more than 2^22
/// tasks, or a schedule that the proof refuses for so few workers (the message names the tile).
ORDO_API Result<SimulationReport> simulate(const SimulationRequest& request);

/// The same for any geometry, e.g. make_geometry()'s.
struct Simulation {
  schedule::Geometry geometry{};
  int query_heads = 1;  ///< of a walk, visited one after another by each unit (pair)
  std::int64_t workers = 1;
  SimulationCosts costs;
  bool record = true;  ///< fill critical_path and intervals; without, only the totals
  bool prove = true;   ///< false: the caller has proved the geometry; `proof` is then left empty
};
Result<SimulationReport> simulate(const Simulation& simulation);

/// Live tiles of one query head.
std::int64_t live_tiles(const schedule::Geometry& geometry);

}  // namespace ordo
