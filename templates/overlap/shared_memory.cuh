// Shared memory of the GEMM kernel as a function of its Config. Plain C++: the host needs the size.
#pragma once

#include "overlap/config.cuh"

namespace ordo::overlap {

inline constexpr int kThreads = 384;   // one producer warpgroup, two consumers
inline constexpr int kConsumers = 2;   // consumer warpgroups, 64 rows of the tile each
inline constexpr int kRowBytes = 128;  // of a tile in shared memory: one swizzle atom
inline constexpr int kTileK = 64;      // elements of k a stage holds: a row of 16-bit elements
inline constexpr int kBiasSlots = 2;

constexpr int a_bytes(const Config& c) { return c.tile_m * kRowBytes; }
constexpr int b_bytes(const Config& c) { return c.tile_n * kRowBytes; }
constexpr int stage_bytes(const Config& c) { return a_bytes(c) + b_bytes(c); }

/// D and partial sums move in chunks of columns: 128 bytes wide, or 64 where a tile is no multiple of 64 16-bit columns.
constexpr int chunk_columns(const Config& c, bool fp32) { return fp32 || c.tile_n % 64 != 0 ? 32 : 64; }
constexpr int chunk_row_bytes(const Config& c, bool fp32) { return chunk_columns(c, fp32) * (fp32 ? 4 : 2); }

/// A staging buffer: 64 rows of a chunk.
constexpr int store_bytes(const Config& c) {
  const int out = chunk_row_bytes(c, c.out_fp32), partial = reduces(c) ? chunk_row_bytes(c, c.partial_fp32) : 0;
  return 64 * (out > partial ? out : partial);
}

/// Chunks of a partial tile that one stage takes: as many as fit and divide the tile.
constexpr int partial_chunks(const Config& c) {
  const int chunks = c.tile_n / chunk_columns(c, c.partial_fp32);
  int fit = stage_bytes(c) / (c.tile_m * chunk_row_bytes(c, c.partial_fp32));
  while (chunks % fit != 0) --fit;
  return fit;
}

/// mbarriers, 8 bytes each, by number.
struct Barriers {
  int full, empty;            ///< [stages]
  int staged, staging_free;   ///< [warpgroup][store_buffers]
  int bias_full, bias_empty;  ///< [kBiasSlots]
  int count;
};

constexpr Barriers barriers_of(const Config& c) {
  Barriers b{};
  b.full = 0;
  b.empty = b.full + c.stages;
  b.staged = b.empty + c.stages;
  b.staging_free = b.staged + kConsumers * c.store_buffers;
  b.bias_full = b.staging_free + kConsumers * c.store_buffers;
  b.bias_empty = b.bias_full + kBiasSlots;
  b.count = b.bias_empty + kBiasSlots;
  return b;
}

/// Byte offsets from the start of dynamic shared memory. Everything the copy engine or wgmma touches is 1024-byte aligned.
struct Layout {
  int stages;   ///< [stages] A, then B; or chunks of a partial tile
  int staging;  ///< [warpgroup][store_buffers]
  int bias;     ///< [kBiasSlots][tile_n] 16-bit
  int barriers;
  int failed;  ///< int: tiles from this one on are not stored, see wait.cuh
  int bytes;
};

constexpr Layout layout_of(const Config& c) {
  Layout l{};
  int next = 0;
  const auto take = [&](int bytes) {
    const int first = next;
    next += bytes;
    return first;
  };
  l.stages = take(c.stages * stage_bytes(c));
  l.staging = take(kConsumers * c.store_buffers * store_bytes(c));
  l.bias = take(c.bias ? kBiasSlots * c.tile_n * 2 : 0);
  l.barriers = take(barriers_of(c).count * 8);
  l.failed = take(8);
  l.bytes = next;
  return l;
}

}  // namespace ordo::overlap
