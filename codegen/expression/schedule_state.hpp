// What a consumer would have to compute and keep if it worked out its schedule itself, as expressions, so that the registers can
// be counted by live_registers() before anything is compiled.
#pragma once

#include <optional>

#include "codegen/expression/expression.hpp"
#include "codegen/expression/range.hpp"
#include "templates/schedule/schedule.cuh"

namespace ordo::expression {

/// The recurrences of templates/schedule/schedule.cuh: the Q tile of the first step, the one after `tile`, and the turn among its
/// contributors. Variables: Variable::tile and those behind it, and the lengths. `down` is schedule::Item::flipped. Of a walk's
/// first query head, as if it had no other: what the others' directions take is not counted.
struct ScheduleState {
  Expression start_q;
  Expression next_q;
  Expression rank;
};

/// Of a kind and a mask, full or causal. nullopt for arrival, whose steps are read from a table. Kinds that exist for causal
/// masks only take `causal` for granted.
std::optional<ScheduleState> schedule_state(schedule::Kind kind, bool causal);

/// What is known of the variables in a kernel whose shape is baked: all but tile, unit and down.
Domain known_geometry(const schedule::Geometry& geometry);

}  // namespace ordo::expression
