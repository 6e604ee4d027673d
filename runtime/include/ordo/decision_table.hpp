// DecisionTable: which plan is used for which problem, as a file that people read, ranks compare and an engine can be held to.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ordo/error.hpp"
#include "ordo/plan.hpp"
#include "ordo/problem.hpp"

namespace ordo {

/// What a plan's time is known from.
enum class PlanSource {
  measured,      ///< on this device
  interpolated,  ///< predicted, corrected by measurements of neighbouring problems
  predicted,     ///< by the cost model alone
};

ORDO_API std::string_view to_string(PlanSource source);
ORDO_API Result<PlanSource> parse_plan_source(std::string_view text);

/// The plan for one problem under one accumulation.
struct Decision {
  AttentionBackward problem;
  Plan plan;
  std::string fingerprint;  ///< order fingerprint
  PlanSource source = PlanSource::predicted;
  double ms = 0;
  std::string reason;
  friend bool operator==(const Decision&, const Decision&) = default;
};

/// One measured round, as the cache keeps it; texts are canonical.
struct MeasuredRound {
  std::string problem, plan, kernels, policy;
  std::string target, device, driver, toolchain;
  int sm_count = 0, round = 0, launches = 0;
  double ms_median = 0, ms_min = 0, clock_mhz = 0, watts = 0;
  friend bool operator==(const MeasuredRound&, const MeasuredRound&) = default;
};

struct DecisionTable {
  Target target;                    ///< that the plans were made for
  std::vector<Decision> decisions;  ///< sorted by problem and accumulation, each pair once
  std::vector<MeasuredRound> measurements;

  /// The plan for the problem, or nothing. `accumulate` unset: the only one there is for the problem, or ordered.
  [[nodiscard]] ORDO_API const Decision* find(const AttentionBackward& problem, std::optional<Accumulate> accumulate) const;
};

/// SHA-256 (hex) over the target and the sorted pairs of problem and plan: equal on ranks that will run the same plans, whatever
/// they measured. Times, sources and reasons are left out.
ORDO_API std::string table_hash(const DecisionTable& table);

/// JSON, indented, keys in a fixed order: the same table gives the same text.
ORDO_API std::string to_json(const DecisionTable& table);

/// Errors (invalid_argument): no JSON, a missing or unknown version, a plan that does not fit its problem, a fingerprint or hash
/// that is not of what stands beside it. `origin` names the text in them.
ORDO_API Result<DecisionTable> parse_decision_table(std::string_view text, const std::string& origin);
/// The same from a file. Errors: io where it cannot be read or exceeds 256 MiB.
ORDO_API Result<DecisionTable> read_decision_table(const std::string& path);

/// One line a problem whose plan differs or that only one table has; empty: the same plans.
ORDO_API std::vector<std::string> diff(const DecisionTable& a, const DecisionTable& b);

}  // namespace ordo
