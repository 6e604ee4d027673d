#include "codegen/schedule/geometry.hpp"

#include <algorithm>

#include "codegen/schedule/proof.hpp"

namespace ordo::schedule {

std::string_view to_string(Kind kind) {
  switch (kind) {
    case Kind::ascending:
      return "ascending";
    case Kind::descending:
      return "descending";
    case Kind::shift:
      return "shift";
    case Kind::alternate:
      return "alternate";
    case Kind::symmetric_shift:
      return "symmetric_shift";
    case Kind::arrival:
      return "arrival";
  }
  return "unknown";
}

}  // namespace ordo::schedule

namespace ordo {

using schedule::Geometry;
using schedule::Kind;

Kind kind_of(Schedule schedule) {
  switch (schedule) {
    case Schedule::ascending:
      return Kind::ascending;
    case Schedule::descending:
      return Kind::descending;
    case Schedule::shift:
      return Kind::shift;
    case Schedule::alternate:
      return Kind::alternate;
    case Schedule::symmetric_shift:
      return Kind::symmetric_shift;
    case Schedule::arrival:
      return Kind::arrival;
  }
  return Kind::ascending;
}

void set_waves(Geometry& geometry, std::int64_t workers, int shift_stride) {
  geometry.wave = std::max(geometry.units, 1);
  geometry.stride = 1;
  const std::int64_t resident = std::max<std::int64_t>(1, workers / geometry.head_group);
  if (geometry.kind == Kind::arrival) geometry.wave = static_cast<int>(std::min<std::int64_t>(resident, geometry.wave));
  if (geometry.kind != Kind::shift && geometry.kind != Kind::symmetric_shift) return;
  const bool paired = geometry.kind == Kind::symmetric_shift;
  const int rotating = paired ? schedule::pairs(geometry) : geometry.units;
  const int rows = paired ? geometry.q_tiles - schedule::first_q(geometry, rotating - 1) : geometry.q_tiles;
  geometry.wave = static_cast<int>(std::max<std::int64_t>(1, std::min<std::int64_t>({resident, rows, rotating})));
  geometry.stride = std::max(1, std::min(shift_stride, rows / geometry.wave));
}

Geometry make_geometry(const AttentionBackward& problem, const Plan& plan) {
  Geometry geometry{};
  geometry.kind = kind_of(plan.schedule);
  geometry.causal = problem.mask == Mask::causal;
  geometry.tile_q = plan.tile_q;
  geometry.unit_kv = plan.tile_kv * plan.cluster;
  geometry.seqlen_q = static_cast<int>(problem.seqlen_q);
  geometry.seqlen_k = static_cast<int>(problem.seqlen_k);
  geometry.q_tiles = schedule::ceil_div(geometry.seqlen_q, geometry.tile_q);
  geometry.units = schedule::ceil_div(geometry.seqlen_k, geometry.unit_kv);
  geometry.walks = static_cast<int>(problem.batch * problem.kv_heads);
  geometry.heads = plan.group;
  geometry.head_group = std::min(plan.head_group, geometry.walks);
  set_waves(geometry, plan.workers, plan.shift_stride);
  return geometry;
}

}  // namespace ordo
