// The schedule as a consumer warpgroup keeps it (Plan's schedule_state consumer): the form of DASH's published kernels, for the
// study of what that state costs in registers. Everywhere else the loader keeps it and sends each step with its stage.
#pragma once

#include "attention_backward/producer.cuh"

namespace ordo::attention_backward {

/// Where an item is in its walk: live over every step of the consumer's loop, beside the accumulators.
struct ScheduleState {
  schedule::Item at;
  Visits visits;          ///< of the query heads that are walked together
  schedule::Visit visit;  ///< of all of them, the one in hand
  int head_tile;          ///< tile number of this query head's Q tile 0
  int member;             ///< this query head, of the walk's
  int head_left;          ///< steps left for each query head that is walked together with it
  int left;               ///< steps left of the item
  int flags;
  int more;  ///< as Step::more: whether another half follows

  __device__ __forceinline__ ScheduleState(const MainParams& params, const schedule::Geometry& g, const Item& item)
      : at{item.first, item.unit, item.kind == Item::walk_down},
        visits(params, g, at, 0, item.steps / config.group),
        head_tile(item.first * config.group * g.q_tiles),
        member(0),
        head_left(item.steps / config.group),
        left(item.steps),
        flags(Step::first),
        more(another_half_follows(g, item) ? 1 : 0) {}

  /// The step that begins; the state then stands at the one after it.
  __device__ __forceinline__ Step take(const MainParams& params, const schedule::Geometry& g) {
    if (--left == 0) flags |= Step::last;
    const schedule::Range together = schedule::together_with(g, at, member);
    if (member == together.first) visit = visits.next(g, at, member);
    const Step step{4 * visit.q + flags, head_tile + visit.q, visit.rank, more};
    flags = 0;
    head_tile += g.q_tiles;
    if (++member < together.end) return step;
    if (--head_left > 0) {
      member = together.first;
      head_tile -= (together.end - together.first) * g.q_tiles;
    } else if (left > 0) {
      head_left = steps_of(params, g, at);
      visits = Visits(params, g, at, member, head_left);
    }
    return step;
  }

 private:
  static __device__ __forceinline__ int steps_of(const MainParams& params, const schedule::Geometry& g,
                                                 const schedule::Item& at) {
    return kReadsTable ? schedule::arrival_steps(g, params.arrival, at) : schedule::steps(g, at.unit);
  }
};

}  // namespace ordo::attention_backward
