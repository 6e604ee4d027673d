// Which Q tile a KV unit visits when, and in which order units add into a dQ tile.
//
// One source of truth: the generated kernels, the host's proof and simulator, and the CPU executor all include this file.
//
// A *walk* is one (batch, KV head). A *unit* is the KV tiles of one cluster (one tile when the cluster is one CTA).
// For each query head of its walk a unit visits every Q tile that sees it under the mask, one step a tile, and adds a partial
// dQ to each. `rank` is the unit's turn among the contributors of a Q tile: exactly 0 .. contributors-1.
//
// An *item* is one (walk, unit), the work of one cluster. Items are numbered in dispatch order: walks in groups, units slowest
// inside a group, walks fastest, so that neighbouring items reduce into different dQ tiles.
#pragma once

#if defined(__CUDACC__)
#define ORDO_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ORDO_HOST_DEVICE inline
#endif

namespace ordo::schedule {

enum class Kind : int { ascending, descending, shift, alternate };

/// The tile grid of one query head, and how it is walked. Lengths of at most 2^31 - 2^16.
struct Geometry {
  Kind kind;
  bool causal;   ///< bottom-right aligned
  int tile_q;    ///< rows of a Q tile
  int unit_kv;   ///< keys of a unit
  int seqlen_q;
  int seqlen_k;
  int q_tiles;   ///< ceil(seqlen_q / tile_q)
  int units;     ///< ceil(seqlen_k / unit_kv)
  int walks;     ///< batch * kv_heads
  int head_group;  ///< walks dispatched together
  int wave;      ///< shift: units that rotate among themselves; otherwise unused
  int stride;    ///< shift: Q tiles between the starts of neighbouring units; otherwise unused
};

/// The work of one cluster.
struct Item {
  int walk;
  int unit;
  bool flipped;  ///< alternate: this walk is one that runs downwards
};

ORDO_HOST_DEVICE constexpr int minimum(int a, int b) { return a < b ? a : b; }
ORDO_HOST_DEVICE constexpr int maximum(int a, int b) { return a > b ? a : b; }
ORDO_HOST_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

/// First Q tile that sees any key of `unit`; q_tiles when none does. All later tiles see it too.
ORDO_HOST_DEVICE constexpr int first_q(const Geometry& g, int unit) {
  if (!g.causal) return 0;
  const int first_row = unit * g.unit_kv - (g.seqlen_k - g.seqlen_q);  // the first row that sees the unit's first key
  return minimum(maximum(first_row, 0) / g.tile_q, g.q_tiles);
}

/// Steps of `unit` for each query head.
ORDO_HOST_DEVICE constexpr int steps(const Geometry& g, int unit) { return g.q_tiles - first_q(g, unit); }

/// How many units add into Q tile `q`: the units 0 .. contributors-1.
ORDO_HOST_DEVICE constexpr int contributors(const Geometry& g, int q) {
  if (!g.causal) return g.units;
  const int last_row = minimum((q + 1) * g.tile_q, g.seqlen_q) - 1;
  const int last_key = last_row + g.seqlen_k - g.seqlen_q;  // the last key that the tile's last row sees
  return last_key < 0 ? 0 : minimum(last_key / g.unit_kv + 1, g.units);
}

/// +1 or -1: the direction in which `item` walks the Q tiles.
ORDO_HOST_DEVICE constexpr int direction(const Geometry& g, const Item& item) {
  return g.kind == Kind::descending || (g.kind == Kind::alternate && item.flipped) ? -1 : 1;
}

/// The Q tile of the first step. Only for units with steps() > 0.
ORDO_HOST_DEVICE constexpr int start_q(const Geometry& g, const Item& item) {
  if (direction(g, item) < 0) return g.q_tiles - 1;
  if (g.kind == Kind::shift) return g.stride * (item.unit % g.wave);
  return first_q(g, item.unit);
}

/// The Q tile after `q`. Wraps for shift; elsewhere the step count ends the walk.
ORDO_HOST_DEVICE constexpr int next_q(const Geometry& g, const Item& item, int q) {
  const int next = q + direction(g, item);
  return g.kind == Kind::shift && next == g.q_tiles ? 0 : next;
}

/// The turn of `item` among the contributors of Q tile `q` (see the table in the file's tests).
ORDO_HOST_DEVICE constexpr int rank(const Geometry& g, const Item& item, int q) {
  if (g.kind == Kind::shift) {
    // Inside a wave units arrive at q in the order m, m-1, ..., wrapping, where m is the last unit that started at or before q.
    const int first = item.unit - item.unit % g.wave;
    const int in_wave = minimum(g.wave, g.units - first);
    const int turn = minimum(q / g.stride, in_wave - 1) - (item.unit - first);
    return first + (turn < 0 ? turn + in_wave : turn);
  }
  // alternate, upwards: units start on their diagonals, so the diagonal unit comes first.
  if (g.kind == Kind::alternate && !item.flipped) return contributors(g, q) - 1 - item.unit;
  return item.unit;
}

/// True when some rank waits for an item of a higher number: all items of a group (of a wave, for shift) must then be resident.
ORDO_HOST_DEVICE constexpr bool waits_on_later_items(Kind kind) { return kind == Kind::shift || kind == Kind::alternate; }

/// Number of items of a launch. Fits int: the host refuses more.
ORDO_HOST_DEVICE constexpr int items(const Geometry& g) { return g.walks * g.units; }

/// First item of the co-resident set that `index` belongs to and its end: items in [begin, end) may wait for each other.
struct Residents {
  int begin;
  int end;
};

/// Decodes a number in dispatch order.
ORDO_HOST_DEVICE constexpr Item item_at(const Geometry& g, int index) {
  const int group = index / (g.head_group * g.units);
  const int rest = index - group * g.head_group * g.units;
  const int walks = minimum(g.head_group, g.walks - group * g.head_group);
  return {group * g.head_group + rest % walks, rest / walks, (group & 1) != 0};
}

/// See Residents. For schedules that wait on lower items only, the set is the item itself.
ORDO_HOST_DEVICE constexpr Residents residents(const Geometry& g, int index) {
  if (!waits_on_later_items(g.kind)) return {index, index + 1};
  const int group = index / (g.head_group * g.units);
  const int base = group * g.head_group * g.units;
  const int walks = minimum(g.head_group, g.walks - group * g.head_group);
  if (g.kind == Kind::alternate) return {base, base + walks * g.units};
  const int first = (index - base) / walks / g.wave * g.wave;
  return {base + walks * first, base + walks * minimum(first + g.wave, g.units)};
}

}  // namespace ordo::schedule
