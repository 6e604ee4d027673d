// Shared memory of the main kernel as a function of its Config. Plain C++: the host needs the size.
#pragma once

#include "attention_backward/config.cuh"

namespace ordo::attention_backward {

inline constexpr int kDsBuffers = 2;
inline constexpr int kSliceBytes = 64 * 64 * 4;  // dQ moves as 64 x 64 fp32 slices
inline constexpr int kStepSlots = 16;            // ring of step records: more than any role can lag behind the loader
inline constexpr int kReleaseSlots = 2;
inline constexpr int kItemSlots = 2;

/// Slices of a dQ tile: 64 columns each.
constexpr int slices_of(const Config& c) { return c.tile_q * c.head_dim / 4096; }

/// Threads of a block: of ordo_main (one producer warpgroup, two consumers), of ordo_preprocess and ordo_scales.
inline constexpr int kMainThreads = 384;
inline constexpr int kConsumerThreads = 256;
inline constexpr int kElementwiseThreads = 256;

/// setmaxnreg: two consumer warpgroups and one producer share exactly the 3 x 168 that 384 threads launch with. At head_dim 128
/// the consumers fit in 224, which leaves the loader room for the walk state of every schedule; at 64 they need 232.
constexpr int consumer_registers_of(const Config& c) {
  return c.consumer_registers != 0 ? c.consumer_registers : c.head_dim == 64 ? 232 : 224;
}
constexpr int producer_registers_of(const Config& c) { return 3 * 168 - 2 * consumer_registers_of(c); }

/// Threads of a block of ordo_convert: a warpgroup a slice.
constexpr int convert_threads(const Config& c) { return 128 * slices_of(c); }

/// Slices that one CTA stages in a step. In a cluster of two each CTA computes one slice over both KV tiles.
constexpr int stage_slices(const Config& c) { return slices_of(c) / c.cluster; }

/// mbarriers, 8 bytes each, by number.
struct Barriers {
  int k_full, v_full;
  int k_empty;          ///< every consumer warp has ended its last dQ of an item: K may be loaded again
  int v_empty;          ///< dV, staged over V, has left: V may be loaded again
  int q_full, q_empty;  ///< [stages]
  int do_full, do_empty;
  int ds_full;   ///< [kDsBuffers] both consumers have written dS
  int ds_empty;  ///< dQ has read dS (of both CTAs of a cluster)
  int peer_ds_full;
  int step_full;              ///< [kStepSlots]
  int item_full, item_empty;  ///< [kItemSlots]
  int item_done;              ///< on rank 0: every dQ add of an item is announced
  int added_full;             ///< [kReleaseSlots] a dQ add is complete and may be announced
  int added_empty;
  int count;
};

constexpr Barriers barriers_of(const Config& c) {
  Barriers b{};
  int next = 0;
  const auto take = [&](int n) {
    const int first = next;
    next += n;
    return first;
  };
  b.k_full = take(1);
  b.v_full = take(1);
  b.k_empty = take(1);
  b.v_empty = take(1);
  b.q_full = take(c.stages);
  b.q_empty = take(c.stages);
  b.do_full = take(c.stages);
  b.do_empty = take(c.stages);
  b.ds_full = take(kDsBuffers);
  b.ds_empty = take(kDsBuffers);
  b.peer_ds_full = take(kDsBuffers);
  b.step_full = take(kStepSlots);
  b.item_full = take(kItemSlots);
  b.item_empty = take(kItemSlots);
  b.item_done = take(1);
  b.added_full = take(kReleaseSlots);
  b.added_empty = take(kReleaseSlots);
  b.count = next;
  return b;
}

/// Byte offsets from the start of dynamic shared memory. Everything the copy engine or wgmma touches is 1024-byte aligned.
struct Layout {
  int k, v;
  int q, d_o;                          ///< [stages]
  int ds;                              ///< [kDsBuffers]
  int dq;                              ///< [dq_buffers] fp32 staging
  int peer_ds;                         ///< [kDsBuffers] dS of the other KV tile of the cluster
  int peer_k;                          ///< K of the other KV tile: the columns of this CTA's slice
  int neg_lse2, neg_delta, row_scale;  ///< [stages]
  int column_scale;
  int steps, items;  ///< rings of records
  int scheduler;     ///< Scheduler::State; masks by expression: then what the loader keeps
  int item_states;   ///< [consumer warp]: see Consumer::run
  int barriers;
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
  const int kv_bytes = c.tile_kv * c.head_dim * 2, q_bytes = c.tile_q * c.head_dim * 2, ds_bytes = c.tile_kv * c.tile_q * 2;
  const bool exchange = c.cluster == 2, exact = c.accumulate == Accumulate::exact;
  l.k = take(kv_bytes);
  l.v = take(kv_bytes);
  l.q = take(c.stages * q_bytes);
  l.d_o = take(c.stages * q_bytes);
  l.ds = take(kDsBuffers * ds_bytes);
  l.dq = take(c.dq_buffers * stage_slices(c) * kSliceBytes);
  l.peer_ds = take(exchange ? kDsBuffers * ds_bytes : 0);
  l.peer_k = take(exchange ? c.tile_kv * 128 : 0);
  l.neg_lse2 = take(c.stages * c.tile_q * 4);
  l.neg_delta = take(c.stages * c.tile_q * 4);
  l.row_scale = take(exact ? c.stages * c.tile_q * 4 : 0);
  l.column_scale = take(exact ? c.head_dim * 4 : 0);
  l.steps = take(kStepSlots * 16);
  l.items = take(kItemSlots * 16);
  l.scheduler = take(c.mask_expression ? 32 : 16);
  l.item_states = take(8 * 4);
  l.barriers = take(barriers_of(c).count * 8);
  l.bytes = next;
  return l;
}

}  // namespace ordo::attention_backward
