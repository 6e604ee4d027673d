// What every part of the attention-backward kernels knows: sizes, records in shared memory, parameters, the shape.
#pragma once

#include "attention_backward/params.cuh"
#include "attention_backward/plan.cuh"
#include "attention_backward/shared_memory.cuh"
#include "sm90/copy.cuh"

namespace ordo::attention_backward {

inline constexpr int kConsumerRegisters = consumer_registers_of(config);
inline constexpr int kProducerRegisters = producer_registers_of(config);

inline constexpr int kChunks = config.head_dim / 64;  // a row is stored as 64-element (128-byte) chunks, one swizzle atom wide
inline constexpr int kQBytes = config.tile_q * config.head_dim * 2;
inline constexpr int kKvBytes = config.tile_kv * config.head_dim * 2;
inline constexpr int kKvChunkBytes = config.tile_kv * 128;
inline constexpr int kQChunkBytes = config.tile_q * 128;
inline constexpr int kDsBytes = config.tile_kv * config.tile_q * 2;
inline constexpr int kSlices = slices_of(config);
inline constexpr bool kExchange = config.cluster == 2;  // dS crosses the cluster: each CTA computes one slice over both KV tiles
inline constexpr int kStageSlices = stage_slices(config);
inline constexpr bool kTakeTurns =
    kStageSlices == 1;  // the warpgroups compute dQ of alternate steps; else each has a slice of its own
inline constexpr bool kOrdered = config.accumulate == Accumulate::ordered;
// Whether an item may wait for one of a higher ticket.
inline constexpr bool kWaitsOnLater = kOrdered && schedule::waits_on_later_items(config.schedule);
inline constexpr bool kReadsTable = config.schedule == schedule::Kind::arrival || config.mask_expression;
inline constexpr bool kInTurns = schedule::goes_in_turns(config.schedule);
inline constexpr bool kExact = config.accumulate == Accumulate::exact;

inline constexpr Layout layout = layout_of(config);
inline constexpr Barriers barriers = barriers_of(config);

/// Named barriers (0 is __syncthreads).
struct NamedBarriers {
  int consumers = 1;
  int staged = 2;        // [warpgroup + 2 * buffer] dQ is in the staging buffer
  int staging_free = 8;  // [warpgroup + 2 * buffer]
  int epilogue = 14;     // [warpgroup]
};
inline constexpr NamedBarriers named{};

/// One step, as the loader announces it to every other warp. `tile` < 0: no more steps.
struct Step {
  enum Flag : int { first = 1, last = 2 };  // of its item, or half of a pair
  int place;                                ///< 4 times the number of the Q tile in its sequence, plus flags
  int tile;
  int turn;  ///< rank among the contributors of the dQ tile
  int more;  ///< bit 0: the first half of a pair, whose last step is not the item's. Masks by expression: what the step sees
             ///< (schedule.cuh) from bit kSeenShift on
  static constexpr int kSeenShift = 1;
};

/// One item of work, as the cluster's scheduler announces it.
struct Item {
  enum Kind : int { walk_up, walk_down, convert, none };
  int kind;
  int first;  ///< the walk; convert: the first tile
  int unit;   ///< the unit; convert: the end of the tiles
  int steps;  ///< over all query heads of the walk; convert, none: 0
};

/// `ordered`: tiles that a convert item holds, for each CTA of the cluster.
inline constexpr int kConvertTiles = 4 * config.stages;
/// Groups of walks between a tile's last add and its conversion, so that converting rarely waits for the adds of a slow cluster.
inline constexpr int kConvertLag = 2;

ORDO_DEVICE schedule::Geometry geometry(const Shape& shape) {
  schedule::Geometry g{config.schedule, config.causal, config.tile_q, config.tile_kv * config.cluster};
  g.seqlen_q = config.static_shape ? config.seqlen_q : shape.seqlen_q;
  g.seqlen_k = config.static_shape ? config.seqlen_k : shape.seqlen_k;
  g.q_tiles = config.static_shape ? schedule::ceil_div(g.seqlen_q, g.tile_q) : shape.q_tiles;
  g.units = config.static_shape ? schedule::ceil_div(g.seqlen_k, g.unit_kv) : shape.units;
  g.walks = config.static_shape ? config.walks : shape.walks;
  g.heads = config.group;
  g.head_group = shape.head_group;
  g.wave = shape.wave;
  g.stride = shape.stride;
  return g;
}
/// How many units add into Q tile `q`.
ORDO_DEVICE int contributors(const MainParams& params, const schedule::Geometry& g, int q) {
  if constexpr (config.mask_expression)
    return schedule::table_contributors(g, params.arrival, q);
  else
    return schedule::contributors(g, q);
}
ORDO_DEVICE int kv_heads(const Shape& shape) { return config.static_shape ? config.kv_heads : shape.kv_heads; }

}  // namespace ordo::attention_backward
