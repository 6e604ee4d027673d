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

enum class Kind : int { ascending, descending, shift, alternate, symmetric_shift };

/// The tile grid of one query head, and how it is walked. Lengths of at most 2^31 - 2^16.
struct Geometry {
  Kind kind;
  bool causal;  ///< bottom-right aligned
  int tile_q;   ///< rows of a Q tile
  int unit_kv;  ///< keys of a unit
  int seqlen_q;
  int seqlen_k;
  int q_tiles;     ///< ceil(seqlen_q / tile_q)
  int units;       ///< ceil(seqlen_k / unit_kv)
  int walks;       ///< batch * kv_heads
  int head_group;  ///< walks dispatched together
  int wave;        ///< shift: units (symmetric_shift: pairs) that rotate among themselves; otherwise unused
  int stride;      ///< both shifts: Q tiles between the starts of neighbouring units; otherwise unused
};

/// The work of one cluster.
struct Item {
  int walk;
  int unit;      ///< symmetric_shift: the pair
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
  const int last_key = last_row - g.seqlen_q + g.seqlen_k;  // the last key that the tile's last row sees; no sum leaves int
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
ORDO_HOST_DEVICE constexpr bool waits_on_later_items(Kind kind) {
  return kind == Kind::shift || kind == Kind::alternate || kind == Kind::symmetric_shift;
}

/// symmetric_shift: pairs of units of a walk, see below.
ORDO_HOST_DEVICE constexpr int pairs(const Geometry& g) { return (g.units + 1) / 2; }

/// Items of one walk: its units, or its pairs of units.
ORDO_HOST_DEVICE constexpr int walk_items(const Geometry& g) { return g.kind == Kind::symmetric_shift ? pairs(g) : g.units; }

/// Number of items of a launch. Fits int: the host refuses more.
ORDO_HOST_DEVICE constexpr int items(const Geometry& g) { return g.walks * walk_items(g); }

/// First item of the co-resident set that `index` belongs to and its end: items in [begin, end) may wait for each other.
struct Residents {
  int begin;
  int end;
};

/// Decodes a number in dispatch order.
ORDO_HOST_DEVICE constexpr Item item_at(const Geometry& g, int index) {
  const int group = index / (g.head_group * walk_items(g));
  const int rest = index - group * g.head_group * walk_items(g);
  const int walks = minimum(g.head_group, g.walks - group * g.head_group);
  return {group * g.head_group + rest % walks, rest / walks, (group & 1) != 0};
}

/// See Residents. For schedules that wait on lower items only, the set is the item itself.
ORDO_HOST_DEVICE constexpr Residents residents(const Geometry& g, int index) {
  if (!waits_on_later_items(g.kind)) return {index, index + 1};
  const int group = index / (g.head_group * walk_items(g));
  const int base = group * g.head_group * walk_items(g);
  const int walks = minimum(g.head_group, g.walks - group * g.head_group);
  if (g.kind == Kind::alternate) return {base, base + walks * g.units};
  const int first = (index - base) / walks / g.wave * g.wave;
  return {base + walks * first, base + walks * minimum(first + g.wave, walk_items(g))};
}

// symmetric_shift (DASH, causal): one worker takes pair p, that is unit p (long) and then unit units-1-p (short); the middle unit
// of an odd count is a pair by itself. Pairs rotate in waves of `wave`, waves add in wave order. Let f be the first Q tile that
// every long unit of the wave sees. The long units first rotate through the rectangle of Q tiles f .. q_tiles-1, then ascend
// through what is left of the triangle below f, diagonal first; then each worker walks its short unit downwards.

/// One step of a worker.
struct Visit {
  int unit;
  int q;
};

/// First and one past the last pair of the wave of pair `p`.
struct Wave {
  int first;
  int end;
};
ORDO_HOST_DEVICE constexpr Wave wave_of(const Geometry& g, int p) {
  const int first = p - p % g.wave;
  return {first, minimum(first + g.wave, pairs(g))};
}

/// Steps of pair `p` for each query head.
ORDO_HOST_DEVICE constexpr int pair_steps(const Geometry& g, int p) {
  const int other = g.units - 1 - p;
  return steps(g, p) + (other == p ? 0 : steps(g, other));
}

/// Step `t`, 0 <= t < pair_steps(), of pair `p`.
ORDO_HOST_DEVICE constexpr Visit pair_visit(const Geometry& g, int p, int t) {
  const Wave wave = wave_of(g, p);
  const int f = first_q(g, wave.end - 1);
  const int rows = g.q_tiles - f;
  if (t < rows) return {p, f + (g.stride * (p - wave.first) + t) % rows};
  if (t < steps(g, p)) return {p, first_q(g, p) + t - rows};
  return {g.units - 1 - p, g.q_tiles - 1 - (t - steps(g, p))};
}

/// The turn of `unit` among the contributors of Q tile `q`: waves in order; inside a wave the long units as they rotate or
/// ascend, then the short ones, of which the shortest arrives last.
ORDO_HOST_DEVICE constexpr int pair_rank(const Geometry& g, int unit, int q) {
  const int p = minimum(unit, g.units - 1 - unit);
  const Wave wave = wave_of(g, p);
  const int seen_by = contributors(g, q);
  // Short units of pairs a .. b-1 see q when the pair is at least units - seen_by.
  const int shorts = g.units / 2;
  const int before = minimum(seen_by, wave.first) + maximum(minimum(wave.first, shorts) - (g.units - seen_by), 0);
  if (unit != p) return before + (wave.end - wave.first) + minimum(wave.end, shorts) - 1 - p;
  const int f = first_q(g, wave.end - 1);
  if (q < f) return before + minimum(seen_by, wave.end) - 1 - p;
  const int turn = minimum((q - f) / g.stride, wave.end - wave.first - 1) - (p - wave.first);
  return before + (turn < 0 ? turn + wave.end - wave.first : turn);
}

}  // namespace ordo::schedule
