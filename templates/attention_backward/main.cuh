// The main kernel of attention backward: dK and dV of KV tiles, and dQ as a sum over them.
// Grid: any number of clusters; each takes items from a ticket until none is left.
#pragma once

#include "attention_backward/consumer.cuh"
#include "attention_backward/producer.cuh"

namespace ordo::attention_backward {

ORDO_DEVICE void init_barriers(Shared shared) {
  constexpr int warps = 4 * 2;                                         // consumer warps of a CTA
  constexpr int dq_readers = kTakeTurns ? 4 * config.cluster : warps;  // one warpgroup of each CTA, or both of this one
  const auto init = [&](int first, int count, u32 arrivals) {
    for (int i = 0; i < count; ++i) barrier_init(shared.barrier(first + i), arrivals);
  };
  init(barriers.k_full, 1, 1);
  init(barriers.v_full, 1, 1);
  init(barriers.k_empty, 1, warps);
  init(barriers.v_empty, 1, 2);
  init(barriers.q_full, config.stages, 1);
  init(barriers.q_empty, config.stages, warps * config.cluster);
  init(barriers.do_full, config.stages, 1);
  init(barriers.do_empty, config.stages, warps * config.cluster);
  init(barriers.ds_full, kDsBuffers, warps);
  init(barriers.ds_empty, kDsBuffers, dq_readers);
  init(barriers.peer_ds_full, kDsBuffers, 1);
  init(barriers.step_full, kStepSlots, 1);
  init(barriers.item_full, kItemSlots, 1);
  init(barriers.item_empty, kItemSlots, (warps + 1) * config.cluster);
  init(barriers.item_done, 1, config.cluster);
  init(barriers.added_full, kReleaseSlots, kStageSlices);
  init(barriers.added_empty, kReleaseSlots, 1);
  barrier_init_fence();
}

ORDO_DEVICE void run_main(const MainParams& params) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared shared{static_cast<u32>(__cvta_generic_to_shared(memory))};
  const u32 rank = config.cluster == 2 ? cluster_rank() : 0u;
  if (threadIdx.x == 0) {
    prefetch_map(params.q);
    prefetch_map(params.d_o);
    prefetch_map(params.k);
    prefetch_map(params.v);
    init_barriers(shared);
  }
  if constexpr (config.cluster == 2)
    cluster_sync();
  else
    __syncthreads();
  wait_for_predecessors();

  const int warpgroup = warp_id() / 4;
  if (warpgroup == 0) {
    shrink_registers<kProducerRegisters>();
    produce(params, shared, rank);
  } else {
    grow_registers<kConsumerRegisters>();
    Consumer{params, shared, rank, warpgroup - 1, warp_id() % 4, lane_id()}.run();
  }
  if constexpr (config.cluster == 2) cluster_sync();  // a CTA that exits takes its shared memory from its peer
}

}  // namespace ordo::attention_backward

extern "C" __global__ void __cluster_dims__(ordo::attention_backward::config.cluster, 1, 1)
    __launch_bounds__(ordo::attention_backward::kMainThreads, 1)
        ordo_main(const __grid_constant__ ordo::attention_backward::MainParams params) {
  ordo::attention_backward::run_main(params);
}
