// The tiles of one rank's product, in the order in which its clusters compute them. Host and device include this file.
//
// A *unit* is the tile rows of one cluster: tile_m * cluster rows. Tiles are numbered slice by slice, in the order of slices.cuh;
// inside a slice, `group` units are walked together over all columns, so that what is in flight at once (one tile a cluster) is
// about square and its rows of A and columns of B are read from L2. Cluster w of W takes numbers w, w + W, w + 2 W, ...
#pragma once

#include "overlap/slices.cuh"

#if defined(__CUDACC__)
#define ORDO_TILES_FUNCTION __host__ __device__ __forceinline__ constexpr
#else
#define ORDO_TILES_FUNCTION constexpr
#endif

namespace ordo::overlap {

/// All slices are numbered as if they were as long as the longest; `Tile::unit` may lie beyond a shorter one, and is then
/// skipped.
struct Tiles {
  Pattern pattern;
  int rank, ranks;
  int slices;   ///< 1 or ranks
  int units;    ///< of the longest slice
  int columns;  ///< tiles that cover the widest slice's columns
  int group;    ///< units
};

struct Tile {
  int slice;
  int unit;    ///< in its slice
  int column;  ///< in its slice
};

ORDO_TILES_FUNCTION int ceil_div(int a, int b) { return (a + b - 1) / b; }
ORDO_TILES_FUNCTION int smaller(int a, int b) { return a < b ? a : b; }

ORDO_TILES_FUNCTION int tile_count(const Tiles& g) { return g.slices * g.units * g.columns; }

ORDO_TILES_FUNCTION Tile tile_at(const Tiles& g, int number) {
  const int slice_tiles = g.units * g.columns;
  const int step = number / slice_tiles;
  const int within = number - step * slice_tiles;
  const int group = within / (g.group * g.columns);
  const int in_group = within - group * g.group * g.columns;
  const int height = smaller(g.group, g.units - group * g.group);
  const int column = in_group / height;
  const int slice = g.slices == 1 ? 0 : slice_at_step(g.pattern, Route::direct, g.rank, g.ranks, step);
  return {slice, group * g.group + in_group - column * height, column};
}

/// The chunk that holds `unit` when `units` units are dealt to `chunks` chunks as part_begin deals them.
ORDO_TILES_FUNCTION int chunk_of(int units, int chunks, int unit) {
  const int share = units / chunks, extra = units - share * chunks;
  const int longer = extra * (share + 1);  // units in the chunks that have one more
  return unit < longer ? unit / (share + 1) : extra + (unit - longer) / share;
}

ORDO_TILES_FUNCTION int units_in_chunk(int units, int chunks, int chunk) {
  return units / chunks + (chunk < units % chunks ? 1 : 0);
}

/// Warps that store a tile, one a consumer warpgroup: each signals once.
inline constexpr int kStoreWarps = 2;

/// What the signals of a chunk add up to when all its tiles are stored. `rows`: of the slice; `columns`: tiles a row of it.
ORDO_TILES_FUNCTION int chunk_arrivals(int rows, int tile_m, int cluster, int columns, int chunks, int chunk) {
  return units_in_chunk(ceil_div(rows, tile_m * cluster), chunks, chunk) * columns * cluster * kStoreWarps;
}

}  // namespace ordo::overlap

#undef ORDO_TILES_FUNCTION
