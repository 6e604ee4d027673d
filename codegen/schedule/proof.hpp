// The host-side proof of a schedule: what must hold before a plan may be launched.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "codegen/schedule/arrival.hpp"
#include "codegen/schedule/tiles.hpp"
#include "ordo/error.hpp"
#include "ordo/plan.hpp"
#include "ordo/problem.hpp"
#include "templates/schedule/schedule.cuh"

namespace ordo {

/// The geometry that the kernels of `plan` use on `problem`: tile counts, wave and stride (see make_geometry's definition for how
/// they follow from workers, head_group and shift_stride). Only for pairs that check_fit accepts.
schedule::Geometry make_geometry(const AttentionBackward& problem, const Plan& plan);

/// Proves for every walk-class and Q tile: each live (unit, Q tile) is visited exactly once, ranks are exactly 0..contributors-1,
/// and no wait can deadlock with `plan.workers` resident clusters (waits go to lower items, or stay inside one resident set of at
/// most `workers` items). The error names the tile and the two units that conflict.
/// Cost: O(units * q_tiles) for one head; the statement for the others follows by symmetry, walks of both parities are checked.
/// `table` is arrival's and null for other kinds; `mask` says what is visible where it is not the geometry's own mask.
Result<void> prove_schedule(const schedule::Geometry& geometry, std::int64_t workers, const ArrivalTable* table = nullptr,
                            const std::function<TileKind(int unit, int q)>& mask = {});

/// Hash (hex, 16 digits) of tile shape, traversal order per unit, add order per Q tile and accumulation mode: equal fingerprints
/// give equal bits from the same cubin code. Empty for a plan that check_fit refuses.
ORDO_API std::string order_fingerprint(const AttentionBackward& problem, const Plan& plan);

}  // namespace ordo
