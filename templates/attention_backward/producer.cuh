// The producer warpgroup. Warp 0 loads, warp 1 adds dQ to global memory (and warp 2 the second slice of a step), the next warp
// announces finished adds, warp 3 of a cluster sends dS to the other CTA. A role is one lane, or one warp where named barriers
// are used.
#pragma once

#include "attention_backward/layout.cuh"
#include "sm90/mbarrier.cuh"

namespace ordo::attention_backward {

/// Shared-memory addresses of this CTA.
struct Shared {
  u32 base;
  __device__ __forceinline__ u32 at(int offset) const { return base + static_cast<u32>(offset); }
  __device__ __forceinline__ u32 barrier(int number) const { return at(layout.barriers) + 8u * static_cast<u32>(number); }
};

/// Arrives on a barrier of the cluster's first CTA. A single CTA is kept off the instructions of a cluster: compute-sanitizer
/// takes them for errors where none was launched.
ORDO_DEVICE void arrive_at_first(u32 barrier) {
  if constexpr (config.cluster == 1)
    barrier_arrive(barrier);
  else
    barrier_arrive_remote(map_to_cta(barrier, 0));
}

/// Announces step `number` to every warp that waits for it. One thread.
ORDO_DEVICE void announce_step(Shared shared, u32 number, Step step) {
  store_shared4(shared.at(layout.steps) + (number % kStepSlots) * 16u, static_cast<u32>(step.place), static_cast<u32>(step.tile),
                static_cast<u32>(step.turn), static_cast<u32>(step.more));
  barrier_arrive(shared.barrier(barriers.step_full) + 8u * (number % kStepSlots));
}

ORDO_DEVICE Step read_step(Shared shared, u32 number) {
  const int4 x = load_shared_int4(shared.at(layout.steps) + (number % kStepSlots) * 16u);
  return {x.x, x.y, x.z, x.w};
}

/// Hands out items, one cluster at a time, through an atomic ticket: an item of a lower number has always been taken by a cluster
/// that runs, whatever order the hardware starts clusters in. Lives in the loader of rank 0.
///
/// Tickets run through blocks. Block b holds the items of walk group b and, with `ordered`, the conversion of the dQ of the
/// walks converted_before(b) .. converted_before(b + 1). A conversion waits for adds of lower tickets only, and no add waits for
/// a conversion.
struct Scheduler {
  /// Kept in shared memory between tickets: the loader has no registers to spare.
  struct State {
    int block;
    int block_first;   ///< its first ticket
    int resident_end;  ///< tickets below this may wait for the item in hand
    int flags;  ///< bit 0: the item in hand has dQ adds; bit 1: its parity in barriers.item_done, which flips with every such
                ///< item
  };

  /// Takes a ticket and sends the item to every CTA of the cluster, into slot `ring` of the items.
  static __device__ __forceinline__ void next(const MainParams& params, Shared shared, const Ring<kItemSlots>& ring) {
    const u32 at = shared.at(layout.scheduler);
    const int4 kept = load_shared_int4(at);
    State state{kept.x, kept.y, kept.z, kept.w};
    if constexpr (kWaitsOnLater) wait_until_safe(params, shared, state);
    const Item item = item_of(params, static_cast<int>(atomicAdd(params.scratch.control, 1u)), state);
    if constexpr (kWaitsOnLater) state.flags = item.steps > 0 ? ((state.flags ^ 2) | 1) : (state.flags & 2);
    store_shared4(at, static_cast<u32>(state.block), static_cast<u32>(state.block_first), static_cast<u32>(state.resident_end),
                  static_cast<u32>(state.flags));
    send(shared, item, ring);
  }

  /// Before the first ticket.
  static __device__ __forceinline__ void start(Shared shared) { store_shared4(shared.at(layout.scheduler), 0, 0, 0, 2); }

  /// Tickets of one cluster only grow, so the block is found by walking on.
  static __device__ __forceinline__ Item item_of(const MainParams& params, int ticket, State& state) {
    const schedule::Geometry g = geometry(params.shape);
    const int groups = schedule::ceil_div(g.walks, g.head_group);
#pragma unroll 1
    for (; state.block <= groups + kConvertLag; ++state.block) {
      const int walk_items = state.block < groups ? walks_of(g, state.block) * schedule::walk_items(g) : 0;
      const int walk = kOrdered ? converted_before(g, state.block) : 0;  // the first whose dQ is converted
      const int tiles = kOrdered ? (converted_before(g, state.block + 1) - walk) * config.group * g.q_tiles : 0;
      constexpr int piece = kConvertTiles * config.cluster;
      const int size = walk_items + schedule::ceil_div(tiles, piece);
      const int rest = ticket - state.block_first;
      if (rest < walk_items) {
        const int index = state.block * g.head_group * schedule::walk_items(g) + rest;
        state.resident_end = ticket + schedule::residents(g, index).end - index;
        return work_of(params, g, schedule::item_at(g, index));
      }
      if (rest < size) {
        const int base = walk * config.group * g.q_tiles;
        const int first = (rest - walk_items) * piece;
        return {Item::convert, base + first, base + schedule::minimum(first + piece, tiles), 0};
      }
      state.block_first += size;
    }
    return {Item::none, 0, 0, 0};
  }
  static __device__ __forceinline__ Item work_of(const MainParams& params, const schedule::Geometry& g, schedule::Item at) {
    if constexpr (kReadsTable) at = schedule::arrival_item(g, params.arrival, at);
    const int steps = kReadsTable ? schedule::arrival_steps(g, params.arrival, at) : schedule::steps(g, at.unit);
    return {at.flipped ? Item::walk_down : Item::walk_up, at.walk, at.unit, steps * config.group};
  }
  /// How many walks are converted in blocks before `block`: those of the groups that end kConvertLag before it. Where groups go
  /// up and down in turn, only as many as end with a downward one: upwards clusters finish one after another, in the order and at
  /// the distance in which the downward group wants them, and conversions between would hold up its first; downwards all finish
  /// at once.
  static __device__ __forceinline__ int converted_before(const schedule::Geometry& g, int block) {
    const int group = schedule::maximum(block - kConvertLag, 0);
    return schedule::minimum((kInTurns ? group & ~1 : group) * g.head_group, g.walks);
  }
  static __device__ __forceinline__ int walks_of(const schedule::Geometry& g, int group) {
    return schedule::minimum(g.head_group, g.walks - group * g.head_group);
  }

  /// A cluster must not take an item of the resident set it is still working in: it could wait for work that only it can do.
  /// Nearly always the whole set has been taken by the time its loads are issued, so this costs one read.
  static __device__ __forceinline__ void wait_until_safe(const MainParams& params, Shared shared, const State& state) {
    if ((state.flags & 1) == 0) return;
    const u32 done = shared.barrier(barriers.item_done), parity = static_cast<u32>(state.flags >> 1);
    barrier_wait(done, parity ^ 1u);  // the item before: only then does the next parity name the item in hand
    while (load_relaxed(params.scratch.control) < static_cast<u32>(state.resident_end) && !barrier_test(done, parity)) {
    }
  }

  static __device__ __forceinline__ void send(Shared shared, Item item, const Ring<kItemSlots>& ring) {
    barrier_wait(shared.barrier(barriers.item_empty + ring.slot), ring.parity ^ 1u);
    const u32 to = shared.at(layout.items) + static_cast<u32>(ring.slot) * 16u;
    const u32 full = shared.barrier(barriers.item_full + ring.slot);
    if constexpr (config.cluster == 1) {
      store_shared4(to, static_cast<u32>(item.kind), static_cast<u32>(item.first), static_cast<u32>(item.unit),
                    static_cast<u32>(item.steps));
      barrier_arrive(full);
      return;
    }
#pragma unroll
    for (u32 rank = 0; rank < static_cast<u32>(config.cluster); ++rank)
      store_remote(map_to_cta(to, rank), int4{item.kind, item.first, item.unit, item.steps}, map_to_cta(full, rank));
  }
};

/// Waits for the next item. Every reader calls this and then release_item.
ORDO_DEVICE Item wait_item(Shared shared, const Ring<kItemSlots>& ring) {
  barrier_wait(shared.barrier(barriers.item_full + ring.slot), ring.parity);
  const int4 x = load_shared_int4(shared.at(layout.items) + static_cast<u32>(ring.slot) * 16u);
  return {x.x, x.y, x.z, x.w};
}
/// One lane of each reading warp, after every lane of the warp has read the item.
ORDO_DEVICE void release_item(Shared shared, Ring<kItemSlots>& ring) {
  arrive_at_first(shared.barrier(barriers.item_empty + ring.slot));
}

/// The semaphore of a dQ tile. In a cluster the two slices are added by different CTAs and have one each.
ORDO_DEVICE u32* semaphore(const MainParams& params, int tile, u32 rank) {
  return params.scratch.control + kFirstSemaphore + 2 * static_cast<size_t>(tile) + (kExchange ? rank : 0u);
}

/// The visits of an item for one query head, or for all that are walked together, one after another: computed, or for arrival
/// read.
template <bool Read>
struct VisitsOf {
  static constexpr unsigned int seen = 0;  // of masks by expression, which read the table
  int q;
  __device__ __forceinline__ VisitsOf(const MainParams&, const schedule::Geometry& g, const schedule::Item& at, int member, int)
      : q(schedule::start_q(g, at, member)) {}
  __device__ __forceinline__ schedule::Visit next(const schedule::Geometry& g, schedule::Item at, int member) {
    // Works everything out anew at each step: kept across steps, its many terms would spill.
    if constexpr (config.schedule == schedule::Kind::symmetric_shift) asm volatile("" : "+r"(at.unit));
    const schedule::Visit visit{q, schedule::rank(g, at, q)};
    q = schedule::next_q(g, at, member, q);
    return visit;
  }
};
template <>
struct VisitsOf<true> {
  const unsigned int* word;
  unsigned int read;  // one ahead, so that nobody waits for memory; after the last visit it is never used
  // Masks by expression: what the visit that next() gave last sees (schedule.cuh), and the same one ahead.
  int distance = 0;
  unsigned int seen = 0, seen_ahead = 0;
  /// `steps` of each query head, which the loader of a mask by expression has no registers to divide for once more.
  __device__ __forceinline__ VisitsOf(const MainParams& params, const schedule::Geometry& g, const schedule::Item& at, int member,
                                      int steps)
      : word(config.mask_expression ? schedule::arrival_visits(g, params.arrival, at, member, steps)
                                    : schedule::arrival_visits(g, params.arrival, at, member)),
        read(*word) {
    if constexpr (config.mask_expression) {
      distance = schedule::mask_distance(g, params.arrival);
      seen_ahead = word[distance];
    }
  }
  __device__ __forceinline__ schedule::Visit next(const schedule::Geometry&, const schedule::Item&, int) {
    const schedule::Visit visit = schedule::unpack_visit(read);
    read = *++word;
    if constexpr (config.mask_expression) {
      seen = seen_ahead;
      seen_ahead = word[distance];
    }
    return visit;
  }
};
using Visits = VisitsOf<kReadsTable>;

/// symmetric_shift: the short unit of a pair follows its long one without a ticket of its own.
ORDO_DEVICE bool another_half_follows(const schedule::Geometry& g, const Item& item) {
  return config.schedule == schedule::Kind::symmetric_shift && item.kind == Item::walk_up &&
         schedule::has_second_half(g, {item.first, item.unit, false});
}

/// Loads Q, K, V, dO and the row statistics of every step, and announces each step. One lane.
struct Loader {
  const MainParams& params;
  Shared shared;
  u32 rank;
  Ring<config.stages> stage;
  u32 kv_parity = 1;  // of barriers.k_empty and v_empty: the epilogue of the item before
  u32 number = 0;     // of the step, over all items

  __device__ __forceinline__ void run() {
    Ring<kItemSlots> items;
    if constexpr (config.mask_expression) store_shared_int(kept_kv_parity(), 1);
    if (rank == 0) {
      Scheduler::start(shared);
      Scheduler::next(params, shared, items);
    }
    while (true) {
      if constexpr (config.cluster > 1) barrier_arrive_expect(shared.barrier(barriers.item_full + items.slot), sizeof(Item));
      const Item item = wait_item(shared, items);
      release_item(shared, items);
      items.advance();
      if (item.kind == Item::none) break;
      if (item.kind == Item::convert) {
        if constexpr (kOrdered) load_sums(item);
      } else {
        if constexpr (config.mask_expression) store_shared_int(kept_items(), 2 * items.slot + static_cast<int>(items.parity));
        load_item(item);
        if constexpr (config.mask_expression) {
          const int kept = load_shared_int(kept_items());
          items = {kept >> 1, static_cast<u32>(kept & 1)};
        }
      }
      if (rank == 0) {
        if (has_second_half(item))
          Scheduler::send(shared, second_half(item), items);
        else
          Scheduler::next(params, shared, items);
      }
    }
    announce({0, -1, 0, 0});
  }

  // Masks by expression: a walk reads two words of its table ahead, so it keeps nothing else in registers that can be had again.
  // What only the next item needs waits in shared memory, behind the scheduler's state; the stage follows from the step.
  __device__ __forceinline__ u32 kept_items() const { return shared.at(layout.scheduler) + sizeof(Scheduler::State); }
  __device__ __forceinline__ u32 kept_kv_parity() const { return kept_items() + 4u; }
  __device__ __forceinline__ void find_stage(u32 step) {
    if constexpr (config.mask_expression) stage = {static_cast<int>(step % config.stages), (step / config.stages) & 1u};
  }

  __device__ __forceinline__ bool has_second_half(const Item& item) const {
    return another_half_follows(geometry(params.shape), item);
  }
  __device__ __forceinline__ Item second_half(const Item& item) const {
    const schedule::Geometry g = geometry(params.shape);
    return Scheduler::work_of(params, g, schedule::second_half(g, {item.first, item.unit, false}));
  }

  __device__ __forceinline__ void announce(Step step) {
    if constexpr (!config.state_in_consumer) announce_step(shared, number, step);
    ++number;
  }

  __device__ __forceinline__ void load_item(Item item) {
    const schedule::Geometry g = geometry(params.shape);
    const schedule::Item at{item.first, item.unit, item.kind == Item::walk_down};
    const int batch = item.first / kv_heads(params.shape);
    const int kv_head = item.first - batch * kv_heads(params.shape);
    if (item.steps == 0) {
      wait_empty(barriers.k_empty);
      wait_empty(barriers.v_empty);
      flip_kv_parity();
    }
    int flags = Step::first;
    int left = item.steps;
    const int more = has_second_half(item) ? 1 : 0;
    // Not unrolled where a static shape makes the counts constants: the copies would spill.
#pragma unroll 1
    for (int from = 0; from < config.group && item.steps > 0;) {
      const int to = schedule::together_with(g, at, from).end;
      Visits visits(params, g, at, from, item.steps / config.group);
#pragma unroll 1
      for (int t = item.steps / config.group; t > 0; --t) {
        const schedule::Visit visit = visits.next(g, at, from);
#pragma unroll 1
        for (int member = from; member < to; ++member) {
          const int head = kv_head * config.group + member;
          const int head_tile = (batch * kv_heads(params.shape) * config.group + head) * g.q_tiles;
          if (--left == 0) flags |= Step::last;
          Step step{4 * visit.q + flags, head_tile + visit.q, visit.rank, more};
          if constexpr (config.mask_expression) step.more |= static_cast<int>(visits.seen) << Step::kSeenShift;
          load_step(step, head, batch);
          if (flags & Step::first) load_kv(item.unit, kv_head, batch);
          flags = 0;
        }
      }
      from = to;
    }
  }

  /// `ordered`: the finished sums of a convert item, half a tile through a stage of Q and half through one of dO, which they
  /// fill exactly. Every item takes kConvertTiles steps in every CTA, with empty ones where there is no tile or nobody adds to
  /// it.
  __device__ __forceinline__ void load_sums(Item item) {
    static_assert(2 * kQBytes == kSlices * kSliceBytes);
    const schedule::Geometry g = geometry(params.shape);
    while (!sums_are_complete(g, item)) {
    }
    fence_acquire();
    fence_async_global();
#pragma unroll 1
    for (int i = 0; i < kConvertTiles; ++i) {
      const int tile = item.first + i * config.cluster + static_cast<int>(rank);
      const int expected = tile < item.unit ? contributors(params, g, tile % g.q_tiles) : 0;
      const char* from = static_cast<const char*>(params.scratch.dq) + static_cast<size_t>(tile) * (kSlices * kSliceBytes);
      find_stage(number + static_cast<u32>(i));
      load_half(barriers.q_full, barriers.q_empty, layout.q, from, expected > 0);
      load_half(barriers.do_full, barriers.do_empty, layout.d_o, from + kQBytes, expected > 0);
      stage.advance();
    }
  }

  /// One look at the semaphores of all tiles of this CTA, their loads in flight together: one after another they took longer
  /// than the conversion itself.
  __device__ __forceinline__ bool sums_are_complete(const schedule::Geometry& g, const Item& item) const {
    u32 missing = 0;
#pragma unroll 4  // all at once would spill at head_dim 64
    for (int i = 0; i < kConvertTiles; ++i) {
      const int tile = schedule::minimum(item.first + i * config.cluster + static_cast<int>(rank), item.unit - 1);
      const u32 expected = static_cast<u32>(contributors(params, g, tile % g.q_tiles));
#pragma unroll
      for (u32 slice = 0; slice < (kExchange ? 2u : 1u); ++slice)
        missing |= load_relaxed(semaphore(params, tile, slice)) ^ expected;
    }
    return missing == 0;
  }

  __device__ __forceinline__ void load_half(int full, int empty, int buffer, const char* from, bool any) {
    barrier_wait(shared.barrier(empty + stage.slot), stage.parity ^ 1u);
    if (!any) {
      barrier_arrive(shared.barrier(full + stage.slot));
      return;
    }
    barrier_arrive_expect(shared.barrier(full + stage.slot), kQBytes);
    load_bulk(shared.at(buffer) + stage.slot * kQBytes, from, kQBytes, shared.barrier(full + stage.slot));
  }

  __device__ __forceinline__ void load_step(Step step, int head, int batch) {
    find_stage(number);
    const u32 rows = static_cast<u32>(stage.slot) * config.tile_q * 4u;
    const size_t statistics = static_cast<size_t>(step.tile) * config.tile_q;
    const int row = (step.place >> 2) * config.tile_q;
    barrier_wait(shared.barrier(barriers.q_empty + stage.slot), stage.parity ^ 1u);
    announce(step);
    const u32 q_full = shared.barrier(barriers.q_full + stage.slot);
    barrier_arrive_expect(q_full, kQBytes + config.tile_q * (kExact ? 8 : 4));
    load_q_rows(params.q, shared.at(layout.q) + stage.slot * kQBytes, q_full, row, head, batch);
    load_bulk(shared.at(layout.neg_lse2) + rows, params.scratch.neg_lse2 + statistics, config.tile_q * 4, q_full);
    if constexpr (kExact)
      load_bulk(shared.at(layout.row_scale) + rows, params.scratch.row_scale + statistics, config.tile_q * 4, q_full);

    barrier_wait(shared.barrier(barriers.do_empty + stage.slot), stage.parity ^ 1u);
    const u32 do_full = shared.barrier(barriers.do_full + stage.slot);
    barrier_arrive_expect(do_full, kQBytes + config.tile_q * 4);
    load_q_rows(params.d_o, shared.at(layout.d_o) + stage.slot * kQBytes, do_full, row, head, batch);
    load_bulk(shared.at(layout.neg_delta) + rows, params.scratch.neg_delta + statistics, config.tile_q * 4, do_full);
    stage.advance();
  }

  /// A tile of Q or dO. In a cluster each CTA fetches half of the rows for both.
  __device__ __forceinline__ void load_q_rows(const TensorMap& map, u32 to, u32 full, int row, int head, int batch) {
    if constexpr (config.cluster == 1) {
      load_box(to, map, full, row, 0, head, batch);
    } else {
      constexpr int half = config.tile_q / 2;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk)
        load_box_multicast(to + chunk * kQChunkBytes + rank * (half * 128u), map, full, row + static_cast<int>(rank) * half,
                           chunk, head, batch);
    }
  }

  __device__ __forceinline__ void wait_empty(int barrier) {
    if constexpr (config.mask_expression) kv_parity = load_shared_u32(kept_kv_parity());
    barrier_wait(shared.barrier(barrier), kv_parity);
  }
  __device__ __forceinline__ void flip_kv_parity() {
    kv_parity ^= 1u;
    if constexpr (config.mask_expression) store_shared_int(kept_kv_parity(), static_cast<int>(kv_parity));
  }

  __device__ __forceinline__ void load_kv(int unit, int kv_head, int batch) {
    wait_empty(barriers.k_empty);
    const int row = (unit * config.cluster + static_cast<int>(rank)) * config.tile_kv;
    const u32 k_full = shared.barrier(barriers.k_full);
    const u32 v_full = shared.barrier(barriers.v_full);
    barrier_arrive_expect(k_full, kKvBytes + (kExchange ? kKvChunkBytes : 0));
    load_kv_rows(params.k, shared.at(layout.k), k_full, row, kv_head, batch);
    if constexpr (kExchange) {
      const int peer_row = (unit * config.cluster + static_cast<int>(rank ^ 1u)) * config.tile_kv;
      load_box(shared.at(layout.peer_k), params.k, k_full, peer_row, static_cast<int>(rank), kv_head, batch);
    }
    wait_empty(barriers.v_empty);
    flip_kv_parity();
    barrier_arrive_expect(v_full, kKvBytes);
    load_kv_rows(params.v, shared.at(layout.v), v_full, row, kv_head, batch);
  }

  __device__ __forceinline__ void load_kv_rows(const TensorMap& map, u32 to, u32 full, int row, int head, int batch) {
    if constexpr (config.cluster == 1) {
      load_box(to, map, full, row, 0, head, batch);
    } else {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) load_box(to + chunk * kKvChunkBytes, map, full, row, chunk, head, batch);
    }
  }
};

/// Waits until step `number` is announced and reads it.
ORDO_DEVICE Step wait_step(Shared shared, u32 number) {
  barrier_wait(shared.barrier(barriers.step_full) + 8u * (number % kStepSlots), (number / kStepSlots) & 1u);
  return read_step(shared, number);
}

/// One look at the next step's semaphore while the current add is in flight. It must not block: in a ring of waiting CTAs the
/// current add has to be announced first.
ORDO_DEVICE bool turn_has_come(const MainParams& params, Shared shared, u32 rank, u32 number) {
  if (!barrier_test(shared.barrier(barriers.step_full) + 8u * (number % kStepSlots), (number / kStepSlots) & 1u)) return false;
  const Step step = read_step(shared, number);
  if (step.tile < 0 || load_acquire(semaphore(params, step.tile, rank)) != static_cast<u32>(step.turn)) return false;
  fence_async_global();
  return true;
}

/// Sums clocks where they are measured, and is nothing where they are not.
struct Stopwatch {
  long long sum = 0;
  __device__ __forceinline__ void start() {
    if constexpr (config.measure_stalls) sum -= clock64();
  }
  __device__ __forceinline__ void stop() {
    if constexpr (config.measure_stalls) sum += clock64();
  }
};

/// Adds one slice of every staged dQ tile to global memory; `ordered` waits for its turn first. One warp; lane 0 does the work,
/// the others are there for the named barriers.
ORDO_DEVICE void add_dq(const MainParams& params, Shared shared, u32 rank, int warpgroup) {
  const bool elected = lane_id() == 0;
  const u32 slice = kExchange ? rank : static_cast<u32>(warpgroup);
  // Where a step's dQ comes from: the warpgroups take turns, or each has an adding warp of its own.
  const auto barrier_of = [&](int base, u32 step) {
    return base + (kTakeTurns ? static_cast<int>(step & 1u) : warpgroup) + 2 * static_cast<int>(step % config.dq_buffers);
  };
#pragma unroll
  for (u32 i = 0; i < static_cast<u32>(config.dq_buffers); ++i) named_arrive(barrier_of(named.staging_free, i), 160);
  bool ready = false;  // this step's turn was seen early
  Stopwatch waited, running;
  Ring<kReleaseSlots> added;
  for (u32 number = 0;; ++number) {
    const Step step = wait_step(shared, number);
    if (number == 0) running.start();
    if (step.tile < 0) break;
    if constexpr (kOrdered) {
      if (elected && !ready && step.turn > 0) {
        waited.start();
        while (load_acquire(semaphore(params, step.tile, rank)) != static_cast<u32>(step.turn)) {
        }
        waited.stop();
        fence_async_global();
      }
      __syncwarp();
    }
    named_sync(barrier_of(named.staged, number), 160);
    fence_async_shared();
    if (elected) {
      char* to = static_cast<char*>(params.scratch.dq) + (static_cast<size_t>(step.tile) * kSlices + slice) * kSliceBytes;
      const u32 staged = shared.at(layout.dq) + (number % config.dq_buffers * kStageSlices + warpgroup) * kSliceBytes;
      if constexpr (kExact) {
        reduce_bulk_s32(to, staged, kSliceBytes);
      } else if (kOrdered && step.turn == 0) {
        store_bulk(to, staged, kSliceBytes);  // the first contributor stores, so nobody has to zero dQ
      } else {
        reduce_bulk_f32(to, staged, kSliceBytes);
      }
      commit_copies();
      if constexpr (kOrdered) ready = turn_has_come(params, shared, rank, number + 1);
      wait_copies_read<0>();
    }
    __syncwarp();
    named_arrive(barrier_of(named.staging_free, number + config.dq_buffers), 160);
    if constexpr (kOrdered) {
      if (elected) {
        wait_copies<0>();  // not .read: the adds themselves must have landed before the next contributor may start
        barrier_wait(shared.barrier(barriers.added_empty + added.slot), added.parity ^ 1u);
        barrier_arrive(shared.barrier(barriers.added_full + added.slot));
      }
      __syncwarp();
      added.advance();
    }
  }
  if (elected) wait_copies<0>();
  running.stop();
  if constexpr (config.measure_stalls) {
    if (elected) params.stalls[2 * blockIdx.x + static_cast<u32>(warpgroup)] = {waited.sum, running.sum};
  }
}

/// Announces finished dQ adds to the next contributor. A warp of its own, because red.release is a MEMBAR.ALL.GPU of ~900 clk
/// that would otherwise delay the next add. One lane.
ORDO_DEVICE void announce_adds(const MainParams& params, Shared shared, u32 rank) {
  Ring<kReleaseSlots> added;
  for (u32 number = 0;; ++number) {
    const Step step = wait_step(shared, number);
    if (step.tile < 0) break;
    barrier_wait(shared.barrier(barriers.added_full + added.slot), added.parity);
    add_release(semaphore(params, step.tile, rank), 1u);
    barrier_arrive(shared.barrier(barriers.added_empty + added.slot));
    added.advance();
    if (kWaitsOnLater && (step.place & Step::last) != 0 && (step.more & 1) == 0)
      arrive_at_first(shared.barrier(barriers.item_done));
  }
}

/// Sends each step's dS to the other CTA of the cluster. One lane.
ORDO_DEVICE void exchange_ds(Shared shared, u32 rank) {
  const u32 peer = rank ^ 1u;
  for (u32 number = 0;; ++number) {
    const Step step = wait_step(shared, number);
    if (step.tile < 0) break;
    const u32 buffer = number % kDsBuffers;
    barrier_wait(shared.barrier(barriers.ds_full) + 8u * buffer, (number / kDsBuffers) & 1u);
    const u32 full = shared.barrier(barriers.peer_ds_full) + 8u * buffer;
    // Our consumers have refilled this dS buffer, so the peer's data of its previous use has been read: the barrier is ours to
    // arm.
    barrier_arrive_expect(full, kDsBytes);
    copy_to_peer(map_to_cta(shared.at(layout.peer_ds) + buffer * kDsBytes, peer), shared.at(layout.ds) + buffer * kDsBytes,
                 kDsBytes, map_to_cta(full, peer));
  }
}

ORDO_DEVICE void produce(const MainParams& params, Shared shared, u32 rank) {
  const int warp = warp_id();
  const bool elected = lane_id() == 0;
  if (warp == 0) {
    if (elected) Loader{params, shared, rank}.run();
  } else if (warp == 1 || (warp == 2 && !kTakeTurns)) {
    add_dq(params, shared, rank, warp - 1);
  } else if (warp == (kTakeTurns ? 2 : 3)) {
    if (kOrdered && elected) announce_adds(params, shared, rank);
  } else {
    if (kExchange && elected) exchange_ds(shared, rank);
  }
  __syncwarp();
}

}  // namespace ordo::attention_backward
