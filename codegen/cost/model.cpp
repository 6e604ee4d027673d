#include "codegen/cost/model.hpp"

#include <algorithm>
#include <cmath>

#include "codegen/cost/timeline.hpp"
#include "codegen/generate/config.hpp"
#include "codegen/schedule/geometry.hpp"
#include "codegen/schedule/proof.hpp"

namespace ordo::cost {
namespace {

/// Tasks that are timed for one candidate: about 10 ns each, and a plan has up to eight candidates in 10 ms.
constexpr double kMostTasks = 60000;

/// Bytes an element of dQ. Preprocess reads O and dO; then dQ is summed in fp32: `ordered` reads the sums from L2 and writes dQ
/// in the main kernel, the others zero it, read it and write it.
double auxiliary_bytes(Accumulate accumulate) { return accumulate == Accumulate::ordered ? 2 + 2 + 4 + 2 : 2 + 2 + 4 + 4 + 2; }
constexpr double kScaleBytes = 2 + 2;  // exact: an element of K and V

int launches(Accumulate accumulate) { return accumulate == Accumulate::ordered ? 2 : accumulate == Accumulate::exact ? 4 : 3; }

double auxiliary_seconds(const AttentionBackward& problem, const Plan& plan, const Target& target, const Constants& constants) {
  const auto elements = [&](std::int64_t seqlen, std::int64_t heads) {
    return static_cast<double>(problem.batch) * static_cast<double>(seqlen) * static_cast<double>(heads) *
           static_cast<double>(problem.head_dim);
  };
  double bytes = auxiliary_bytes(plan.accumulate) * elements(problem.seqlen_q, problem.heads);
  if (plan.accumulate == Accumulate::exact) bytes += kScaleBytes * elements(problem.seqlen_k, problem.kv_heads);
  return bytes / (constants.memory_efficiency * target.memory_gbps * 1e9) + launches(plan.accumulate) * constants.launch_seconds;
}

double order_factor(const Plan& plan, const KernelConstants& kernel) {
  switch (plan.schedule) {
    case Schedule::ascending:
      return plan.mask == Mask::causal ? kernel.ascending_causal : 1;
    case Schedule::descending:
      return plan.mask == Mask::causal ? kernel.descending_causal : 1;
    case Schedule::shift:
      return kernel.shift;
    case Schedule::alternate:
      return kernel.alternate;
  }
  return 1;
}

/// How much faster the SMs run than when all of them compute: a GPU limited by power raises its clock while some wait.
double clock_gain(const Timeline& timeline, const Constants& constants) {
  if (timeline.makespan <= 0) return 1;
  const double busy = std::clamp(timeline.work / timeline.makespan, 0.05, 1.0);
  return std::clamp(std::pow(busy, -constants.clock_exponent), 1.0, std::max(1.0, constants.max_clock_hz / constants.clock_hz));
}

/// dQ tiles that wait for the adding warp while consumers go on. Warpgroups that stage in turn have a step of their own to spare.
int staging_buffers(const Plan& plan) {
  const bool take_turns = attention_backward::stage_slices(device_config(plan)) == 1;
  return plan.dq_buffers + (take_turns ? 1 : 0);
}

}  // namespace

Prediction predict(const AttentionBackward& problem, const Plan& plan, const Target& target, const Constants& constants) {
  const KernelConstants& kernel = constants.kernel(plan);
  Prediction out;
  out.step = step_clocks(plan, constants);
  const Registers registers = predict_registers(plan);
  out.step_clocks =
      out.step.bound() / kernel.efficiency * order_factor(plan, kernel) + registers.spill_bytes * constants.spilled_byte;
  if (plan.accumulate == Accumulate::exact) out.step_clocks *= constants.exact;
  const double second = 1 / constants.clock_hz;
  const bool ordered = plan.accumulate == Accumulate::ordered;
  const double item = kernel.item + (ordered && schedule::waits_on_later_items(kind_of(plan.schedule)) ? kernel.set_item : 0);
  const StepTimes times{out.step_clocks * second, out.step_clocks * (kernel.masked - 1) * second, item * second,
                        constants.add * second, kernel.hop * second};
  const Launch launch{make_geometry(problem, plan), plan.group, plan.workers, ordered, staging_buffers(plan)};
  const Timeline timeline = time_launch(launch, times, kMostTasks);
  const double main = 1e3 / clock_gain(timeline, constants);  // milliseconds for a second of the timeline
  out.auxiliary_ms = auxiliary_seconds(problem, plan, target, constants) * 1e3;
  out.ms = timeline.makespan * main + out.auxiliary_ms;
  out.stall_ms = timeline.waiting * main;
  out.imbalance_ms = std::max(0.0, timeline.makespan - timeline.work - timeline.waiting) * main;
  out.simulated = timeline.whole;
  return out;
}

Prediction predict(const AttentionBackward& problem, const Plan& plan, const Target& target) {
  return predict(problem, plan, target, shipped_constants(target));
}

}  // namespace ordo::cost
