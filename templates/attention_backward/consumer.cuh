// A consumer warpgroup: one or two blocks of 64 keys of the CTA's KV tile. dK and dV stay in its registers over the whole walk of
// an item.
//
// S and dP are computed transposed (rows are keys), so that P and dS leave the accumulators already in the register layout of an
// A operand and dV, dK need no trip through shared memory. Only dS is written there, once, for dQ.
#pragma once

#include "attention_backward/dq_piece.cuh"
#include "attention_backward/producer.cuh"
#include "attention_backward/schedule_state.cuh"
#include "sm90/mbarrier.cuh"
#include "sm90/numbers.cuh"
#include "sm90/wgmma.cuh"

namespace ordo::attention_backward {

inline constexpr int kScores = config.tile_q / 2;     // S^T accumulators a thread: 64 keys x tile_q over 128 threads
inline constexpr int kPairs = config.tile_q / 4;      // the same as 16-bit pairs
inline constexpr int kOutputs = config.head_dim / 2;  // dK or dV accumulators a thread, for each of its blocks
inline constexpr int kBlocks = config.tile_kv / 128;  // blocks of 64 keys a warpgroup: warpgroup w has blocks w, w + 2, ...
inline constexpr int kBlockBytes = 2 * 64 * 128;      // from one to the next, in tiles of 128-byte rows
inline constexpr int kPartials = 32;                  // dQ accumulators a thread: a 64 x 64 slice

/// S^T = K Q^T or dP^T += V dO^T for 64 keys: `a` is the warpgroup's K or V rows, `b` the Q or dO tile.
template <bool Accumulate>
ORDO_DEVICE void multiply_scores(float (&s)[kScores], Operand a, Operand b) {
#pragma unroll
  for (int k = 0; k < config.head_dim / 16; ++k) {
    const u64 a_tile = descriptor(a.advanced((k / 4) * kKvChunkBytes + (k % 4) * 32));
    const u64 b_tile = descriptor(b.advanced((k / 4) * kQChunkBytes + (k % 4) * 32));
    if (Accumulate || k > 0)
      mma<Major::k, Major::k>(s, a_tile, b_tile);
    else
      mma_first<Major::k, Major::k>(s, a_tile, b_tile);
  }
}

/// dV += P^T dO or dK += dS^T Q, P^T or dS^T as register fragments.
ORDO_DEVICE void multiply_outputs(float (&out)[kOutputs], const u32 (&p)[kPairs], Operand b) {
#pragma unroll
  for (int k = 0; k < config.tile_q / 16; ++k)
    mma<Major::mn>(out, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3], descriptor(b.advanced(k * 2048)));
}

/// One 64 x 64 slice of dQ (+)= dS K over one KV tile.
template <bool Accumulate>
ORDO_DEVICE void multiply_dq(float (&dq)[kPartials], Operand ds, Operand k_rows) {
#pragma unroll
  for (int k = 0; k < config.tile_kv / 16; ++k) {
    const u64 a_tile = descriptor(ds.advanced(k * 2048)), b_tile = descriptor(k_rows.advanced(k * 2048));
    if (Accumulate || k > 0)
      mma<Major::mn, Major::mn>(dq, a_tile, b_tile);
    else
      mma_first<Major::mn, Major::mn>(dq, a_tile, b_tile);
  }
}

/// Rounds to the nearest int32 (ties to even), saturating; NaN gives 0.
ORDO_DEVICE u32 round_to_int(float x) {
  int y;
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return static_cast<u32>(y);
}

struct Consumer {
  const MainParams& params;
  Shared shared;
  u32 rank;
  int warpgroup;  // 0 or 1
  int warp;       // 0 .. 3 within the warpgroup
  int lane;

  u32 number = 0;           // of the step, over all items; stage and parities follow from it, which costs no registers
  float row_scale[2] = {};  // exact: of the step whose dQ is pending

  __device__ __forceinline__ int stage() const { return static_cast<int>(number % config.stages); }
  __device__ __forceinline__ u32 stage_parity() const { return (number / config.stages) & 1u; }
  __device__ __forceinline__ int slice() const { return kExchange ? static_cast<int>(rank) : kTakeTurns ? 0 : warpgroup; }
  /// Whether this warpgroup computes dQ of `step`.
  __device__ __forceinline__ bool my_turn(u32 step) const { return !kTakeTurns || static_cast<int>(step & 1u) == warpgroup; }
  /// Offset of this thread's row in a key-major tile for store_matrix4, chunk 0, columns 0 .. 15.
  __device__ __forceinline__ u32 matrix_row() const {
    const int matrix = lane >> 3, row = lane & 7;
    return static_cast<u32>((64 * warpgroup + 16 * warp + (matrix & 1) * 8 + row) * 128 + (((matrix >> 1) ^ row) << 4));
  }

  __device__ __forceinline__ void run() {
    // Registers are scarce during a walk: what an item says is read again after it, and what lives from item to item waits in
    // shared memory, one word a warp: twice the item's number, plus the parity of k_full and v_full.
    store_shared(item_state(), 0.f);
    do {
      __syncwarp();
      const u32 state = static_cast<u32>(load_shared_int(item_state()));
      barrier_wait(shared.barrier(barriers.item_full) + 8u * item_slot(state), (state / (2 * kItemSlots)) & 1u);
      const Item item = read_item();
      if (item.kind == Item::convert) {
        if constexpr (kOrdered) convert_tiles(item);
      } else if (item.kind != Item::none) {
        run_item(item, state & 1u);
      }
    } while (finish_item());
    if constexpr (config.state_in_consumer) announce({0, -1, 0, 0});
    // The adding warp has offered its buffers for steps that never came: take them, so that no barrier is left half full.
#pragma unroll
    for (u32 i = 0; i < static_cast<u32>(config.dq_buffers); ++i)
      if (my_turn(number + i)) named_sync(staging_barrier(named.staging_free, number + i), 160);
    settle_outputs();
  }

  static __device__ __forceinline__ u32 item_slot(u32 state) { return (state >> 1) % kItemSlots; }
  __device__ __forceinline__ u32 item_state() const { return shared.at(layout.item_states) + 4u * (4 * warpgroup + warp); }
  /// The item in hand.
  __device__ __forceinline__ Item read_item() const {
    const u32 slot = item_slot(static_cast<u32>(load_shared_int(item_state())));
    const int4 x = load_shared_int4(shared.at(layout.items) + slot * 16u);
    return {x.x, x.y, x.z, x.w};
  }

  /// Hands the item back; false after the last one.
  __device__ __forceinline__ bool finish_item() {
    const u32 state = static_cast<u32>(load_shared_int(item_state()));
    const Item item = read_item();
    __syncwarp();
    if (lane == 0) {
      store_shared(item_state(), __uint_as_float((state + 2) ^ (item.steps > 0 ? 1u : 0u)));
      arrive_at_first(shared.barrier(barriers.item_empty) + 8u * item_slot(state));
    }
    return item.kind != Item::none;
  }

  __device__ __forceinline__ void run_item(const Item& item, u32 kv_parity) {
    if constexpr (kExact) load_column_scale(item.first);
    float dk[kBlocks][kOutputs], dv[kBlocks][kOutputs];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) dk[block][i] = dv[block][i] = 0.f;
    settle_outputs();
    if (item.steps > 0) {
      barrier_wait(shared.barrier(barriers.k_full), kv_parity);
      barrier_wait(shared.barrier(barriers.v_full), kv_parity);
      walk(item, dk, dv);
    }
    store_dv(dv);
    if (read_item().steps > 0 && my_turn(number - 1)) finish_dq(number - 1);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared.barrier(barriers.k_empty));
    store_dk(dk);
  }

  /// `ordered`: finished dQ tiles to the caller, each warp one piece of every tile. The loader streams the sums through the
  /// stages: in registers there is no room for enough of them in flight, because ptxas leaves those of the accumulators alone
  /// here.
  __device__ __forceinline__ void convert_tiles(const Item& item) {
    static_assert(kConvertTiles % (2 * config.stages) == 0, "stage() and its parity must be the same after an item as before it");
    const schedule::Geometry g = geometry(params.shape);
    // Fresh, so that nothing derived from them is kept through the walks, where registers are scarce.
    const int lane = fresh_lane(), warp = fresh(this->warp);
    const int full = warpgroup == 0 ? barriers.q_full : barriers.do_full;
    const u32 buffer = shared.at(warpgroup == 0 ? layout.q : layout.d_o) + lane * 16;
#pragma unroll 1
    for (int i = 0; i < kConvertTiles; ++i) {
      const int slot = static_cast<int>((number + i) % config.stages);
      const int tile = item.first + i * config.cluster + static_cast<int>(rank);
      barrier_wait(shared.barrier(full + slot), ((number + i) / config.stages) & 1u);
      if (tile < item.unit) {
        const TilePlace place = place_of(params.shape, g, tile);
        const bool any = contributors(params, g, place.q) > 0;  // else nobody has written its sums
        // Half of the tile for each warpgroup: kSlices half pieces for each of its warps.
#pragma unroll 1
        for (int n = 0; n < kSlices; ++n) {
          const int half_piece = warp * kSlices + n;  // of this half of the tile
          const int quarter = warpgroup * (2 * kSlices) + half_piece / 2, half = half_piece % 2;
          float2 x[8];
#pragma unroll
          for (int j = 0; j < 8; ++j)
            x[j] = any ? load_shared2(buffer + slot * kQBytes + (half_piece / 2) * 4096 + j * 512 + half * 8) : float2{0.f, 0.f};
          store_half_piece(params.dq, g, place, {quarter / 4, quarter % 4}, half, x);
        }
      }
      // dO before Q: the loader fills Q first, so a full Q says that every warp has released the dO before it as well.
      release(barriers.do_empty + slot);
      release(barriers.q_empty + slot);
    }
  }

  __device__ __forceinline__ int staging_barrier(int base, u32 step) const {
    return base + warpgroup + 2 * static_cast<int>(step % config.dq_buffers);
  }

  /// The first key of the warpgroup's first block.
  __device__ __forceinline__ int first_key_of(const Item& item) const {
    return (item.unit * config.cluster + static_cast<int>(rank)) * config.tile_kv + 64 * warpgroup;
  }

  /// All steps of an item, but for the dQ of the last.
  __device__ __forceinline__ void walk(const Item& item, float (&dk)[kBlocks][kOutputs], float (&dv)[kBlocks][kOutputs]) {
    const schedule::Geometry g = geometry(params.shape);
    const int first_key = first_key_of(item);
    // A Q tile needs masking if its first row does not see the warpgroup's last key. One answer for all four warps: they issue
    // each wgmma together, so they must run the same body.
    const int unmasked_from = first_visible_row(g, first_key + 128 * (kBlocks - 1) + 63);
    [[maybe_unused]] ScheduleState state(params, g, item);
    const Operand k = operand(shared.at(layout.k) + warpgroup * 8192), v = operand(shared.at(layout.v) + warpgroup * 8192);
#pragma unroll 1
    for (int place = 0; (place & Step::last) == 0; ++number) {
      barrier_wait(shared.barrier(barriers.q_full + stage()), stage_parity());
      barrier_wait(shared.barrier(barriers.do_full + stage()), stage_parity());
      if constexpr (config.state_in_consumer) {
        const Step next = state.take(params, g);
        announce(next);
        place = next.place;
      } else {
        place = load_shared_int(shared.at(layout.steps) + (number % kStepSlots) * 16u);
      }
      const bool first = (place & Step::first) != 0;
      const int first_row = (place >> 2) * config.tile_q;
      // Two bodies, so that the masking of the few tiles that need it costs the others not even a branch between their
      // instructions.
      const bool masked = config.mask_expression ? any_block_masked() : unmasked_from > first_row;
      if (masked)
        masked_step(first, first_row, first_key, k, v, dk, dv);
      else
        step(first, k, v, dk, dv);
    }
  }

  /// Masks by expression: what the step in hand sees, from the warpgroup's first block on (schedule.cuh).
  __device__ __forceinline__ int seen_by_blocks() const {
    const int more = load_shared_int(shared.at(layout.steps) + (number % kStepSlots) * 16u + 12u);
    return more >> (Step::kSeenShift + static_cast<int>(rank) * (config.tile_kv / 64) + warpgroup);
  }
  __device__ __forceinline__ bool any_block_masked() const { return (seen_by_blocks() & (kBlocks == 2 ? 5 : 1)) != 0; }
  __device__ __forceinline__ bool block_hidden(int block) const {
    return (seen_by_blocks() >> (schedule::kHiddenShift + 2 * block) & 1) != 0;
  }

  /// schedule_state consumer: tells the adding and the exchanging warps.
  __device__ __forceinline__ void announce(Step step) {
    if (warpgroup == 0 && warp == 0 && lane == 0) announce_step(shared, number, step);
  }

  /// One Q tile, all of it visible. The scores of a block begin while dV and dK of the block before are computed.
  __device__ __forceinline__ void step(bool first, Operand k, Operand v, float (&dk)[kBlocks][kOutputs],
                                       float (&dv)[kBlocks][kOutputs]) {
    const Operand q_tile = staged_tile(layout.q), do_tile = staged_tile(layout.d_o);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      float s[kScores], dp[kScores];
      u32 p[kPairs], ds[kPairs];
      if (block == 0) {
        issue_scores(s, dp, k, v, q_tile, do_tile);
      } else {
        // dP starts at zero here: its accumulators cannot be set while other products run. Delta is subtracted afterwards.
        mma_fence();
        multiply_scores<false>(s, k.advanced(block * kBlockBytes), q_tile);
        mma_commit();
        mma_wait<1>(dk[block - 1]);
        pin(dv[block - 1]);
        mma_fence();
        multiply_scores<false>(dp, v.advanced(block * kBlockBytes), do_tile);
        mma_commit();
      }
      mma_wait<1>(s);
      exponentiate(s);
      round_pairs(p, s);
      mma_wait<0>(dp);
      if (block > 0) add_neg_delta(dp);
      multiply_elements(dp, s);
      round_pairs(ds, dp);
      if (block == 0) wait_ds_empty();
      store_ds(ds, block);
      pin(p);
      pin(dv[block]);
      mma_fence();
      multiply_outputs(dv[block], p, do_tile);
      if (block == kBlocks - 1) {
        mma_commit();
        finish_step(first, q_tile, ds, dk[block], dv[block]);
      } else {
        pin(ds);
        pin(dk[block]);
        mma_fence();
        multiply_outputs(dk[block], ds, q_tile);
        mma_commit();
      }
    }
  }

  /// A Q tile at the edge of the mask. Blocks that see nothing of it are left out, and nothing overlaps: a body with both
  /// would need more registers than there are.
  __device__ __forceinline__ void masked_step(bool first, int first_row, int first_key, Operand k, Operand v,
                                              float (&dk)[kBlocks][kOutputs], float (&dv)[kBlocks][kOutputs]) {
    const Operand q_tile = staged_tile(layout.q), do_tile = staged_tile(layout.d_o);
    wait_ds_empty();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int key = first_key + 128 * block;
      u32 ds[kPairs] = {};
      const bool sees = config.mask_expression ? !block_hidden(block)
                                               : first_visible_row(geometry(params.shape), key) < first_row + config.tile_q;
      if (sees) {
        // An expression comes first: only before the accumulators of S and dP are there are registers left to evaluate it.
        const u32 seen = config.mask_expression ? find_seen(block, first_row) : 0u;
        float s[kScores], dp[kScores];
        u32 p[kPairs];
        issue_scores(s, dp, k.advanced(block * kBlockBytes), v.advanced(block * kBlockBytes), q_tile, do_tile);
        mma_wait<1>(s);
        exponentiate(s);
        hide(s, seen, key, first_row);
        round_pairs(p, s);
        mma_wait<0>(dp);
        multiply_elements(dp, s);
        hide(dp, seen, key, first_row);
        round_pairs(ds, dp);
        store_ds(ds, block);
        pin(p);
        pin(dv[block]);
        pin(ds);
        pin(dk[block]);
        mma_fence();
        multiply_outputs(dv[block], p, do_tile);
        multiply_outputs(dk[block], ds, q_tile);
        mma_commit();
        mma_wait<0>(dk[block]);
        pin(dv[block]);
      } else {
        store_ds(ds, block);  // dQ is a sum over all blocks
      }
    }
    announce_ds();
    release(barriers.do_empty + stage());
    if constexpr (!kExact) release(barriers.q_empty + stage());
    if (!first && my_turn(number - 1)) finish_dq(number - 1);
    load_row_scale();
    if constexpr (kExact) release(barriers.q_empty + stage());  // the row scale lies in the same stage
  }

  /// The stage's Q or dO tile. Read K-major (S, dP) and transposed (dK, dV); the chunk distance is read only in the second use.
  __device__ __forceinline__ Operand staged_tile(int buffer) const {
    return operand(shared.at(buffer), kQChunkBytes).advanced(stage() * kQBytes);
  }

  /// S^T = K Q^T and dP^T - delta = V dO^T - delta, the accumulators starting at -delta.
  __device__ __forceinline__ void issue_scores(float (&s)[kScores], float (&dp)[kScores], Operand k, Operand v, Operand q_tile,
                                               Operand do_tile) {
    start_at_neg_delta(dp);
    pin(dp);
    mma_fence();
    multiply_scores<false>(s, k, q_tile);
    mma_commit();
    multiply_scores<true>(dp, v, do_tile);
    mma_commit();
  }

  /// x *= y: dS = P (dP - delta).
  static __device__ __forceinline__ void multiply_elements(float (&x)[kScores], const float (&y)[kScores]) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) x[i] *= y[i];
  }

  /// dS of this step may be written: the dQ of the step before last has read the buffer.
  __device__ __forceinline__ void wait_ds_empty() { wait_ds_empty(number); }
  __device__ __forceinline__ void wait_ds_empty(u32 step) {
    barrier_wait(shared.barrier(barriers.ds_empty) + 8u * (step % kDsBuffers), ((step / kDsBuffers) & 1u) ^ 1u);
  }
  /// This warp has written its dS of this step.
  __device__ __forceinline__ void announce_ds() {
    fence_async_shared();
    __syncwarp();
    if (lane == 0) barrier_arrive(shared.barrier(barriers.ds_full) + 8u * (number % kDsBuffers));
  }

  /// dV of the last block is in flight. Its dK, and dQ of the step before: one step late, so that no consumer waits for the
  /// other's dS.
  __device__ __forceinline__ void finish_step(bool first, Operand q_tile, u32 (&ds)[kPairs], float (&dk)[kOutputs],
                                              float (&dv)[kOutputs]) {
    announce_ds();
    if (!first && my_turn(number - 1)) {
      wait_ds(number - 1);
      multiply_dq_and_dk(number - 1, q_tile, ds, dk, dv);
    } else {
      pin(ds);
      pin(dk);
      mma_fence();
      multiply_outputs(dk, ds, q_tile);
      mma_commit();
      mma_wait<1>(dv);
      release(barriers.do_empty + stage());
    }
    load_row_scale();
    mma_wait<0>(dk);
    release(barriers.q_empty + stage());
  }

  /// dQ of `dq_step` and this step's dK, in flight together; dQ leaves while dK is computed. dV is done when dQ is.
  __device__ __forceinline__ void multiply_dq_and_dk(u32 dq_step, Operand q_tile, u32 (&ds)[kPairs], float (&dk)[kOutputs],
                                                     float (&dv)[kOutputs]) {
    float dq[kPartials];
    pin(ds);
    pin(dk);
    mma_fence();
    multiply_dq_of(dq, dq_step);
    mma_commit();
    multiply_outputs(dk, ds, q_tile);
    mma_commit();
    mma_wait<1>(dq);
    pin(dv);
    release(barriers.do_empty + stage());
    release(barriers.ds_empty + static_cast<int>(dq_step % kDsBuffers));
    stage_dq(dq, dq_step);
  }

  /// The dQ of `step`, with nothing beside it.
  __device__ __forceinline__ void finish_dq(u32 step) {
    float dq[kPartials];
    wait_ds(step);
    mma_fence();
    multiply_dq_of(dq, step);
    mma_commit();
    mma_wait<0>(dq);
    release(barriers.ds_empty + static_cast<int>(step % kDsBuffers));
    stage_dq(dq, step);
  }

  __device__ __forceinline__ void wait_ds(u32 step) {
    const u32 buffer = step % kDsBuffers, parity = (step / kDsBuffers) & 1u;
    barrier_wait(shared.barrier(barriers.ds_full) + 8u * buffer, parity);
    if constexpr (kExchange) barrier_wait(shared.barrier(barriers.peer_ds_full) + 8u * buffer, parity);
  }

  /// This warpgroup's slice of dQ from the dS of `step`: over the CTA's own KV tile, then over the peer's.
  __device__ __forceinline__ void multiply_dq_of(float (&dq)[kPartials], u32 step) {
    const u32 buffer = step % kDsBuffers;
    const int offset = static_cast<int>(buffer) * kDsBytes;
    multiply_dq<false>(dq, operand(shared.at(layout.ds)).advanced(offset),
                       operand(shared.at(layout.k) + slice() * kKvChunkBytes));
    if constexpr (kExchange)
      multiply_dq<true>(dq, operand(shared.at(layout.peer_ds)).advanced(offset), operand(shared.at(layout.peer_k)));
  }

  /// This warp is done with a buffer; in a cluster both CTAs must know. Its lanes have read row statistics there, and an arrival
  /// orders only what its own lane did before: hence __syncwarp.
  __device__ __forceinline__ void release(int barrier) {
    __syncwarp();
    if constexpr (kExchange) {
      if (lane < 2) barrier_arrive_remote(map_to_cta(shared.barrier(barrier), static_cast<u32>(lane)));
    } else {
      if (lane == 0) barrier_arrive(shared.barrier(barrier));
    }
  }

  __device__ __forceinline__ void start_at_neg_delta(float (&dp)[kScores]) {
    const u32 row = shared.at(layout.neg_delta) + stage() * (config.tile_q * 4) + (lane & 3) * 8;
#pragma unroll
    for (int j = 0; j < config.tile_q / 8; ++j) {
      const float2 delta = load_shared2(row + j * 32);
      dp[4 * j] = dp[4 * j + 2] = delta.x;
      dp[4 * j + 1] = dp[4 * j + 3] = delta.y;
    }
  }

  __device__ __forceinline__ void add_neg_delta(float (&dp)[kScores]) {
    const u32 row = shared.at(layout.neg_delta) + stage() * (config.tile_q * 4) + (lane & 3) * 8;
#pragma unroll
    for (int j = 0; j < config.tile_q / 8; ++j) {
      const float2 delta = load_shared2(row + j * 32);
      dp[4 * j] += delta.x;
      dp[4 * j + 2] += delta.x;
      dp[4 * j + 1] += delta.y;
      dp[4 * j + 3] += delta.y;
    }
  }

  __device__ __forceinline__ void exponentiate(float (&s)[kScores]) {
    const u32 row = shared.at(layout.neg_lse2) + stage() * (config.tile_q * 4) + (lane & 3) * 8;
    constexpr int batch = 8;  // loads in flight
#pragma unroll
    for (int first = 0; first < config.tile_q / 8; first += batch) {
      float2 lse[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j) lse[j] = load_shared2(row + (first + j) * 32);
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        float* x = s + 4 * (first + j);
        x[0] = exp2_approx(__fmaf_rn(x[0], params.scale_log2, lse[j].x));
        x[1] = exp2_approx(__fmaf_rn(x[1], params.scale_log2, lse[j].y));
        x[2] = exp2_approx(__fmaf_rn(x[2], params.scale_log2, lse[j].x));
        x[3] = exp2_approx(__fmaf_rn(x[3], params.scale_log2, lse[j].y));
      }
    }
  }

  /// The first query row that sees `key`; none does when the key lies beyond the sequence.
  static __device__ __forceinline__ int first_visible_row(const schedule::Geometry& g, int key) {
    if (key >= g.seqlen_k) return 0x7fffffff;
    return g.causal ? key - (g.seqlen_k - g.seqlen_q) : -0x7fffffff;
  }

  /// Zeroes what the mask hides. A selection, not a product: a NaN that nobody sees must not spread. `seen` is find_seen()'s.
  __device__ __forceinline__ void hide(float (&x)[kScores], u32 seen, int first_key, int first_row) {
    if constexpr (config.mask_expression) {
#pragma unroll
      for (int i = 0; i < kScores; ++i)
        if ((seen >> i & 1u) == 0) x[i] = 0.f;
    } else {
      select_visible(x, first_key, first_row);
    }
  }

  /// Masks by expression: a bit for each of this thread's pairs of a block.
  __device__ __forceinline__ u32 find_seen(int block, int first_row) {
    static_assert(kScores == 32);
    const schedule::Geometry g = geometry(params.shape);
    // Fresh, and the first key read again: else what follows from them alone is kept in registers over the whole walk.
    const int lane = fresh_lane(), warp = fresh(this->warp);
    const int key = first_key_of(read_item()) + 128 * block + 16 * warp + (lane >> 2), row = first_row + 2 * (lane & 3);
    TilePlace place{};
    if constexpr (config.mask_reads_head)
      place = place_of(params.shape, g, load_shared_int(shared.at(layout.steps) + (number % kStepSlots) * 16u + 4u));
    u32 seen = 0;
    // A loop, four pairs a turn: all at once take registers that dK and dV have, and minutes to compile where the expression is
    // long.
#pragma unroll 1
    for (int j = 0; j < kScores / 4; ++j) {
      const int first_k = fresh(key);
      u32 bits = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int q = row + 8 * j + (i & 1), k = first_k + 4 * (i & 2);
        const bool sees = k < g.seqlen_k && visible(q, k, place.head, place.batch, g.seqlen_q, g.seqlen_k);
        bits |= static_cast<u32>(sees) << i;
      }
      seen = seen >> 4 | bits << 28;
    }
    return seen;
  }

  __device__ __forceinline__ void select_visible(float (&x)[kScores], int first_key, int first_row) {
    const schedule::Geometry g = geometry(params.shape);
    const int key = first_key + 16 * warp + (lane >> 2), column = first_row + 2 * (lane & 3);
    const int low = first_visible_row(g, key), high = first_visible_row(g, key + 8);
#pragma unroll
    for (int j = 0; j < config.tile_q / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (column + 8 * j + e < low) x[4 * j + e] = 0.f;
        if (column + 8 * j + e < high) x[4 * j + 2 + e] = 0.f;
      }
    }
  }

  /// P or dS as an A operand.
  static __device__ __forceinline__ void round_pairs(u32 (&pairs)[kPairs], const float (&x)[kScores]) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) pairs[i] = pack(x[2 * i], x[2 * i + 1]);
  }

  /// dS as [key][64 queries], rows of 128 bytes, swizzled.
  __device__ __forceinline__ void store_ds(const u32 (&ds)[kPairs], int block) {
    const u32 to = shared.at(layout.ds) + (number % kDsBuffers) * kDsBytes + block * kBlockBytes + matrix_row();
#pragma unroll
    for (int k = 0; k < config.tile_q / 16; ++k)
      store_matrix4(to ^ (k * 32), ds[4 * k], ds[4 * k + 1], ds[4 * k + 2], ds[4 * k + 3]);
  }

  /// Hands a dQ slice to the adding warp: fragment order, 16 bytes a lane, so that neither stores nor the copy engine meet
  /// conflicts.
  __device__ __forceinline__ void stage_dq(float (&dq)[kPartials], u32 step) {
    const u32 buffer = step % config.dq_buffers;
    const u32 to =
        shared.at(layout.dq) + (buffer * kStageSlices + (kTakeTurns ? 0 : warpgroup)) * kSliceBytes + warp * 4096 + lane * 16;
    if constexpr (kExact) to_fixed_point(dq, step);
    named_sync(staging_barrier(named.staging_free, step), 160);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      store_shared4(to + j * 512, __float_as_uint(dq[4 * j]), __float_as_uint(dq[4 * j + 1]), __float_as_uint(dq[4 * j + 2]),
                    __float_as_uint(dq[4 * j + 3]));
    named_arrive(staging_barrier(named.staged, step), 160);
  }

  // ---- exact: int32 fixed point. Row i counts in units of R_i C_d 2^-30, powers of two that bound the sum (see preprocess).
  // ----

  /// C_d^-1 for every column, once an item.
  __device__ __forceinline__ void load_column_scale(int walk) {
    const int column = static_cast<int>(threadIdx.x) - (kMainThreads - kConsumerThreads);
    named_sync(named.consumers, kConsumerThreads);  // the previous item's scales have been read
    if (column < config.head_dim) {
      const int exponent = params.scratch.key_exponents[static_cast<size_t>(walk) * (config.head_dim + 1) + column];
      store_shared(shared.at(layout.column_scale) + column * 4, exponent == 0 ? 0.f : power_of_two(kExponentBias - exponent));
    }
    named_sync(named.consumers, kConsumerThreads);
  }

  __device__ __forceinline__ int slice_row() const { return 16 * warp + (lane >> 2); }

  __device__ __forceinline__ void load_row_scale() {
    if constexpr (kExact) {
      const u32 row = shared.at(layout.row_scale) + stage() * (config.tile_q * 4) + slice_row() * 4;
      row_scale[0] = load_shared(row);
      row_scale[1] = load_shared(row + 32);
    }
  }

  /// In place: int32 bits in the float registers. A row that meets a non-finite partial is poisoned, because integers cannot say
  /// NaN.
  __device__ __forceinline__ void to_fixed_point(float (&dq)[kPartials], u32 step) {
    const u32 columns = shared.at(layout.column_scale) + (64 * slice() + 2 * (lane & 3)) * 4;
    float sick[2] = {0.f, 0.f};  // becomes NaN if any partial of the row is not finite
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 c = load_shared2(columns + j * 32);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sick[e / 2] = __fmaf_rn(dq[4 * j + e], 0.f, sick[e / 2]);
        dq[4 * j + e] = __uint_as_float(round_to_int(dq[4 * j + e] * row_scale[e / 2] * (e % 2 == 0 ? c.x : c.y)));
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (sick[r] != 0.f) {  // true for NaN
        const int tile = wait_step(shared, step).tile;
        params.scratch.poison[static_cast<size_t>(tile) * config.tile_q + slice_row() + 8 * r] = 1u;
      }
  }

  // ---- Epilogue ----

  // dV goes out over V's rows before the last dQ is computed, and dK over the dS that it has read, so that the next item's K and
  // V are on their way while dK is staged. The copy engine drops rows beyond seqlen_k. A warpgroup writes its own keys' rows
  // alone.

  /// What the copy engine still reads of the item before has left this warpgroup's rows of V and dS.
  __device__ __forceinline__ void settle_outputs() {
    if (warp == 0 && lane == 0) wait_copies_read<0>();
    named_sync(named.epilogue + warpgroup, 128);
  }

  __device__ __forceinline__ void store_dv(const float (&dv)[kBlocks][kOutputs]) {
    stage_output(shared.at(layout.v), dv, 1.f);
    store_staged(params.dv, layout.v);
  }

  __device__ __forceinline__ void store_dk(const float (&dk)[kBlocks][kOutputs]) {
    static_assert(config.tile_q == 64 && kDsBuffers * kDsBytes >= kKvBytes, "dK is staged over dS, row by row");
    if (warp == 0 && lane == 0) {
      wait_copies_read<0>();
      barrier_arrive(shared.barrier(barriers.v_empty));
    }
    __syncwarp();
    // Every dQ product of this item has read its dS, in both CTAs of a cluster.
    wait_ds_empty(number);
    wait_ds_empty(number + 1);
    stage_output(shared.at(layout.ds), dk, params.scale);
    store_staged(params.dk, layout.ds);
  }

  /// One thread sends what its warpgroup has staged at `from`.
  __device__ __forceinline__ void store_staged(const TensorMap& map, int from) {
    fence_async_shared();
    named_sync(named.epilogue + warpgroup, 128);
    if (warp == 0 && lane == 0) {
      const Item item = read_item();
      const int batch = item.first / kv_heads(params.shape), kv_head = item.first - batch * kv_heads(params.shape);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk)
          store_box(map, shared.at(from) + warpgroup * 8192 + block * kBlockBytes + chunk * kKvChunkBytes,
                    first_key_of(item) + 128 * block, chunk, kv_head, batch);
      commit_copies();
    }
  }

  __device__ __forceinline__ void stage_output(u32 tile, const float (&x)[kBlocks][kOutputs], float factor) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const u32 to = tile + matrix_row() + block * kBlockBytes;
      const float(&y)[kOutputs] = x[block];
#pragma unroll
      for (int k = 0; k < config.head_dim / 16; ++k)
        store_matrix4((to ^ ((k % 4) * 32)) + (k / 4) * kKvChunkBytes, pack(y[8 * k] * factor, y[8 * k + 1] * factor),
                      pack(y[8 * k + 2] * factor, y[8 * k + 3] * factor), pack(y[8 * k + 4] * factor, y[8 * k + 5] * factor),
                      pack(y[8 * k + 6] * factor, y[8 * k + 7] * factor));
    }
  }
};

}  // namespace ordo::attention_backward
