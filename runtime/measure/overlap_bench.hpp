// Times of one overlapped product in one run with what it must be held against.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ordo/measurement_policy.hpp"
#include "ordo/overlapped_gemm.hpp"
#include "runtime/measure/collectives.hpp"
#include "runtime/measure/cublas.hpp"
#include "runtime/measure/measure.hpp"
#include "runtime/measure/workbench.hpp"

namespace ordo::measure {

/// What one rank measures with. All of it is of one device, and outlives the measuring.
struct RankBench {
  Communicator& communicator;
  Engine& engine;
  Workbench& bench;
};

/// What a product without ordo is made of; absent what is not installed on every rank, and why.
struct OverlapPeers {
  std::optional<Collectives> nccl;
  std::optional<Cublas> cublas;
  std::vector<std::string> missing;

  /// Collective. `cublas`: path of libcublas.so, or empty. Errors: what the communicator's status says.
  static ORDO_API Result<OverlapPeers> open(const RankBench& with, const std::string& cublas);
};

/// One subject. Times are the slowest rank's, clock and watts this rank's.
struct OverlapTimes {
  /// "ordo": overlapped as planned. "ordo-gemm": the same tiles with nothing to exchange. "ordo-gemm-beside-copy": that, beside
  /// copies of as many bytes to the same peers. "nccl", "cublas": each alone. "nccl-cublas": one behind the other.
  std::string name;
  Sample steady;
  double burst_ms = 0;
};

struct ORDO_API OverlapReport {
  OverlapChoice choice;
  std::vector<OverlapTimes> times;
  std::vector<std::string> skipped;  ///< what is missing, and why

  [[nodiscard]] const OverlapTimes* find(std::string_view name) const;
  /// Share of the exchange that takes no time: 1 - (ordo - ordo-gemm) / nccl; absent without NCCL.
  [[nodiscard]] std::optional<double> hidden() const;
  [[nodiscard]] std::optional<double> hidden_burst() const;
};

/// The plan of the same tiles with nothing to exchange: what "ordo-gemm" runs.
ORDO_API OverlapPlan plan_alone(const OverlapPlan& plan, const Target& target);

/// Collective. Measures every subject in `policy.rounds` rounds, in turns; then each one's burst.
ORDO_API Result<OverlapReport> bench_overlap(const RankBench& with, const OverlapPeers& peers, const OverlapGemm& problem,
                                             const OverlappedGemmOptions& options, const MeasurementPolicy& policy,
                                             std::uint64_t seed);

}  // namespace ordo::measure
