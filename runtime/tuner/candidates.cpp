#include "runtime/tuner/candidates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "codegen/cost/model.hpp"
#include "codegen/expression/lower.hpp"
#include "codegen/expression/mask.hpp"
#include "codegen/generate/mask_text.hpp"
#include "codegen/schedule/proof.hpp"

namespace ordo::tuner {
namespace {

/// Collects plans, each once, that fit the problem.
class Collector {
 public:
  explicit Collector(const AttentionBackward& problem) : problem_(problem) {}

  void add(Plan plan) {
    if (plan.arrival) {
      auto hashed = with_arrival_hash(problem_, plan);
      if (!hashed) return;
      plan = *std::move(hashed);
    }
    if (!seen(plan) && check_fit(problem_, plan).ok()) plans_.push_back(plan);
  }
  [[nodiscard]] const std::vector<Plan>& plans() const { return plans_; }

 private:
  [[nodiscard]] bool seen(const Plan& plan) const { return std::find(plans_.begin(), plans_.end(), plan) != plans_.end(); }

  const AttentionBackward& problem_;
  std::vector<Plan> plans_;
};

/// The planner's plans for each schedule by name, and for accumulations that need no order those that it would make for
/// `ordered`: it offers them no choice of cluster.
void add_schedules(Collector& out, const AttentionBackward& problem, const Target& target, const PlanRequest& request,
                   Accumulate accumulate) {
  for (const Schedule schedule : request.schedule ? std::vector{*request.schedule} : schedules_of(problem.mask)) {
    PlanRequest asked = request;
    asked.schedule = schedule;
    for (const Accumulate as : {accumulate, Accumulate::ordered}) {
      asked.accumulate = as;
      const auto choice = make_plan(problem, target, asked);
      if (!choice) continue;  // no kernel, or no room on the device: another schedule may have
      for (const Candidate& candidate : choice->candidates) {
        Plan plan = candidate.plan;
        plan.accumulate = accumulate;
        if (accumulate != Accumulate::ordered) plan.dq_buffers = 1;
        out.add(plan);
      }
    }
  }
}

/// Whether the mask's expression takes fewer instructions once the shape is known.
bool baking_shortens(const AttentionBackward& problem) {
  const expression::Mask* const mask = problem.mask.expression();
  if (mask == nullptr) return false;
  const auto any = expression::live_registers(mask->expression, any_shape());
  const auto known = expression::live_registers(mask->expression, expression::mask_domain(problem));
  return any && known && known->instructions < any->instructions;
}

/// Baked shapes, where the model knows what they can gain: spills that go, or a mask that gets shorter. Elsewhere the lengths are
/// read once an item, and a twin would only take the place of another candidate.
void add_shapes(Collector& out, const AttentionBackward& p) {
  const bool shorter = baking_shortens(p);
  const std::vector<Plan> plans = out.plans();
  for (const Plan& plan : plans) {
    Plan baked = plan;
    baked.static_shape = StaticShape{p.batch, p.seqlen_q, p.seqlen_k, p.kv_heads};
    if (shorter || cost::predict_registers(baked).spill_bytes < cost::predict_registers(plan).spill_bytes) out.add(baked);
  }
}

void add_head_groups(Collector& out) {
  const std::vector<Plan> plans = out.plans();
  for (Plan plan : plans) {
    const int group = plan.head_group;
    for (const int other : {group * 2, group / 2}) {
      plan.head_group = std::max(1, other);
      out.add(plan);
    }
  }
}

void add_buffers(Collector& out) {
  const std::vector<Plan> plans = out.plans();
  for (Plan plan : plans)
    for (const int stages : {2, 3})
      for (const int buffers : {1, 2, 3}) {
        plan.stages = stages;
        plan.dq_buffers = buffers;
        if (plan.validate()) out.add(plan);
      }
}

}  // namespace

Result<std::vector<Candidate>> candidates(const AttentionBackward& problem, const Target& target, const PlanRequest& request,
                                          const Pruning& pruning) {
  auto choice = make_plan(problem, target, request);
  if (!choice) return choice.error();
  const bool fixed_order = !pruning.fingerprint.empty();
  Collector all(problem);
  for (const Candidate& candidate : choice->candidates) all.add(candidate.plan);
  add_schedules(all, problem, target, request, choice->plan.accumulate);
  add_head_groups(all);
  if (fixed_order) add_buffers(all);
  if (!request.static_shape) add_shapes(all, problem);

  std::vector<Candidate> out;
  for (const Plan& plan : all.plans()) {
    if (fixed_order && order_fingerprint(problem, plan) != pruning.fingerprint) continue;
    const cost::Registers registers = cost::predict_registers(plan);
    const double ms =
        request.constants ? cost::predict(problem, plan, target, *request.constants).ms : cost::predict(problem, plan, target).ms;
    out.push_back({plan, ms, registers.total, registers.spill_bytes, {}});
  }
  if (out.empty())
    return Error{ErrorCode::invalid_plan,
                 fmt::format("no plan for {} has the order fingerprint {}", to_text(problem), pruning.fingerprint)};
  std::stable_sort(out.begin(), out.end(),
                   [](const Candidate& a, const Candidate& b) { return a.predicted_ms < b.predicted_ms; });
  const double limit = out.front().predicted_ms * pruning.slowest;
  const auto chosen =
      std::find_if(out.begin(), out.end(), [&](const Candidate& candidate) { return candidate.plan == choice->plan; });
  if (chosen != out.end()) std::rotate(out.begin(), chosen, chosen + 1);
  const auto kept = std::stable_partition(out.begin() + 1, out.end(),
                                          [&](const Candidate& candidate) { return candidate.predicted_ms <= limit; });
  out.erase(kept, out.end());
  if (out.size() > static_cast<std::size_t>(std::max(1, pruning.most)))
    out.resize(static_cast<std::size_t>(std::max(1, pruning.most)));
  return out;
}

}  // namespace ordo::tuner
