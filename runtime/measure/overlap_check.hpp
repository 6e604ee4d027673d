// Whether an overlapped product is right, and gives the same bits whoever is late.
#pragma once

#include <cstdint>

#include "runtime/measure/overlap_bench.hpp"
#include "runtime/measure/overlap_inputs.hpp"

namespace ordo::measure {

struct ORDO_API OverlapCheck {
  OverlapChoice choice;
  GemmDeviation deviation;      ///< of the worst rank
  int repeats = 0;              ///< after the first run
  std::uint64_t differing = 0;  ///< 4-byte words of D that differ from the first run's, over all repeats; of the worst rank

  [[nodiscard]] bool passed() const { return deviation.beyond == 0 && differing == 0; }
};

/// Collective, with the same result on all ranks. Random inputs from `seed`; D is poisoned before every run. `delays`: each rank
/// comes up to some milliseconds late to each repeat, at random.
ORDO_API Result<OverlapCheck> check_overlap(const RankBench& with, const OverlapGemm& problem,
                                            const OverlappedGemmOptions& options, std::uint64_t seed, int repeats, bool delays);

}  // namespace ordo::measure
