// D = act(A B + bias), with slices of A arriving from other ranks, or slices of D leaving for them, while it runs.
// Grid: any number of clusters up to what the device holds at once; each walks its share of the tiles (tiles.cuh).
#pragma once

#include "overlap/consumer.cuh"
#include "overlap/producer.cuh"

namespace ordo::overlap {

ORDO_DEVICE void init_shared(Shared shared) {
  const auto init = [&](int first, int count, u32 arrivals) {
    for (int i = 0; i < count; ++i) barrier_init(shared.barrier(first + i), arrivals);
  };
  init(barriers.full, config.stages, 1);
  init(barriers.empty, config.stages, kConsumers * config.cluster);
  init(barriers.staged, kConsumers * config.store_buffers, 4);
  init(barriers.staging_free, kConsumers * config.store_buffers, 1);
  init(barriers.bias_full, kBiasSlots, 1);
  init(barriers.bias_empty, kBiasSlots, 4 * kConsumers);
  barrier_init_fence();
  store_shared_int(shared.failed(), 0x7fffffff);
}

ORDO_DEVICE void run_main(const KernelParams& params) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared shared{static_cast<u32>(__cvta_generic_to_shared(memory))};
  const u32 rank = config.cluster > 1 ? cluster_rank() : 0u;
  if (threadIdx.x == 0) {
    const Slice& first = params.slice[tile_at(params.tiles, 0).slice];
    prefetch_map(first.a);
    prefetch_map(first.b);
    init_shared(shared);
  }
  if constexpr (config.cluster > 1)
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
  if constexpr (config.cluster > 1) cluster_sync();  // a CTA that exits takes its shared memory from its peer
}

}  // namespace ordo::overlap

extern "C" __global__ void __cluster_dims__(ordo::overlap::config.cluster, 1, 1) __launch_bounds__(ordo::overlap::kThreads, 1)
    ordo_overlap(const __grid_constant__ ordo::overlap::KernelParams params) {
  ordo::overlap::run_main(params);
}
