// Arrival orders: for any mask and any number of workers, let units add into each dQ tile in the order in which a simulation of
// the whole launch has them arrive there. The result is a table, which the kernels read (see schedule.cuh) and the proof checks.
//
// The simulation knows nothing of chance: the same arguments give the same table on any machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/schedule/costs.hpp"
#include "codegen/schedule/tiles.hpp"
#include "ordo/error.hpp"
#include "ordo/plan.hpp"
#include "templates/schedule/schedule.cuh"

namespace ordo {

struct ArrivalTable {
  std::vector<std::uint32_t> words;  ///< as schedule.cuh describes them
  int units = 0, q_tiles = 0;        ///< of the geometry that it was made for
  double makespan = 0;               ///< of the walks that were simulated: one for each pattern

  [[nodiscard]] int patterns() const { return static_cast<int>(words.at(0)); }
  [[nodiscard]] bool fits(const schedule::Geometry& g) const { return units == g.units && q_tiles == g.q_tiles; }
  /// First 64 bits of the SHA-256 of the words.
  [[nodiscard]] std::uint64_t hash() const;
};

/// Simulates one walk for each pattern, with as many workers as one walk surely has, max(1, workers / head_group). Units are
/// dispatched longest first. Where not all units of a walk are resident at once, `geometry.wave` of them are a wave, and waves
/// add in order, so that waits stay inside a resident set. Errors (unsupported): more Q tiles or units than a word of the table
/// can name, or more than 2^22 visits.
Result<ArrivalTable> make_arrival(const schedule::Geometry& geometry, std::int64_t workers, const SimulationCosts& costs,
                                  ArrivalVisits visits, const TileMap& tiles);

/// Whether the words of a table can name the tiles of a geometry and hold so many visits. Errors: unsupported.
Result<void> check_table_size(const schedule::Geometry& geometry, std::int64_t visits);

/// What `plan.arrival` says of the costs.
SimulationCosts costs_of(const Arrival& arrival);

/// The table of a plan with schedule arrival on a problem. Errors: make_arrival's, and invalid_plan where the table's hash is not
/// the plan's: the plan was made for other lengths, heads or workers, or edited.
Result<ArrivalTable> arrival_of(const AttentionBackward& problem, const Plan& plan);

/// The plan with the hash that its arrival has on `problem`, after an edit by hand, say. Other schedules are left as they are.
ORDO_API Result<Plan> with_arrival_hash(const AttentionBackward& problem, Plan plan);

}  // namespace ordo
