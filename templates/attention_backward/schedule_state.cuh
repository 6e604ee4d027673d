// The schedule as a consumer warpgroup keeps it (Plan's schedule_state consumer): the form of DASH's published kernels, for the
// study of what that state costs in registers. Everywhere else the loader keeps it and sends each step with its stage.
#pragma once

#include "attention_backward/producer.cuh"

namespace ordo::attention_backward {

/// Where an item is in its walk: live over every step of the consumer's loop, beside the accumulators.
struct ScheduleState {
  schedule::Item at;
  int q;          ///< the Q tile of this step
  int head_tile;  ///< tile number of this query head's Q tile 0
  int head_left;  ///< steps left for this query head
  int left;       ///< steps left of the item
  int flags;

  __device__ __forceinline__ ScheduleState(const schedule::Geometry& g, const Item& item)
      : at{item.first, item.unit, item.kind == Item::walk_down},
        q(schedule::start_q(g, at)),
        head_tile(item.first * config.group * g.q_tiles),
        head_left(schedule::steps(g, item.unit)),
        left(item.steps),
        flags(Step::first) {}

  /// The step that begins; the state then stands at the one after it.
  __device__ __forceinline__ Step take(const schedule::Geometry& g) {
    if (--left == 0) flags |= Step::last;
    const Step step{4 * q + flags, head_tile + q, schedule::rank(g, at, q), 0};
    flags = 0;
    if (--head_left == 0) {
      head_left = schedule::steps(g, at.unit);
      head_tile += g.q_tiles;
      q = schedule::start_q(g, at);
    } else {
      q = schedule::next_q(g, at, q);
    }
    return step;
  }
};

}  // namespace ordo::attention_backward
