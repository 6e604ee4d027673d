// How a Geometry follows from tile counts and workers: the part that plans and tile-count simulations share.
#pragma once

#include <cstdint>

#include "ordo/plan.hpp"
#include "templates/schedule/schedule.cuh"

namespace ordo::schedule {

/// Name of a kind, e.g. "symmetric_shift": the plan's names and those that only the simulator knows.
ORDO_API std::string_view to_string(Kind kind);

}  // namespace ordo::schedule

namespace ordo {

/// The schedule of a plan as the device header names it.
schedule::Kind kind_of(Schedule schedule);

/// Fills `wave` and `stride`; every other field is set. `workers` clusters are resident and `shift_stride` is the stride wished
/// for.
///
/// shift: a wave is as many units as rotate without two of them on one Q tile and fit on the device beside those of the other
/// walks of their group: max(1, min(workers / head_group, q_tiles, units)). symmetric_shift: the same with pairs, and with the Q
/// tiles that every long unit sees. arrival: as many units as fit on the device. The stride is cut to what the Q tiles allow:
/// max(1, min(shift_stride, q_tiles / wave)). Elsewhere wave = units and stride = 1, unused.
void set_waves(schedule::Geometry& geometry, std::int64_t workers, int shift_stride);

}  // namespace ordo
