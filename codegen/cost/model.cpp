#include "codegen/cost/model.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "codegen/cost/timeline.hpp"
#include "codegen/generate/config.hpp"
#include "codegen/schedule/geometry.hpp"
#include "codegen/schedule/proof.hpp"
#include "codegen/schedule/visit_table.hpp"

namespace ordo::cost {
namespace {

/// Tasks that are timed for one candidate: about 10 ns each, and a plan has up to eight candidates in 10 ms.
constexpr double kMostTasks = 40000;

/// Bytes an element of dQ. Preprocess reads O and dO; then dQ is summed in fp32: `ordered` reads the sums from L2 and writes dQ
/// in the main kernel, the others zero it, read it and write it.
double auxiliary_bytes(Accumulate accumulate) { return accumulate == Accumulate::ordered ? 2 + 2 + 4 + 2 : 2 + 2 + 4 + 4 + 2; }
constexpr double kScaleBytes = 2 + 2;  // exact: an element of K and V

/// `ordered`: the share of the sums of dQ that L2 no longer has when they are converted. In flight are those of the group in hand
/// and of the groups that conversion lags behind (kConvertLag in the main kernel).
double missed_share(const AttentionBackward& problem, const Plan& plan, const Constants& constants) {
  if (plan.accumulate != Accumulate::ordered) return 0;
  constexpr double kGroups = 1 + 2;
  const double walks = std::min(kGroups * plan.head_group, static_cast<double>(problem.batch * problem.kv_heads));
  const double bytes = walks * plan.group * static_cast<double>(problem.seqlen_q * problem.head_dim) * sizeof(float);
  return std::clamp(bytes / constants.sums_in_l2 - 1, 0.0, 1.0);
}

int launches(Accumulate accumulate) { return accumulate == Accumulate::ordered ? 2 : accumulate == Accumulate::exact ? 4 : 3; }

double auxiliary_seconds(const AttentionBackward& problem, const Plan& plan, const Target& target, const Constants& constants) {
  const auto elements = [&](std::int64_t seqlen, std::int64_t heads) {
    return static_cast<double>(problem.batch) * static_cast<double>(seqlen) * static_cast<double>(heads) *
           static_cast<double>(problem.head_dim);
  };
  const double of_dq = elements(problem.seqlen_q, problem.heads);
  double bytes = auxiliary_bytes(plan.accumulate) * of_dq;
  const double missed = missed_share(problem, plan, constants) * constants.missed_bytes * of_dq;
  if (plan.accumulate == Accumulate::exact) bytes += kScaleBytes * elements(problem.seqlen_k, problem.kv_heads);
  return bytes / (constants.memory_efficiency * target.memory_gbps * 1e9) + missed / (target.memory_gbps * 1e9) +
         launches(plan.accumulate) * constants.launch_seconds;
}

/// Against ascending on a full mask.
double order_factor(const Plan& plan, const KernelConstants& kernel) {
  const bool full = plan.mask == Mask::full;
  const double down = full ? 1 : kernel.descending_causal;
  switch (plan.schedule) {
    case Schedule::ascending:
      return full ? 1 : kernel.ascending_causal;
    case Schedule::descending:
      return down;
    case Schedule::shift:
      return kernel.shift;
    case Schedule::alternate:
      return kernel.alternate;
    case Schedule::symmetric_shift:
      return kernel.symmetric_shift;
    case Schedule::arrival:
      break;
  }
  // Visits as those of another schedule, adds without its waits.
  switch (plan.arrival.value_or(Arrival{}).visits) {
    case ArrivalVisits::rotate:
      return kernel.shift;
    case ArrivalVisits::down:
      return down;
    case ArrivalVisits::up:
    case ArrivalVisits::up_and_down:
    case ArrivalVisits::turn:
    case ArrivalVisits::greedy:
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

/// A step that is all visible, in clocks.
double step_of(const Plan& plan, const StepClocks& step, const Constants& constants) {
  const KernelConstants& kernel = constants.kernel(plan);
  const double clocks = step.bound() / kernel.efficiency * order_factor(plan, kernel) +
                        predict_registers(plan).spill_bytes * constants.spilled_byte;
  return plan.accumulate == Accumulate::exact ? clocks * constants.exact : clocks;
}

double item_of(const Plan& plan, const KernelConstants& kernel) {
  const bool in_sets = plan.accumulate == Accumulate::ordered && schedule::waits_on_later_items(kind_of(plan.schedule));
  return kernel.item + (in_sets ? kernel.set_item : 0);
}

/// Tiles of a query head beyond which a table of visits is not walked.
constexpr std::int64_t kMostTableTiles = 1 << 17;

/// Where the mask of `problem` crosses the tiles of `launch`, and the share of tiles that it leaves alive.
double read_mask(const std::function<TileKind(int, int)>& mask, Launch& launch) {
  const schedule::Geometry& g = launch.geometry;
  std::int64_t live = 0;
  launch.edges.reserve(static_cast<std::size_t>(g.units) * static_cast<std::size_t>(g.q_tiles));
  for (int unit = 0; unit < g.units; ++unit)
    for (int q = 0; q < g.q_tiles; ++q) {
      const TileKind kind = mask(unit, q);
      live += kind != TileKind::none ? 1 : 0;
      launch.edges.push_back(kind == TileKind::full ? 0 : 1);
    }
  return static_cast<double>(live) / (static_cast<double>(g.units) * g.q_tiles);
}

/// The main kernel. Tables of visits that are too large to walk are taken as if every live tile's turn had always come: nearly so
/// in the orders of arrival, which is where tables are large.
Timeline time_main(const AttentionBackward& problem, const Plan& plan, const StepTimes& times, const ArrivalTable* known) {
  Launch launch{.geometry = make_geometry(problem, plan),
                .workers = plan.workers,
                .ordered = plan.accumulate == Accumulate::ordered,
                .buffers = staging_buffers(plan)};
  if (!reads_table(plan)) return time_launch(launch, times, kMostTasks);
  double share = 1;
  if (std::int64_t{launch.geometry.units} * launch.geometry.q_tiles <= kMostTableTiles) {
    if (const auto mask = mask_of(problem, plan)) share = read_mask(mask, launch);
    Result<ArrivalTable> made{ArrivalTable{}};
    if (known == nullptr) made = table_of(problem, plan);
    if (made) {
      launch.table = (known != nullptr ? *known : *made).words.data();
      return time_launch(launch, times, kMostTasks);
    }
  }
  launch.edges.clear();
  launch.ordered = false;
  launch.geometry.kind = schedule::Kind::ascending;
  Timeline out = time_launch(launch, times, kMostTasks);
  return {out.makespan * share, out.work * share, 0, false};
}

}  // namespace

Prediction predict(const AttentionBackward& problem, const Plan& plan, const Target& target, const Constants& constants,
                   const ArrivalTable* table) {
  const KernelConstants& kernel = constants.kernel(plan);
  Prediction out;
  out.step = step_clocks(plan, constants);
  out.step_clocks = step_of(plan, out.step, constants);
  const double second = 1 / constants.clock_hz;
  const StepTimes times{out.step_clocks * second, out.step_clocks * (kernel.masked - 1) * second, item_of(plan, kernel) * second,
                        constants.add * second, kernel.hop * second};
  const Timeline timeline = time_main(problem, plan, times, table);
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

SimulationCosts task_clocks(const Plan& plan, const Target& target) {
  const Constants& constants = shipped_constants(target);
  const KernelConstants& kernel = constants.kernel(plan);
  const double step = step_of(plan, step_clocks(plan, constants), constants), edge = std::round(step * kernel.masked);
  return {.compute = {std::round(step), edge, edge},
          .reduce = std::round(constants.add),
          .handover = std::round(kernel.hop),
          .unit = std::round(item_of(plan, kernel)),
          .staging = staging_buffers(plan)};
}

}  // namespace ordo::cost
