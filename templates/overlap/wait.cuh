// Bounded waits for data of other ranks.
//
// A wait that fails (too long, or aborted) says where in params.waiting.failure. The kernel then runs to its end without waiting
// again, so that no role is left behind, but neither that tile nor a later one is stored or signalled: nobody sees wrong data.
#pragma once

#include "overlap/layout.cuh"

namespace ordo::overlap {

struct Wait {
  int slice, chunk;  ///< for the report
  const u32* word;
  u32 expected;
};

ORDO_DEVICE void report(const KernelParams& params, const Wait& wait, u32 seen) {
  Failure* failure = params.waiting.failure;
  if (compare_and_swap_system(&failure->state, 0u, 1u) != 0u) return;
  failure->rank = params.tiles.rank;
  failure->slice = wait.slice;
  failure->chunk = wait.chunk;
  failure->expected = wait.expected;
  failure->seen = seen;
  store_release_system(&failure->state, 2u);
}

/// Waits until the word has reached `expected`; what was written before it is then visible to the copy engine of this SM.
/// False: it never did.
///
/// The abort word lies in host memory and is looked at every 0.2 ms or so, so that the reads of all waiting CTAs do not load the
/// bus by which the copies that they wait for get their commands: all-to-all-gemm 4096 x 4096 x 8192 on two GPUs, where all CTAs
/// wait at once, took 2.45 ms sustained with a look at every turn, and takes 0.46.
ORDO_DEVICE bool wait_for(const KernelParams& params, const Wait& wait) {
  constexpr int kQuickLooks = 64, kLooksACheck = 256;
  u64 end = 0;
  for (int looks = 0;; ++looks) {
    const u32 seen = load_acquire_system(wait.word);
    if (static_cast<int>(seen - wait.expected) >= 0) break;
    if (looks < kQuickLooks) continue;
    if (looks == kQuickLooks) {
      end = global_nanoseconds() + params.waiting.timeout_ns;
    } else if (looks % kLooksACheck == 0) {
      if (load_acquire_system(params.waiting.abort) != 0u) return false;
      if (global_nanoseconds() >= end) {
        report(params, wait, seen);
        return false;
      }
    }
    __nanosleep(100);
  }
  fence_async();
  return true;
}

}  // namespace ordo::overlap
