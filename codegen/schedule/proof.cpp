#include "codegen/schedule/proof.hpp"

#include "codegen/limits.hpp"
#include "codegen/schedule/proof_check.hpp"

namespace ordo {

Result<void> prove_schedule(const schedule::Geometry& geometry, std::int64_t workers) {
  const schedule::Geometry& g = geometry;
  if (g.tile_q < 1 || g.unit_kv < 1 || g.seqlen_q < 1 || g.seqlen_k < 1 || g.q_tiles < 1 || g.units < 1 || g.walks < 1 ||
      g.head_group < 1 || g.wave < 1 || g.stride < 1 || workers < 1) {
    return Error{ErrorCode::invalid_plan, "schedule: a size, wave, stride, head group or worker count is below 1"};
  }
  const std::int64_t tiles = std::int64_t{g.units} * g.q_tiles;
  if (tiles > limits::kMostProvedTiles) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{} x {} tiles a head are more than the {} that ordo proves free of deadlock before a launch; split "
                             "seqlen_k and add the gradients",
                             g.units, g.q_tiles, limits::kMostProvedTiles)};
  }
  const ScheduleRules rules;
  return Proof<ScheduleRules>(rules, geometry, workers).run();
}

}  // namespace ordo
