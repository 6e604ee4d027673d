// mbarrier (PTX ISA, "Parallel synchronization: mbarrier"). An address is a shared-window address of this CTA unless said.
#pragma once

#include "sm90/basic.cuh"

namespace ordo {

ORDO_DEVICE void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
ORDO_DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

ORDO_DEVICE void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives and adds `bytes` to what the phase still waits for.
ORDO_DEVICE void barrier_arrive_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

ORDO_DEVICE bool barrier_test(u32 barrier, u32 parity) {
  u32 done;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

/// Waits until the phase of `parity` has completed.
ORDO_DEVICE void barrier_wait(u32 barrier, u32 parity) {
  u32 done;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  } while (done == 0);
}

/// The address that `address` has in CTA `rank` of this cluster.
ORDO_DEVICE u32 map_to_cta(u32 address, u32 rank) {
  u32 mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

/// Arrives on a barrier of any CTA of the cluster (`mapped` from map_to_cta). The plain form: `.release.cluster` adds a MEMBAR
/// (+20 % kernel time, measured) and the default semantics are release at CTA scope plus the async proxy's own completion order.
ORDO_DEVICE void barrier_arrive_remote(u32 mapped) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(mapped) : "memory");
}

ORDO_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
ORDO_DEVICE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Stores 16 bytes into shared memory of a CTA of the cluster and completes them on that CTA's barrier.
ORDO_DEVICE void store_remote(u32 mapped, int4 value, u32 mapped_barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(mapped),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(mapped_barrier)
               : "memory");
}

/// A position in a ring of barriers: the slot, and the parity that waits for the slot to be filled.
template <int Slots>
struct Ring {
  int slot = 0;
  u32 parity = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == Slots) {
      slot = 0;
      parity ^= 1u;
    }
  }
};

}  // namespace ordo
