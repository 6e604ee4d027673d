// Which Q tile a KV unit visits when, and in which order units add into a dQ tile.
//
// One source of truth: the generated kernels, the host's proof and simulator, and the CPU executor all include this file.
//
// A *walk* is one (batch, KV head). A *unit* is the KV tiles of one cluster (one tile when the cluster is one CTA).
// For each query head of its walk a unit visits every Q tile that sees it under the mask, one step a tile, and adds a partial
// dQ to each. `rank` is the unit's turn among the contributors of a Q tile: exactly 0 .. contributors-1.
//
// An *item* is the work that a cluster takes at a time: one unit of a walk, or for symmetric_shift a pair of units, of which the
// second (see second_half) is walked when the first has ended. Items are numbered in dispatch order: walks in groups, units
// slowest inside a group, walks fastest, so that neighbouring items reduce into different dQ tiles.
#pragma once

#if defined(__CUDACC__)
#define ORDO_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ORDO_HOST_DEVICE inline
#endif

namespace ordo::schedule {

enum class Kind : int { ascending, descending, shift, alternate, symmetric_shift, arrival };

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
  int heads;       ///< query heads of a walk
  int head_group;  ///< walks dispatched together
  int wave;        ///< shift, arrival: units (symmetric_shift: pairs) that may wait for each other; otherwise unused
  int stride;      ///< both shifts: Q tiles between the starts of neighbouring units; otherwise unused
};

/// The work of one cluster: a unit, or the half of a pair.
struct Item {
  int walk;
  int unit;
  bool flipped;  ///< of an odd group of alternate or arrival; symmetric_shift: a second half
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

// symmetric_shift (DASH, causal): one cluster takes pair p, that is unit p (long) and then unit units-1-p (short); the middle
// unit of an odd count is a pair by itself. Pairs rotate in waves of `wave`, waves add in wave order. The long units first rotate
// through the rectangle of Q tiles that all of their wave see, then ascend through what is left of the triangle below it,
// diagonal first; then each cluster walks its short unit downwards.

/// Pairs of units of a walk. Pair p is named by its long unit, p.
ORDO_HOST_DEVICE constexpr int pairs(const Geometry& g) { return (g.units + 1) / 2; }

/// Whether another half follows `item`.
ORDO_HOST_DEVICE constexpr bool has_second_half(const Geometry& g, const Item& item) {
  return g.kind == Kind::symmetric_shift && !item.flipped && 2 * item.unit != g.units - 1;
}
ORDO_HOST_DEVICE constexpr Item second_half(const Geometry& g, const Item& item) {
  return {item.walk, g.units - 1 - item.unit, true};
}

/// A first one and one past the last.
struct Range {
  int first;
  int end;
};
/// The pairs of the wave of pair `p`.
ORDO_HOST_DEVICE constexpr Range wave_of(const Geometry& g, int p) {
  const int first = p - p % g.wave;
  return {first, minimum(first + g.wave, pairs(g))};
}

/// The first Q tile that every long unit of the wave of pair `p` sees.
ORDO_HOST_DEVICE constexpr int first_common_q(const Geometry& g, int p) { return first_q(g, wave_of(g, p).end - 1); }

/// Where groups go up and down in turn: the first query head of a walk that goes down; all heads before it go up. Units start
/// together on their diagonals and differ in length, so that upwards each is ahead of the next longer one by the tiles between
/// their diagonals. From the top down, all other heads together, they keep that distance; one head after another it would grow
/// with every head, until what one has loaded has left L2 before the next wants it. A flipped group is an upward one in reverse.
ORDO_HOST_DEVICE constexpr int first_down(bool flipped, int heads) { return flipped ? heads - 1 : 1; }

/// +1 or -1: the direction in which `item` walks the Q tiles of query head `head` of its walk.
ORDO_HOST_DEVICE constexpr int direction(const Geometry& g, const Item& item, int head) {
  const bool down =
      g.kind == Kind::alternate ? head >= first_down(item.flipped, g.heads) : g.kind == Kind::descending || item.flipped;
  return down ? -1 : 1;
}

// Query heads of a walk are walked one after another, but for alternate's of one direction: those are walked together, each Q
// tile for all of these heads before the next.

/// The query heads that are walked together with `head`, itself among them.
ORDO_HOST_DEVICE constexpr Range together_with(const Geometry& g, const Item& item, int head) {
  if (g.kind != Kind::alternate || g.heads == 1) return {head, head + 1};
  const int down = first_down(item.flipped, g.heads);
  return head < down ? Range{0, down} : Range{down, g.heads};
}

/// The Q tile of the first step of a query head. Only for units with steps() > 0, and not for arrival.
ORDO_HOST_DEVICE constexpr int start_q(const Geometry& g, const Item& item, int head) {
  if (direction(g, item, head) < 0) return g.q_tiles - 1;
  if (g.kind == Kind::shift) return g.stride * (item.unit % g.wave);
  if (g.kind == Kind::symmetric_shift) return first_common_q(g, item.unit) + g.stride * (item.unit % g.wave);
  return first_q(g, item.unit);
}

/// The Q tile after `q`. The shifts wrap; elsewhere the step count ends the walk.
ORDO_HOST_DEVICE constexpr int next_q(const Geometry& g, const Item& item, int head, int q) {
  const int next = q + direction(g, item, head);
  if (g.kind == Kind::shift && next == g.q_tiles) return 0;
  if (g.kind != Kind::symmetric_shift || item.flipped) return next;
  const int common = first_common_q(g, item.unit);
  if (q < common) return next;
  const int rotated = next == g.q_tiles ? common : next;
  return rotated == start_q(g, item, head) ? first_q(g, item.unit) : rotated;  // once around: on to the triangle
}

/// symmetric_shift: the turn of `unit` among the contributors of Q tile `q`: waves in order; inside a wave the long units as they
/// rotate or ascend, then the short ones, of which the shortest arrives last.
ORDO_HOST_DEVICE constexpr int pair_rank(const Geometry& g, int unit, int q) {
  const int p = minimum(unit, g.units - 1 - unit);
  const Range wave = wave_of(g, p);
  const int seen_by = contributors(g, q);
  // Short units of pairs a .. b-1 see q when the pair is at least units - seen_by.
  const int shorts = g.units / 2;
  const int before = minimum(seen_by, wave.first) + maximum(minimum(wave.first, shorts) - (g.units - seen_by), 0);
  if (unit != p) return before + (wave.end - wave.first) + minimum(wave.end, shorts) - 1 - p;
  const int f = first_common_q(g, p);
  if (q < f) return before + minimum(seen_by, wave.end) - 1 - p;
  const int turn = minimum((q - f) / g.stride, wave.end - wave.first - 1) - (p - wave.first);
  return before + (turn < 0 ? turn + wave.end - wave.first : turn);
}

/// The turn of `item` among the contributors of Q tile `q` (see the table in the file's tests). Not for
/// arrival.
ORDO_HOST_DEVICE constexpr int rank(const Geometry& g, const Item& item, int q) {
  if (g.kind == Kind::symmetric_shift) return pair_rank(g, item.unit, q);
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

/// True when some rank waits for an item of a higher number: all items of a group (where there are waves, of a wave) must then be
/// resident.
ORDO_HOST_DEVICE constexpr bool waits_on_later_items(Kind kind) { return kind != Kind::ascending && kind != Kind::descending; }

/// Whether odd groups of walks go downwards and even ones upwards.
ORDO_HOST_DEVICE constexpr bool goes_in_turns(Kind kind) { return kind == Kind::alternate || kind == Kind::arrival; }

/// Items of one walk: its units, or its pairs of units.
ORDO_HOST_DEVICE constexpr int walk_items(const Geometry& g) { return g.kind == Kind::symmetric_shift ? pairs(g) : g.units; }

/// Number of items of a launch. Fits int: the host refuses more.
ORDO_HOST_DEVICE constexpr int items(const Geometry& g) { return g.walks * walk_items(g); }

/// First item of the co-resident set that `index` belongs to and its end: items in [begin, end) may wait for each other.
struct Residents {
  int begin;
  int end;
};

/// Decodes a number in dispatch order. symmetric_shift: the first half of the pair; arrival: `unit` is a place in the order of
/// dispatch, see arrival_item.
ORDO_HOST_DEVICE constexpr Item item_at(const Geometry& g, int index) {
  const int group = index / (g.head_group * walk_items(g));
  const int rest = index - group * g.head_group * walk_items(g);
  const int walks = minimum(g.head_group, g.walks - group * g.head_group);
  return {group * g.head_group + rest % walks, rest / walks, goes_in_turns(g.kind) && (group & 1) != 0};
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

// arrival: Q tiles and ranks come from a table that the host made by simulation (codegen/schedule/arrival.hpp), one for each of
// `patterns` kinds of walk groups, which follow one another in turn, and for each of `members` query heads of a walk. Words:
// patterns, members; [pattern][place] the unit dispatched there; [pattern][unit + 1] where the visits of a unit begin; the
// visits, [member][step] for each unit.

/// One visit of a unit, a word of the table.
struct Visit {
  int q;
  int rank;
};
inline constexpr int kMostVisited = 1 << 16;  ///< Q tiles, and units, that a word can name
ORDO_HOST_DEVICE constexpr unsigned pack_visit(Visit visit) {
  return static_cast<unsigned>(visit.q) | static_cast<unsigned>(visit.rank) << 16;
}
ORDO_HOST_DEVICE constexpr Visit unpack_visit(unsigned word) {
  return {static_cast<int>(word & 0xffffu), static_cast<int>(word >> 16)};
}

ORDO_HOST_DEVICE constexpr int arrival_pattern(const unsigned* table, const Item& item) {
  return item.flipped ? static_cast<int>(table[0]) - 1 : 0;
}
/// The item that item_at() gave, with its unit.
ORDO_HOST_DEVICE constexpr Item arrival_item(const Geometry& g, const unsigned* table, const Item& at) {
  return {at.walk, static_cast<int>(table[2 + arrival_pattern(table, at) * g.units + at.unit]), at.flipped};
}
/// Where the visits of an item begin.
ORDO_HOST_DEVICE constexpr const unsigned* arrival_begins(const Geometry& g, const unsigned* table, const Item& item) {
  // NOLINTNEXTLINE(bugprone-implicit-widening-of-multiplication-result): a table has fewer than 2^31 words
  return table + 2 + static_cast<int>(table[0]) * g.units + arrival_pattern(table, item) * (g.units + 1) + item.unit;
}
/// Steps of a unit for each query head.
ORDO_HOST_DEVICE constexpr int arrival_steps(const Geometry& g, const unsigned* table, const Item& item) {
  const unsigned* begins = arrival_begins(g, table, item);
  return static_cast<int>((begins[1] - begins[0]) / table[1]);
}
/// The visits of an item for the query head `member` of its walk; `steps` is arrival_steps().
ORDO_HOST_DEVICE constexpr const unsigned* arrival_visits(const Geometry& g, const unsigned* table, const Item& item, int member,
                                                          int steps) {
  // NOLINTNEXTLINE(bugprone-implicit-widening-of-multiplication-result): a table has fewer than 2^31 words
  return table + arrival_begins(g, table, item)[0] + member % static_cast<int>(table[1]) * steps;
}
ORDO_HOST_DEVICE constexpr const unsigned* arrival_visits(const Geometry& g, const unsigned* table, const Item& item,
                                                          int member) {
  return arrival_visits(g, table, item, member, arrival_steps(g, table, item));
}

// Masks by expression: behind the visits and one word that is read ahead come the contributors of every Q tile, and then for
// every visit, in the same order, what it sees: bit s where the 64-key slice s of the unit has keys to hide, bit 4 + s where it
// sees nothing at all.

/// The word behind the visits.
ORDO_HOST_DEVICE constexpr unsigned visits_end(const Geometry& g, const unsigned* table) {
  return table[1 + static_cast<int>(table[0]) * (2 * g.units + 1)];
}
/// How many units add into Q tile `q`.
ORDO_HOST_DEVICE constexpr int table_contributors(const Geometry& g, const unsigned* table, int q) {
  return static_cast<int>(table[visits_end(g, table) + 1u + static_cast<unsigned>(q)]);
}
/// From a visit's word to what it sees.
ORDO_HOST_DEVICE constexpr int mask_distance(const Geometry& g, const unsigned* table) {
  return static_cast<int>(visits_end(g, table)) + 1 + g.q_tiles - (2 + static_cast<int>(table[0]) * (2 * g.units + 1));
}
inline constexpr int kHiddenShift = 4;

}  // namespace ordo::schedule
