// The producer warpgroup: one thread loads, two others store what the consumers have staged.
#pragma once

#include "overlap/layout.cuh"
#include "overlap/wait.cuh"

namespace ordo::overlap {

/// Fills the stages with A and B, tile by tile, and after the last k of a tile of the own slice with the partial sums to add.
struct Loader {
  const KernelParams& params;
  Shared shared;
  u32 rank;  ///< of the CTA in its cluster

  Ring<config.stages> ring = {};
  Ring<kBiasSlots> bias = {};
  int tiles = 0;  ///< begun
  bool failed = false;

  __device__ __forceinline__ void run() {
    Work work;
    for (Walk walk{params, rank}; walk.next(work); ++tiles) {
      if constexpr (config.bias) {
        if (!is_partial(params, work.tile)) load_bias(work);
      }
      if constexpr (config.op == Op::all_to_all_gemm)
        load_sources(work);
      else
        load_product(work);
      if constexpr (kReduces) {
        if (is_own(params, work.tile)) load_partials(work);
      }
    }
  }

  /// Waits for a chunk of a slice, or of a source's partial sums.
  __device__ __forceinline__ void wait_ready(const Work& work, int index) {
    if (failed) return;
    const Slice& slice = params.slice[work.tile.slice];
    const int chunk = chunk_of(units_of(slice), params.chunks, work.tile.unit);
    u32 expected = params.waiting.expected;
    if constexpr (config.direct)  // the words count what is stored
      expected =
          static_cast<u32>(chunk_arrivals(slice.rows, config.tile_m, config.cluster, params.tiles.columns, params.chunks, chunk));
    if (wait_for(params, {index, chunk, params.waiting.ready + index * params.chunks + chunk, expected})) return;
    failed = true;
    store_shared_int(shared.failed(), tiles);
  }

  __device__ __forceinline__ void load_bias(const Work& work) {
    barrier_wait(shared.barrier(barriers.bias_empty + bias.slot), bias.parity ^ 1u);
    const u32 full = shared.barrier(barriers.bias_full + bias.slot);
    barrier_arrive_expect(full, config.tile_n * 2);
    load_run(shared.bias(bias.slot), params.bias, full, params.slice[work.tile.slice].b_origin + work.column);
    bias.advance();
  }

  __device__ __forceinline__ void load_product(const Work& work) {
    if constexpr (config.op == Op::all_gather_gemm) {
      if (!is_own(params, work.tile)) wait_ready(work, work.tile.slice);
    }
    const Slice& slice = params.slice[work.tile.slice];
    load_blocks(slice, slice.a_origin + work.row, slice.b_origin + work.column, 0, params.k_blocks);
  }

  /// The blocks of k by source, own first: in the order in which they arrive.
  __device__ __forceinline__ void load_sources(const Work& work) {
#pragma unroll 1
    for (int step = 0; step < config.ranks; ++step) {
      const int source = slice_at_step(Pattern::gather, Route::direct, params.tiles.rank, config.ranks, step);
      const Slice& slice = params.slice[source];
      if (slice.k_blocks == 0) continue;
      if (step > 0) wait_ready(work, source);
      load_blocks(slice, work.row, work.column, slice.k_origin, slice.k_blocks);
    }
  }

  /// `first_k`: of B; A's map begins with the block itself.
  __device__ __forceinline__ void load_blocks(const Slice& slice, int row, int column, int first_k, int blocks) {
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      const u32 full = begin_stage(kStageBytes), stage = shared.stage(ring.slot);
      load_a(slice.a, stage, full, row, block * kTileK);
      load_b(slice.b, stage + kABytes, full, column, first_k + block * kTileK);
      ring.advance();
    }
  }

  /// Waits for the next stage and arms its barrier, whose address it gives.
  __device__ __forceinline__ u32 begin_stage(u32 bytes) {
    barrier_wait(shared.barrier(barriers.empty + ring.slot), ring.parity ^ 1u);
    const u32 full = shared.barrier(barriers.full + ring.slot);
    barrier_arrive_expect(full, bytes);
    return full;
  }

  __device__ __forceinline__ void load_a(const TensorMap& map, u32 to, u32 full, int row, int k) {
    if constexpr (config.a_column) {
#pragma unroll
      for (int part = 0; part < config.tile_m / 64; ++part)
        load_tile(to + part * (kTileK * kRowBytes), map, full, row + part * 64, k);
    } else {
      load_tile(to, map, full, k, row);
    }
  }

  /// In a cluster each CTA fetches its share of the tile of B for all.
  __device__ __forceinline__ void load_b(const TensorMap& map, u32 to, u32 full, int column, int k) {
    constexpr int share = config.tile_n / config.cluster;
    const int first = static_cast<int>(rank) * share;
    if constexpr (config.b_column) {
      load_shared_tile(to + first * kRowBytes, map, full, k, column + first);
    } else {
#pragma unroll
      for (int part = 0; part < share / 64; ++part)
        load_shared_tile(to + (first + part * 64) * kRowBytes, map, full, column + first + part * 64, k);
    }
  }

  __device__ __forceinline__ void load_shared_tile(u32 to, const TensorMap& map, u32 full, int x, int y) {
    if constexpr (config.cluster == 1)
      load_tile(to, map, full, x, y);
    else
      load_tile_multicast(to, map, full, x, y, static_cast<u16>((1 << config.cluster) - 1));
  }

  /// What the other ranks have computed of this tile, in the order in which it is added: by rank.
  __device__ __forceinline__ void load_partials(const Work& work) {
#pragma unroll 1
    for (int source = 0; source < config.ranks; ++source) {
      if (source == params.tiles.rank) continue;
      wait_ready(work, source);
#pragma unroll 1
      for (int stage = 0; stage < kPartialStages; ++stage) {
        const u32 full = begin_stage(kPartialChunks * kPartialChunkBytes);
#pragma unroll
        for (int chunk = 0; chunk < kPartialChunks; ++chunk)
          load_tile(shared.stage(ring.slot) + chunk * kPartialChunkBytes, params.slice[source].partial, full,
                    work.column + (stage * kPartialChunks + chunk) * kPartialColumns, work.row);
        ring.advance();
      }
    }
  }
};

/// Stores what one consumer warpgroup stages. One lane.
struct Storer {
  const KernelParams& params;
  Shared shared;
  u32 rank;
  int warpgroup;

  Ring<config.store_buffers> ring = {};
  int unread = 0;  ///< buffers whose copy has not been waited for

  __device__ __forceinline__ void run() {
    Work work;
    int number = 0;
    for (Walk walk{params, rank}; walk.next(work); ++number) {
      store(work, number, is_partial(params, work.tile) ? kPartialColumns : kOutColumns);
    }
    wait_copies<0>();
  }

  __device__ __forceinline__ void store(const Work& work, int number, int columns) {
    const Slice& slice = params.slice[work.tile.slice];
    bool good = true;
#pragma unroll 1
    for (int column = 0; column < config.tile_n; column += columns) {
      const int buffer = warpgroup * config.store_buffers + ring.slot;
      barrier_wait(shared.barrier(barriers.staged + buffer), ring.parity);
      if (column == 0) good = !may_fail() || number < load_shared_int(shared.failed());
      if (good) store_tile(slice.d, shared.staging(warpgroup, ring.slot), work.column + column, work.row + warpgroup * 64);
      commit_copies();
      ring.advance();
      // The buffer before this one has been read, most likely: give it back. The last of a tile must not wait for the next tile.
      const bool last = column + columns >= config.tile_n;
      ++unread;
      free_buffers(last);
    }
    if (slice.signal != nullptr && good) signal(slice, work.tile.unit);
  }

  static constexpr __device__ __forceinline__ bool may_fail() { return kReduces || kGathers; }

  /// Frees the buffers whose copies have been read: all, or all but the newest.
  __device__ __forceinline__ void free_buffers(bool all) {
    if (all || config.store_buffers == 1)
      wait_copies_read<0>();
    else
      wait_copies_read<1>();
    const int keep = all || config.store_buffers == 1 ? 0 : 1;
    for (; unread > keep; --unread) {
      const int slot = ring.slot - unread;
      barrier_arrive(shared.barrier(barriers.staging_free + warpgroup * config.store_buffers +
                                    (slot < 0 ? slot + config.store_buffers : slot)));
    }
  }

  /// The tile lies in memory, here or at its owner: whoever waits for its chunk may count on this part.
  __device__ __forceinline__ void signal(const Slice& slice, int unit) {
    wait_copies<0>();
    fence_async();
    add_release_system(slice.signal + chunk_of(units_of(slice), params.chunks, unit), 1u);
  }
};

ORDO_DEVICE void produce(const KernelParams& params, Shared shared, u32 rank) {
  const int warp = warp_id();
  if (lane_id() == 0) {
    if (warp == 0)
      Loader{params, shared, rank}.run();
    else if (warp <= kStoreWarps)
      Storer{params, shared, rank, warp - 1}.run();
  }
  __syncwarp();
}

}  // namespace ordo::overlap
