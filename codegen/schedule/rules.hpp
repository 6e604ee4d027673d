// A schedule as a list of visits: the one view of templates/schedule/schedule.cuh that proof, fingerprint and simulator share.
#pragma once

#include "templates/schedule/schedule.cuh"

namespace ordo {

/// Where an item is in its walk over the Q tiles of one query head.
struct Cursor {
  schedule::Item item;  ///< item.unit is the pair for symmetric_shift
  int step = 0;
  int unit = 0;  ///< the KV unit of this step
  int q = 0;     ///< the Q tile of this step
};

/// The definitions, from the header that the kernels include. Tests put a wrong one in its place to see the proof refuse it.
struct ScheduleRules {
  static int steps(const schedule::Geometry& g, int item_unit) {
    return g.kind == schedule::Kind::symmetric_shift ? schedule::pair_steps(g, item_unit) : schedule::steps(g, item_unit);
  }

  /// The first visit of an item. Only for items with steps() > 0.
  static Cursor begin(const schedule::Geometry& g, const schedule::Item& item) {
    if (g.kind != schedule::Kind::symmetric_shift) return {item, 0, item.unit, schedule::start_q(g, item)};
    const schedule::Visit visit = schedule::pair_visit(g, item.unit, 0);
    return {item, 0, visit.unit, visit.q};
  }

  /// The next visit. Only while at.step + 1 < steps().
  static void advance(const schedule::Geometry& g, Cursor& at) {
    ++at.step;
    if (g.kind != schedule::Kind::symmetric_shift) {
      at.q = schedule::next_q(g, at.item, at.q);
      return;
    }
    const schedule::Visit visit = schedule::pair_visit(g, at.item.unit, at.step);
    at.unit = visit.unit;
    at.q = visit.q;
  }

  static int rank(const schedule::Geometry& g, const Cursor& at) {
    if (g.kind == schedule::Kind::symmetric_shift) return schedule::pair_rank(g, at.unit, at.q);
    return schedule::rank(g, at.item, at.q);
  }

  static schedule::Item item_at(const schedule::Geometry& g, int index) { return schedule::item_at(g, index); }
  static schedule::Residents residents(const schedule::Geometry& g, int index) { return schedule::residents(g, index); }
};

}  // namespace ordo
