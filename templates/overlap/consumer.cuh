// A consumer warpgroup: 64 rows of every tile of its CTA. D's tile stays in its registers from the first k to the staging.
#pragma once

#include "overlap/epilogue.cuh"
#include "overlap/layout.cuh"
#include "sm90/wgmma.cuh"

namespace ordo::overlap {

inline constexpr int kAccumulators = config.tile_n / 2;  // 64 rows over 128 threads

inline constexpr Major kAMajor = config.a_column ? Major::mn : Major::k;
inline constexpr Major kBMajor = config.b_column ? Major::k : Major::mn;

/// D (+)= A B over the 64 k of one stage: `a` the warpgroup's 64 rows, `b` all columns.
template <bool Accumulate>
ORDO_DEVICE void multiply_stage(float (&d)[kAccumulators], Operand a, Operand b) {
  // 16 k further: 32 bytes along a row that runs along k, 16 rows of 128 bytes otherwise.
  constexpr int a_step = config.a_column ? 2048 : 32, b_step = config.b_column ? 32 : 2048;
#pragma unroll
  for (int k = 0; k < kTileK / 16; ++k) {
    const u64 a_tile = descriptor(a.advanced(k * a_step)), b_tile = descriptor(b.advanced(k * b_step));
    if (Accumulate || k > 0)
      mma<kAMajor, kBMajor>(d, a_tile, b_tile);
    else
      mma_first<kAMajor, kBMajor>(d, a_tile, b_tile);
  }
}

struct Consumer {
  const KernelParams& params;
  Shared shared;
  u32 rank;       ///< of the CTA in its cluster
  int warpgroup;  ///< 0 or 1
  int warp;       ///< 0 .. 3 within the warpgroup
  int lane;

  Ring<config.stages> ring = {};
  Ring<config.store_buffers> staging = {};
  Ring<kBiasSlots> bias = {};

  __device__ __forceinline__ void run() {
    Work work;
    for (Walk walk{params, rank}; walk.next(work);) {
      float d[kAccumulators];
      multiply(d);
      if (is_partial(params, work.tile)) {
        stage<config.partial_fp32, false>(d, 0, config.tile_n);
      } else {
        if constexpr (config.bias) barrier_wait(shared.barrier(barriers.bias_full + bias.slot), bias.parity);
        if constexpr (kReduces && config.ranks > 1)
          reduce(d);
        else
          stage<config.out_fp32, true>(d, 0, config.tile_n);
        if constexpr (config.bias) {
          __syncwarp();
          if (lane == 0) barrier_arrive(shared.barrier(barriers.bias_empty + bias.slot));
          bias.advance();
        }
      }
    }
  }

  /// D = A B over all of k.
  __device__ __forceinline__ void multiply(float (&d)[kAccumulators]) {
    multiply_block<false>(d);
    int previous = ring.slot;
    ring.advance();
#pragma unroll 1
    for (int block = 1; block < params.k_blocks; ++block) {
      multiply_block<true>(d);
      mma_wait_operands<1>();
      release(previous);
      previous = ring.slot;
      ring.advance();
    }
    mma_wait<0>(d);
    release(previous);
  }

  template <bool Accumulate>
  __device__ __forceinline__ void multiply_block(float (&d)[kAccumulators]) {
    barrier_wait(shared.barrier(barriers.full + ring.slot), ring.parity);
    const u32 stage = shared.stage(ring.slot);
    mma_fence();
    // The chunk distance is read only where an operand runs along m or n. Half of A's tile is 64 rows in both layouts.
    multiply_stage<Accumulate>(d, operand(stage + warpgroup * (kABytes / 2)), operand(stage + kABytes, kTileK * kRowBytes));
    mma_commit();
  }

  /// Gives a stage back to the loaders of all CTAs that write into it.
  __device__ __forceinline__ void release(int slot) {
    const int thread = warp * 32 + lane;
    const u32 empty = shared.barrier(barriers.empty + slot);
    if constexpr (config.cluster == 1) {
      if (thread == 0) barrier_arrive(empty);
    } else {
      if (thread < config.cluster) barrier_arrive_remote(map_to_cta(empty, static_cast<u32>(thread)));
    }
  }

  /// Adds the partial sums of the other ranks, one rank after the other, as the loader sends them. What the last one completes
  /// leaves at once: the compiler adds late, where it finds a use, and would keep both summands of the whole tile until then.
  __device__ __forceinline__ void reduce(float (&d)[kAccumulators]) {
#pragma unroll 1
    for (int source = 2; source < config.ranks; ++source) {
#pragma unroll
      for (int part = 0; part < kPartialStages; ++part) add_part(d, part);
    }
#pragma unroll
    for (int part = 0; part < kPartialStages; ++part) {
      add_part(d, part);
      stage<config.out_fp32, true>(d, part * kPartialStageColumns, (part + 1) * kPartialStageColumns);
    }
  }

  __device__ __forceinline__ void add_part(float (&d)[kAccumulators], int part) {
    barrier_wait(shared.barrier(barriers.full + ring.slot), ring.parity);
    const u32 rows = shared.stage(ring.slot) + warpgroup * (kPartialChunkBytes / 2);
#pragma unroll
    for (int chunk = 0; chunk < kPartialChunks; ++chunk)
      add_chunk<config.partial_fp32>(d, part * kPartialChunks + chunk, rows + chunk * kPartialChunkBytes, warp, lane);
    named_sync(1 + warpgroup, 128);
    release(ring.slot);
    ring.advance();
  }

  /// Hands the chunks that end in columns `after` + 1 .. `last` to the storing warp, one after the other. Finish: bias and
  /// activation first, chunk by chunk too: over the whole tile at once they need more registers than there are.
  template <bool Fp32, bool Finish>
  __device__ __forceinline__ void stage(float (&d)[kAccumulators], int after, int last) {
    constexpr int columns = Fp32 ? 32 : kHalfRowBytes / 2;
#pragma unroll
    for (int chunk = after / columns; chunk < last / columns; ++chunk) {
      if constexpr (Finish && config.bias) {
        add_bias<columns>(d, chunk, shared.bias(bias.slot), lane);
        activate_chunk<columns>(d, chunk);
      }
      const int buffer = warpgroup * config.store_buffers + staging.slot;
      barrier_wait(shared.barrier(barriers.staging_free + buffer), staging.parity ^ 1u);
      // No loads of bias keep the chunks in order: before the wait, the compiler would begin several, in too many registers.
      if constexpr (Finish && !config.bias) activate_chunk<columns>(d, chunk);
      write_chunk<Fp32>(d, chunk, shared.staging(warpgroup, staging.slot), warp, lane);
      fence_async_shared();
      __syncwarp();
      if (lane == 0) barrier_arrive(shared.barrier(barriers.staged + buffer));
      staging.advance();
    }
  }
};

}  // namespace ordo::overlap
