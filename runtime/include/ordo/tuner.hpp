// Tuner: measures plans on a device, keeps every measurement in the cache file, and answers which plan is best for a problem.
//
//   auto engine = ordo::Engine::create();
//   auto tuner = ordo::Tuner::create(*engine);
//   auto tuned = tuner->tune(problem);              // needs a GPU; what is measured already is not measured again
//   auto best = tuner->query(problem);              // needs none: measured, else interpolated, else predicted
//   auto kernel = engine->prepare(best->plan);
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ordo/decision_table.hpp"
#include "ordo/measurement_policy.hpp"
#include "ordo/ordo.hpp"

namespace ordo {

/// What is asked of a tuning or a query.
struct TuneOptions {
  /// What the caller fixes. accumulate: ordered unless it says otherwise. schedule: any. static_shape: both unless it is set.
  PlanRequest request;
  /// Only plans that give the very bits of the planner's choice (equal order fingerprints), so that tuning changes no result.
  bool same_bits = false;
  int most_candidates = 20;  ///< plans that are measured, the planner's choice included; the cost model prunes the rest
  /// A plan wins only if it is ahead of every other by more than this share; else the planner's choice stays if it is as fast.
  double margin = 0.01;
  MeasurementPolicy policy;
};

/// One plan of a ranking.
struct RankedPlan {
  Plan plan;
  PlanSource source = PlanSource::predicted;
  double ms = 0;  ///< by the source
  double predicted_ms = 0;
  int rounds = 0;                   ///< measured: rounds,
  double spread = 0;                ///< and how far their medians lie apart: largest over smallest, less 1
  double clock_mhz = 0, watts = 0;  ///< measured: means; 0 where not known
};

/// The answer to a query.
struct TunedPlan {
  Plan plan;
  PlanSource source = PlanSource::predicted;
  double ms = 0;
  std::string reason;               ///< one sentence
  std::vector<RankedPlan> ranking;  ///< fastest first; the runners-up
  std::vector<std::string> notes;   ///< what a person should know: measurements that were not used, and why
};

/// What a tuning is doing.
struct TuneProgress {
  std::string doing;  ///< "waiting for process 4711, which measures on this GPU", "compiling", "measuring"
  double share = 0;   ///< done, of the whole, in [0, 1]
};

/// The outcome of a tuning.
struct TuneResult {
  TunedPlan best;
  int candidates = 0;
  int measured = 0;                 ///< rounds that were measured now
  int reused = 0;                   ///< rounds that were there already
  bool stopped = false;             ///< by the caller
  std::vector<std::string> failed;  ///< plans that could not be measured, and why
};

/// Thread-safe; one tuning at a time. Shares its Engine's cache file, target and warnings.
class ORDO_API Tuner {
 public:
  /// Measures on the current device, if there is one that ordo has kernels for. Without a GPU a tuner can query, export and
  /// import.
  static Result<Tuner> create(const Engine& engine);
  /// Measures on GPU number `device`, or (nullopt) on none. The first tune() retains its primary context and makes it current on
  /// the calling thread until the tuner goes. Errors: no_device, unsupported.
  static Result<Tuner> create(const Engine& engine, std::optional<int> device);

  /// Measures what is not measured yet: candidates in interleaved rounds, each round stored as soon as it is measured, so that an
  /// interrupted tuning goes on where it stopped. One process at a time measures on a GPU; others wait for it and take what it
  /// has measured. `progress` is called now and then, on any thread, one call at a time; it returns false to stop. Errors:
  /// no_device without a GPU; no_device or driver when the GPU is lost meanwhile (what was measured is kept); an invalid problem
  /// or request.
  Result<TuneResult> tune(const AttentionBackward& problem, const TuneOptions& options = {},
                          const std::function<bool(const TuneProgress&)>& progress = {});

  /// The best plan known. Measurements count only where device, SM count, driver, NVRTC build and the kernels' sources agree with
  /// what is here (without a GPU: with the newest that were made for the engine's target); then those of the asked policy before
  /// others. Else the planner's predictions are corrected by the measured times of neighbouring problems; else they stand alone.
  /// A repeated query takes microseconds: the answer is kept until something is measured or imported through this tuner, or
  /// refresh() is called.
  Result<TunedPlan> query(const AttentionBackward& problem, const TuneOptions& options = {});

  /// Forgets the kept answers, to see what other processes have measured since.
  void refresh();

  /// Decisions for the problems; for all that have measurements if none are given. With the measurements they rest on.
  Result<DecisionTable> table(std::span<const AttentionBackward> problems = {}, const TuneOptions& options = {});

  /// Stores the table's measurements. Returns what a person should know: measurements of another GPU or driver, which are kept
  /// but not used here, and problems for which the plan here is not the table's. Errors (invalid_argument): a measurement that
  /// cannot be.
  Result<std::vector<std::string>> import_table(const DecisionTable& table, const TuneOptions& options = {});

  struct Impl;
  explicit Tuner(std::shared_ptr<Impl> impl);

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace ordo
