// The consumer path of the main kernel by itself, compiled without setmaxnreg, so that ptxas says how many registers it needs.
// Never launched.
#pragma once

#include "attention_backward/consumer.cuh"

extern "C" __global__ void __launch_bounds__(ordo::attention_backward::kConsumerThreads, 1)
    ordo_probe(const __grid_constant__ ordo::attention_backward::MainParams params) {
  using namespace ordo;
  extern __shared__ __align__(1024) unsigned char memory[];
  const attention_backward::Shared shared{static_cast<u32>(__cvta_generic_to_shared(memory))};
  const u32 rank = attention_backward::config.cluster == 2 ? cluster_rank() : 0u;
  attention_backward::Consumer{params, shared, rank, warp_id() / 4, warp_id() % 4, lane_id()}.run();
}
