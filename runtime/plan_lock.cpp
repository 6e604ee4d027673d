#include "runtime/plan_lock.hpp"

#include <fmt/format.h>

#include <utility>

#include "codegen/cost/model.hpp"

namespace ordo {

PlanLock::PlanLock(std::string path, DecisionTable table) : path_(std::move(path)), table_(std::move(table)) {
  for (const Decision& decision : table_.decisions) plans_.insert(to_text(decision.plan));
}

Result<PlanLock> PlanLock::read(const std::string& path, const Target& target) {
  auto table = read_decision_table(path);
  if (!table) return table.error();
  if (to_text(table->target) != to_text(target))
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("The lock file {} pins plans for {}; this engine plans for {}. Export one for this target (ordo tuning "
                    "export --target {}).",
                    path, to_text(table->target), to_text(target), to_text(target))};
  return PlanLock(path, *std::move(table));
}

Result<PlanChoice> PlanLock::plan(const AttentionBackward& problem, const PlanRequest& request) const {
  if (auto valid = problem.validate(); !valid) return valid.error();
  const Decision* decision = table_.find(problem, request.accumulate);
  if (decision == nullptr)
    return Error{
        ErrorCode::invalid_plan,
        fmt::format("The lock file {} has no plan for {}{}. Add the shape to it (ordo tuning export --shapes LIST), or use an "
                    "engine without a lock file.",
                    path_, to_text(problem),
                    request.accumulate ? fmt::format(" accumulate={}", to_string(*request.accumulate)) : "")};
  const Plan& plan = decision->plan;
  if ((request.schedule && *request.schedule != plan.schedule) || (request.static_shape && !plan.static_shape))
    return Error{ErrorCode::invalid_plan, fmt::format("The lock file {} pins another plan for {} than the one asked for: {}",
                                                      path_, to_text(problem), to_text(plan))};
  PlanChoice choice;
  choice.plan = plan;
  choice.predicted_ms = cost::predict(problem, plan, table_.target).ms;
  const cost::Registers registers = cost::predict_registers(plan);
  choice.predicted_registers = registers.total;
  choice.reason = fmt::format("pinned by {} ({})", path_, to_string(decision->source));
  choice.candidates.push_back({plan, choice.predicted_ms, registers.total, registers.spill_bytes, choice.reason});
  return choice;
}

Result<void> PlanLock::check(const Plan& plan) const {
  if (plans_.contains(to_text(plan))) return {};
  return Error{ErrorCode::invalid_plan,
               fmt::format("The lock file {} does not pin this plan for any shape: {}", path_, to_text(plan))};
}

}  // namespace ordo
