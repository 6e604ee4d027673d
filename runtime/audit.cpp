#include "runtime/audit.hpp"

#include <optional>
#include <utility>

#include "codegen/cost/registers.hpp"
#include "ordo/kernel_source.hpp"

namespace ordo {
namespace {

constexpr int kRegisterBytes = 4;

/// A plan of the kind, with its run-time fields as they come: they are not in the kernel.
Plan plan_of(int head_dim, int cluster, Mask mask, Schedule schedule) {
  Plan plan;
  plan.head_dim = head_dim;
  plan.cluster = cluster;
  plan.tile_kv = head_dim == 128 ? 128 : 256;
  plan.mask = mask;
  plan.schedule = schedule;
  if (schedule == Schedule::arrival) plan.arrival = Arrival{};  // what its table holds is not in the kernel
  return plan;
}

/// The kinds of a plan that differ in head_dim, cluster, mask and schedule alone.
std::vector<Plan> shapes_of_kernels() {
  std::vector<Plan> plans;
  for (const auto& [head_dim, cluster] : {std::pair{128, 2}, std::pair{128, 1}, std::pair{64, 1}})
    for (const Mask mask : {Mask::full, Mask::causal})
      for (const Schedule schedule : schedules_of(mask)) plans.push_back(plan_of(head_dim, cluster, mask, schedule));
  return plans;
}

/// Masks by expression: one of positions alone, and one that looks at the head.
std::vector<Plan> plans_of_expressions() {
  std::vector<Plan> plans;
  for (const char* text : {"expr:k <= q && q - k < 1024", "expr:k <= q && q - k < 128 * (head + 1)"}) {
    const auto mask = parse_mask(text);
    if (!mask) continue;
    for (const auto& [head_dim, cluster] : {std::pair{128, 2}, std::pair{128, 1}, std::pair{64, 1}})
      for (const Schedule schedule : schedules_of(*mask))
        for (const Accumulate accumulate : {Accumulate::ordered, Accumulate::exact}) {
          Plan plan = plan_of(head_dim, cluster, *mask, schedule);
          plan.accumulate = accumulate;
          plans.push_back(plan);
        }
  }
  return plans;
}

}  // namespace

std::vector<Plan> support_matrix() {
  std::vector<Plan> plans;
  for (Plan plan : shapes_of_kernels()) {
    for (const Accumulate accumulate : {Accumulate::ordered, Accumulate::exact, Accumulate::atomic})
      for (const DType dtype : {DType::bf16, DType::fp16})
        for (const int group : {1, 4}) {
          plan.accumulate = accumulate;
          plan.dtype = dtype;
          plan.group = group;
          plans.push_back(plan);
        }
    plan = plan_of(plan.head_dim, plan.cluster, plan.mask, plan.schedule);
    for (const ScheduleState state : {ScheduleState::producer, ScheduleState::consumer})
      for (const bool baked : {false, true}) {
        plan.schedule_state = state;
        plan.static_shape = baked ? std::optional(StaticShape{4, 4096, 4096, 8}) : std::nullopt;
        if (baked || state == ScheduleState::consumer) plans.push_back(plan);
      }
  }
  for (const Plan& plan : plans_of_expressions()) plans.push_back(plan);
  return plans;
}

std::vector<Plan> spilling_plans() {
  std::vector<Plan> plans;
  for (Plan plan : shapes_of_kernels())
    for (const int registers : {216, 240}) {
      plan.consumer_registers = registers;
      plans.push_back(plan);
    }
  return plans;
}

Result<AuditRow> audit(const Plan& plan, const Target& target, KernelBuilder& builder) {
  auto sources = generate(plan, target);
  if (!sources) return sources.error();
  auto probe = generate_probe(plan, target);
  if (!probe) return probe.error();
  const auto built = builder.build({std::move(sources->front()), *std::move(probe)}, to_text(plan));
  if (!built) return built.error();
  const KernelReport& main = (*built)[0].report;
  const KernelReport& alone = (*built)[1].report;
  const cost::Registers predicted = cost::predict_registers(plan);
  AuditRow row;
  row.key = main.key;
  row.plan = plan;
  row.predicted_registers = predicted.total;
  row.predicted_spill_bytes = predicted.spill_bytes;
  row.actual_registers = alone.launch_registers + (alone.spill_bytes > 0 ? alone.stack_bytes / kRegisterBytes : 0);
  row.actual_spill_bytes = main.spill_bytes;
  return row;
}

}  // namespace ordo
