// Tile grids that the schedule tests share.
#pragma once

#include <algorithm>
#include <random>
#include <string>

#include <fmt/format.h>

#include "codegen/schedule/arrival.hpp"
#include "codegen/schedule/geometry.hpp"

namespace ordo::testing {

/// A geometry with its counts and waves filled in.
inline schedule::Geometry make_grid(schedule::Kind kind, bool causal, int seqlen_q, int seqlen_k, int tile_q, int unit_kv,
                                    int walks, int head_group, int workers, int stride = 1, int heads = 1) {
  schedule::Geometry g{};
  g.kind = kind;
  g.causal = causal;
  g.tile_q = tile_q;
  g.unit_kv = unit_kv;
  g.seqlen_q = seqlen_q;
  g.seqlen_k = seqlen_k;
  g.q_tiles = schedule::ceil_div(seqlen_q, tile_q);
  g.units = schedule::ceil_div(seqlen_k, unit_kv);
  g.walks = walks;
  g.heads = heads;
  g.head_group = std::min(head_group, walks);
  set_waves(g, workers, stride);
  return g;
}

/// Tiles of one row and one key: a problem given by its tile counts.
inline schedule::Geometry make_tiles(schedule::Kind kind, bool causal, int kv_tiles, int q_tiles, int walks, int workers,
                                     int stride = 1) {
  return make_grid(kind, causal, q_tiles, kv_tiles, 1, 1, walks, 1, workers, stride);
}

inline std::string describe(const schedule::Geometry& g) {
  return fmt::format(
      "{} causal={} tile_q={} unit_kv={} seqlen_q={} seqlen_k={} walks={} heads={} head_group={} wave={} stride={}",
      to_string(g.kind), g.causal, g.tile_q, g.unit_kv, g.seqlen_q, g.seqlen_k, g.walks, g.heads, g.head_group, g.wave, g.stride);
}

/// A random grid and worker count on which `kind` may run: odd counts, seqlen_q above and below seqlen_k, few and many workers.
struct RandomGrid {
  schedule::Geometry geometry;
  int workers;
};
inline RandomGrid random_grid(std::mt19937& random, schedule::Kind kind) {
  const auto between = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  const bool causal = kind == schedule::Kind::alternate || kind == schedule::Kind::symmetric_shift ||
                      (kind != schedule::Kind::shift && between(0, 1) == 1);
  const int tile_q = between(1, 8);
  const int unit_kv = between(1, 16);
  const int seqlen_q = between(1, 120);
  const int seqlen_k = between(1, 150);
  const int walks = between(1, 7);
  int workers = between(1, 24);
  int head_group = between(1, 4);
  if (kind == schedule::Kind::shift || kind == schedule::Kind::symmetric_shift || kind == schedule::Kind::arrival)
    head_group = std::min(head_group, workers);
  if (kind == schedule::Kind::alternate)
    workers = std::min(head_group, walks) * schedule::ceil_div(seqlen_k, unit_kv) + between(0, 9);
  return {make_grid(kind, causal, seqlen_q, seqlen_k, tile_q, unit_kv, walks, head_group, workers, between(1, 5), between(1, 4)),
          workers};
}

/// The kinds that a geometry says everything about; arrival has a table beside it.
inline constexpr schedule::Kind kClosedKinds[] = {schedule::Kind::ascending, schedule::Kind::descending, schedule::Kind::shift,
                                                  schedule::Kind::alternate, schedule::Kind::symmetric_shift};

inline constexpr ArrivalVisits kAllVisits[] = {ArrivalVisits::up,   ArrivalVisits::down,   ArrivalVisits::up_and_down,
                                               ArrivalVisits::turn, ArrivalVisits::rotate, ArrivalVisits::greedy};

}  // namespace ordo::testing
