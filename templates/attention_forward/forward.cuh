// O = softmax(scale Q K^T) V and LSE, one CTA a tile of 128 queries; softmax over the KV tiles as they come (Milakov and
// Gimelshein 2018). The order of all sums is fixed, so the same inputs give the same bits.
#pragma once

#include "attention_forward/params.cuh"
#include "attention_forward/plan.cuh"
#include "sm90/copy.cuh"
#include "sm90/mbarrier.cuh"
#include "sm90/wgmma.cuh"

namespace ordo::attention_forward {

inline constexpr Layout layout = layout_of(config);
inline constexpr int kChunks = config.head_dim / 64;  // a row is stored as 64-element (128-byte) chunks, one swizzle atom wide
inline constexpr int kTileBytes = kTileKv * config.head_dim * 2;  // of Q, K and V alike
inline constexpr int kChunkBytes = kTileKv * 128;
inline constexpr int kScores = kTileKv / 2;           // S accumulators a thread: 64 x 128 over 128 threads
inline constexpr int kOutputs = config.head_dim / 2;  // O accumulators a thread
static_assert(kTileQ == kTileKv, "tiles of Q and KV have one size");

// mbarriers by number; the last four have one a stage.
inline constexpr int kQFull = 0, kKFull = 1, kVFull = kKFull + kStages, kKEmpty = kVFull + kStages, kVEmpty = kKEmpty + kStages;

/// log2(x), one MUFU; -inf for 0. Absolute error 2^-22 around 1 (PTX ISA, "lg2").
ORDO_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Which rows and keys this CTA works on.
struct Work {
  int batch, head, kv_head;
  int first_row;
  int kv_tiles;  ///< that any of its rows sees
};

ORDO_DEVICE Work work_of(const Params& p) {
  // The last Q tiles first: under a causal mask they take longest.
  const int block = static_cast<int>(blockIdx.x), walk = block / p.q_tiles;
  Work w{walk / p.heads, walk % p.heads, 0, (p.q_tiles - 1 - block % p.q_tiles) * kTileQ, 0};
  w.kv_head = w.head / p.group;
  int keys = p.seqlen_k;
  if constexpr (config.causal) {
    const int last_row = min(w.first_row + kTileQ, p.seqlen_q) - 1;
    keys = max(0, min(keys, last_row + p.seqlen_k - p.seqlen_q + 1));
  }
  w.kv_tiles = (keys + kTileKv - 1) / kTileKv;
  return w;
}

struct Shared {
  u32 base;
  __device__ __forceinline__ u32 at(int offset) const { return base + static_cast<u32>(offset); }
  __device__ __forceinline__ u32 barrier(int number) const { return base + static_cast<u32>(layout.barriers + 8 * number); }
};

/// One thread: Q once, then K and V tile by tile through their stages.
ORDO_DEVICE void load_tiles(const Params& p, Shared shared, const Work& w) {
  barrier_arrive_expect(shared.barrier(kQFull), kTileBytes);
  load_box(shared.at(layout.q), p.q, shared.barrier(kQFull), w.first_row, 0, w.head, w.batch);
  Ring<kStages> ring;
#pragma unroll 1
  for (int tile = 0; tile < w.kv_tiles; ++tile) {
    const int slot = ring.slot;
    barrier_wait(shared.barrier(kKEmpty + slot), ring.parity ^ 1u);
    barrier_arrive_expect(shared.barrier(kKFull + slot), kTileBytes);
    load_box(shared.at(layout.k + slot * kTileBytes), p.k, shared.barrier(kKFull + slot), tile * kTileKv, 0, w.kv_head, w.batch);
    barrier_wait(shared.barrier(kVEmpty + slot), ring.parity ^ 1u);
    barrier_arrive_expect(shared.barrier(kVFull + slot), kTileBytes);
    load_box(shared.at(layout.v + slot * kTileBytes), p.v, shared.barrier(kVFull + slot), tile * kTileKv, 0, w.kv_head, w.batch);
    ring.advance();
  }
}

/// A consumer warpgroup: 64 rows. A thread holds two of them, eight apart, every fourth pair of columns.
struct Consumer {
  const Params& p;
  Shared shared;
  const Work& work;
  int warpgroup;  // 0 or 1
  int warp;       // 0 .. 3 within the warpgroup
  int lane;

  float peak[2];  // of the row so far: the largest score, -inf before the first
  float sum[2];   // of this thread's columns: exp2((score - peak) scale_log2)

  __device__ __forceinline__ int row(int r) const { return work.first_row + 64 * warpgroup + 16 * warp + (lane >> 2) + 8 * r; }
  __device__ __forceinline__ void release(int barrier) {
    if (lane == 0) barrier_arrive(shared.barrier(barrier));
  }

  __device__ __forceinline__ void run() {
    float o[kOutputs];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0.f;
    peak[0] = peak[1] = -__uint_as_float(0x7f800000u);
    sum[0] = sum[1] = 0.f;
    barrier_wait(shared.barrier(kQFull), 0);
    Ring<kStages> ring;
    const int all_see_until = sees_until(p, work.first_row + 64 * warpgroup);  // the warpgroup's first row sees least
#pragma unroll 1
    for (int tile = 0; tile < work.kv_tiles; ++tile) {
      if (config.mask_expression || (tile + 1) * kTileKv > all_see_until)
        step<true>(tile, ring, o);
      else
        step<false>(tile, ring, o);
      ring.advance();
    }
    store(o);
  }

  /// Keys [0, end) are seen by `row`.
  static __device__ __forceinline__ int sees_until(const Params& p, int row) {
    return config.causal ? min(p.seqlen_k, row + p.seqlen_k - p.seqlen_q + 1) : p.seqlen_k;
  }

  /// One KV tile: S = Q K^T, P = exp2(S - peak), O = O * correction + P V.
  template <bool Masked>
  __device__ __forceinline__ void step(int tile, const Ring<kStages>& ring, float (&o)[kOutputs]) {
    float s[kScores];
    barrier_wait(shared.barrier(kKFull + ring.slot), ring.parity);
    const Operand q = operand(shared.at(layout.q + warpgroup * 8192));
    const Operand k = operand(shared.at(layout.k)).advanced(ring.slot * kTileBytes);
    mma_fence();
#pragma unroll
    for (int i = 0; i < config.head_dim / 16; ++i) {
      const u64 a = descriptor(q.advanced((i / 4) * kChunkBytes + (i % 4) * 32));
      const u64 b = descriptor(k.advanced((i / 4) * kChunkBytes + (i % 4) * 32));
      if (i == 0)
        mma_first<Major::k, Major::k>(s, a, b);
      else
        mma<Major::k, Major::k>(s, a, b);
    }
    mma_commit();
    mma_wait<0>(s);
    release(kKEmpty + ring.slot);

    if constexpr (Masked) hide(s, tile);
    float correction[2];
    exponentiate(s, correction);
    u32 fragments[kScores / 2];
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) fragments[i] = pack(s[2 * i], s[2 * i + 1]);
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] *= correction[(i / 2) % 2];

    barrier_wait(shared.barrier(kVFull + ring.slot), ring.parity);
    const Operand v = operand(shared.at(layout.v), kChunkBytes).advanced(ring.slot * kTileBytes);
    pin(fragments);
    pin(o);
    mma_fence();
#pragma unroll
    for (int i = 0; i < kTileKv / 16; ++i)
      mma<Major::mn>(o, fragments[4 * i], fragments[4 * i + 1], fragments[4 * i + 2], fragments[4 * i + 3],
                     descriptor(v.advanced(i * 2048)));
    mma_commit();
    mma_wait<0>(o);
    release(kVEmpty + ring.slot);
  }

  __device__ __forceinline__ bool sees(int q, int k) const {
    return !config.mask_expression || visible(q, k, work.head, work.batch, p.seqlen_q, p.seqlen_k);
  }

  /// -inf where a row does not see a key: a selection, so that a NaN that nobody sees does not spread.
  __device__ __forceinline__ void hide(float (&s)[kScores], int tile) {
    const int column = tile * kTileKv + 2 * (lane & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int end = sees_until(p, row(r));
#pragma unroll
      for (int j = 0; j < kTileKv / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (column + 8 * j + e >= end || !sees(row(r), column + 8 * j + e))
            s[4 * j + 2 * r + e] = -__uint_as_float(0x7f800000u);
    }
  }

  /// In place: probabilities relative to the row's peak, which may rise; `correction` takes what came before to the new peak.
  __device__ __forceinline__ void exponentiate(float (&s)[kScores], float (&correction)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float highest = peak[r];
#pragma unroll
      for (int j = 0; j < kTileKv / 8; ++j) highest = fmaxf(highest, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
      const float offset = peak_log2(highest);
      correction[r] = exp2_approx(__fmaf_rn(peak[r], p.scale_log2, -offset));
      peak[r] = highest;
      float part = 0.f;
#pragma unroll
      for (int j = 0; j < kTileKv / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * j + 2 * r + e];
          x = exp2_approx(__fmaf_rn(x, p.scale_log2, -offset));
          part += x;
        }
      sum[r] = __fmaf_rn(sum[r], correction[r], part);
    }
  }

  /// A row that has seen nothing yet has peak -inf; measured from 0 instead, its probabilities are 0 and not NaN.
  __device__ __forceinline__ float peak_log2(float x) const {
    return x == -__uint_as_float(0x7f800000u) ? 0.f : x * p.scale_log2;
  }

  __device__ __forceinline__ void store(const float (&o)[kOutputs]) {
    constexpr float ln2 = 0.6931471805599453f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = sum[r] + __shfl_xor_sync(0xffffffffu, sum[r], 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      if (row(r) >= p.seqlen_q) continue;
      const float inverse = total == 0.f ? 0.f : 1.f / total;  // 0: the row sees nothing
      u16* to = static_cast<u16*>(p.o) + work.batch * p.o_batch_stride + row(r) * p.o_seqlen_stride + work.head * p.o_head_stride;
#pragma unroll
      for (int j = 0; j < config.head_dim / 8; ++j)
        *reinterpret_cast<u32*>(to + 8 * j + 2 * (lane & 3)) = pack(o[4 * j + 2 * r] * inverse, o[4 * j + 2 * r + 1] * inverse);
      if ((lane & 3) == 0)
        p.lse[(static_cast<long long>(work.batch) * p.heads + work.head) * p.seqlen_q + row(r)] =
            (peak_log2(peak[r]) + log2_approx(total)) * ln2;
    }
  }
};

ORDO_DEVICE void run_forward(const Params& params) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared shared{static_cast<u32>(__cvta_generic_to_shared(memory))};
  const Work work = work_of(params);
  if (threadIdx.x == 0) {
    barrier_init(shared.barrier(kQFull), 1);
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared.barrier(kKFull + i), 1);
      barrier_init(shared.barrier(kVFull + i), 1);
      barrier_init(shared.barrier(kKEmpty + i), 8);  // consumer warps
      barrier_init(shared.barrier(kVEmpty + i), 8);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = warp_id() / 4;
  if (warpgroup == 0) {
    shrink_registers<24>();
    if (threadIdx.x == 0) load_tiles(params, shared, work);
  } else {
    grow_registers<240>();
    Consumer{params, shared, work, warpgroup - 1, warp_id() % 4, lane_id(), {}, {}}.run();
  }
}

}  // namespace ordo::attention_forward

extern "C" __global__ void __launch_bounds__(ordo::attention_forward::kThreads, 1)
    ordo_forward(const __grid_constant__ ordo::attention_forward::Params params) {
  ordo::attention_forward::run_forward(params);
}
