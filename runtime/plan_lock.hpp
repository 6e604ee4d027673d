// Pinning: an engine with a lock file uses exactly the plans of a decision table.
#pragma once

#include <set>
#include <string>

#include "ordo/decision_table.hpp"
#include "ordo/plan.hpp"

namespace ordo {

/// Immutable, so thread-safe.
class PlanLock {
 public:
  /// Errors: those of read_decision_table; invalid_argument when the table was made for another target than `target`.
  static Result<PlanLock> read(const std::string& path, const Target& target);

  /// The pinned plan, with its predictions. Errors (invalid_plan): none for such a problem, named with what to do; a pinned plan
  /// that the request contradicts.
  [[nodiscard]] Result<PlanChoice> plan(const AttentionBackward& problem, const PlanRequest& request) const;
  /// Errors (invalid_plan): the plan is not pinned for any problem.
  [[nodiscard]] Result<void> check(const Plan& plan) const;

 private:
  PlanLock(std::string path, DecisionTable table);
  std::string path_;
  DecisionTable table_;
  std::set<std::string> plans_;  ///< texts
};

}  // namespace ordo
