// What every part of the GEMM kernel knows: sizes, shared memory, and the walk of a cluster over its tiles.
#pragma once

#include "overlap/params.cuh"
#include "overlap/plan.cuh"
#include "overlap/shared_memory.cuh"
#include "sm90/copy.cuh"
#include "sm90/mbarrier.cuh"

namespace ordo::overlap {

// setmaxnreg: two consumer warpgroups and one producer share the 3 x 168 that 384 threads launch with.
inline constexpr int kConsumerRegisters = 224;
inline constexpr int kProducerRegisters = 3 * 168 - 2 * kConsumerRegisters;

inline constexpr Layout layout = layout_of(config);
inline constexpr Barriers barriers = barriers_of(config);

inline constexpr int kABytes = a_bytes(config);
inline constexpr int kBBytes = b_bytes(config);
inline constexpr int kStageBytes = stage_bytes(config);
inline constexpr bool kReduces = reduces(config);
inline constexpr bool kGathers = gathers(config);
/// Columns of a chunk of D and of a partial sum; rows of 16-bit ones are 64 or 128 bytes long.
inline constexpr int kOutColumns = chunk_columns(config, config.out_fp32);
inline constexpr int kPartialColumns = chunk_columns(config, config.partial_fp32);
inline constexpr int kHalfRowBytes = chunk_row_bytes(config, false);
inline constexpr int kPartialRowBytes = chunk_row_bytes(config, config.partial_fp32);
inline constexpr int kStoreBytes = store_bytes(config);
inline constexpr int kPartialChunkBytes = config.tile_m * kPartialRowBytes;
inline constexpr int kPartialChunks = partial_chunks(config);
inline constexpr int kPartialStageColumns = kPartialChunks * kPartialColumns;
inline constexpr int kPartialStages = config.tile_n / kPartialStageColumns;

using KernelParams = Params<config.ranks>;

/// Shared memory of this CTA.
struct Shared {
  u32 base;
  __device__ __forceinline__ u32 stage(int slot) const { return base + layout.stages + static_cast<u32>(slot) * kStageBytes; }
  __device__ __forceinline__ u32 staging(int warpgroup, int buffer) const {
    return base + layout.staging + static_cast<u32>(warpgroup * config.store_buffers + buffer) * kStoreBytes;
  }
  __device__ __forceinline__ u32 bias(int slot) const {
    return base + layout.bias + static_cast<u32>(slot) * (config.tile_n * 2);
  }
  __device__ __forceinline__ u32 failed() const { return base + layout.failed; }
  __device__ __forceinline__ u32 barrier(int number) const { return base + layout.barriers + 8u * static_cast<u32>(number); }
};

/// A tile that this cluster computes.
struct Work {
  Tile tile;
  int row;     ///< of this CTA's tile, in its slice
  int column;  ///< likewise
};

/// The tiles of one cluster, in order. Every role walks by itself, so nobody has to be told.
struct Walk {
  const KernelParams& params;
  u32 rank;  ///< of the CTA in its cluster
  int number = static_cast<int>(blockIdx.x) / config.cluster;

  /// The next tile that is not beyond its slice; false: no more.
  __device__ __forceinline__ bool next(Work& work) {
    const Tiles& tiles = params.tiles;
    for (const int count = tile_count(tiles); number < count;) {
      work.tile = tile_at(tiles, number);
      number += static_cast<int>(gridDim.x) / config.cluster;
      const int first_row = work.tile.unit * (config.tile_m * config.cluster);
      if (first_row >= params.slice[work.tile.slice].rows) continue;
      work.row = first_row + static_cast<int>(rank) * config.tile_m;
      work.column = work.tile.column * config.tile_n;
      return true;
    }
    return false;
  }
};

ORDO_DEVICE int units_of(const Slice& slice) { return ceil_div(slice.rows, config.tile_m * config.cluster); }

/// Whether the tile's slice is the one this rank keeps and finishes.
ORDO_DEVICE bool is_own(const KernelParams& params, const Tile& tile) { return tile.slice == params.tiles.rank; }

/// Whether what the tile's slice becomes here is a partial sum for its owner.
ORDO_DEVICE bool is_partial(const KernelParams& params, const Tile& tile) {
  return kReduces && config.ranks > 1 && !is_own(params, tile);
}

}  // namespace ordo::overlap
