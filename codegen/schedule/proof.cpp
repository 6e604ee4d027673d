#include "codegen/schedule/proof.hpp"

#include "codegen/limits.hpp"
#include "codegen/schedule/proof_check.hpp"

namespace ordo {

Result<void> prove_schedule(const schedule::Geometry& geometry, std::int64_t workers, const ArrivalTable* table,
                            const std::function<TileKind(int, int)>& mask) {
  const schedule::Geometry& g = geometry;
  if (g.tile_q < 1 || g.unit_kv < 1 || g.seqlen_q < 1 || g.seqlen_k < 1 || g.q_tiles < 1 || g.units < 1 || g.walks < 1 ||
      g.head_group < 1 || g.wave < 1 || g.stride < 1 || workers < 1) {
    return Error{ErrorCode::invalid_plan, "schedule: a size, wave, stride, head group or worker count is below 1"};
  }
  const auto tiles_of = [](std::int64_t length, std::int64_t tile) { return (length + tile - 1) / tile; };
  if (g.q_tiles != tiles_of(g.seqlen_q, g.tile_q) || g.units != tiles_of(g.seqlen_k, g.unit_kv)) {
    return Error{ErrorCode::invalid_plan,
                 fmt::format("schedule: {} Q tiles of {} and {} units of {} do not cover seqlen_q {} and seqlen_k {}", g.q_tiles,
                             g.tile_q, g.units, g.unit_kv, g.seqlen_q, g.seqlen_k)};
  }
  if (std::int64_t{g.walks} * g.units > limits::kMostNumbered) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{} walks of {} units are above 2^31-1 items; split the batch", g.walks, g.units)};
  }
  const std::int64_t tiles = std::int64_t{g.units} * g.q_tiles;
  if (tiles > limits::kMostProvedTiles) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{} x {} tiles a head are more than the {} that ordo proves free of deadlock before a launch; split "
                             "seqlen_k and add the gradients",
                             g.units, g.q_tiles, limits::kMostProvedTiles)};
  }
  const bool needs_table = g.kind == schedule::Kind::arrival;
  if ((needs_table && table == nullptr) || (table != nullptr && (!table->fits(g) || (!needs_table && !mask)))) {
    return Error{ErrorCode::invalid_plan,
                 "schedule arrival needs the table that was made for its tiles; no other schedule does, unless the mask is an "
                 "expression"};
  }
  const TileMap map = mask ? TileMap(g, mask) : TileMap(g);
  const ScheduleRules rules(g, table != nullptr ? table->words.data() : nullptr);
  return Proof<ScheduleRules>(rules, geometry, workers, map).run();
}

}  // namespace ordo
