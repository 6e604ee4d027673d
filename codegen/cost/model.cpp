#include "codegen/cost/model.hpp"

#include <algorithm>
#include <cmath>
#include <queue>
#include <vector>

#include "codegen/cost/constants.hpp"
#include "codegen/schedule/proof.hpp"
#include "codegen/schedule/simulator.hpp"
#include "codegen/schedule/visit_table.hpp"

namespace ordo::cost {
namespace {

using schedule::Geometry;

KernelClocks kernel_clocks(const Plan& plan) {
  if (plan.head_dim == 128) return plan.cluster == 2 ? kCluster128 : kSingle128;
  return kSingle64;
}

/// A step against one of an unordered kernel: what the order of visits costs in L2.
double schedule_factor(const Plan& plan) {
  const bool rotates = plan.arrival && plan.arrival->visits == ArrivalVisits::rotate;
  if (plan.schedule == Schedule::shift || plan.schedule == Schedule::symmetric_shift || rotates) return kShiftFactor;
  return plan.schedule == Schedule::alternate || plan.arrival ? kAlternateFactor : 1.0;
}

/// What the closed forms and the simulation need, in seconds.
struct Rates {
  double step;  ///< one Q tile, add included
  double item;
  double hop;
  double store;
};

Rates rates_of(const Plan& plan, const Target& target) {
  const KernelClocks clocks = kernel_clocks(plan);
  const double factor = plan.accumulate == Accumulate::exact     ? kExactFactor
                        : plan.accumulate != Accumulate::ordered ? 1.0
                                                                 : schedule_factor(plan);
  const double flops = 10.0 * plan.tile_q * plan.tile_kv * plan.head_dim;
  const double tensor_bound = flops * target.sm_count / (kTensorEfficiency * target.tensor_tflops * 1e12);
  return {std::max(clocks.step * factor / kSustainedClock, tensor_bound), clocks.item / kSustainedClock, kHop / kSustainedClock,
          kStore / kSustainedClock};
}

/// Units of one walk that are resident at once, when all of them are busy.
int resident_units(const Geometry& g, int workers) { return std::clamp(workers / std::min(g.head_group, g.walks), 1, g.units); }

/// Steps that an item lasts for one query head, waiting included where it waits at every head.
double lasting_steps(const Geometry& g, const Plan& plan, int unit) {
  if (plan.accumulate != Accumulate::ordered) return schedule::steps(g, unit);
  const int resident = resident_units(g, plan.workers);
  if (plan.schedule == Schedule::ascending && g.causal) {
    // Each unit waits on its diagonal until the first unit of its wave has come there.
    return schedule::steps(g, unit - unit % resident);
  }
  if (plan.schedule == Schedule::shift && resident > g.wave) {
    // Waves of one walk run side by side, and a wave adds only when the wave before it has: they end one after another.
    const int waves_before = unit % resident / g.wave;
    return static_cast<double>(schedule::steps(g, unit)) * (waves_before + 1);
  }
  return schedule::steps(g, unit);
}

/// Time until the last worker is done, items dispatched in order to the worker that is free first, nobody waiting.
double list_schedule(const Geometry& g, const Plan& plan, const std::vector<double>& unit_seconds, double total_seconds) {
  const int items = schedule::items(g);
  // Whole groups only, so that what is left out is work of the same mixture.
  const std::int64_t group_items = std::int64_t{g.head_group} * schedule::walk_items(g);
  const std::int64_t skipped = std::max(0, items - kMostListedItems) / group_items * group_items;
  if (items - skipped > std::int64_t{8} * kMostListedItems) return total_seconds / plan.workers;
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int worker = 0; worker < plan.workers; ++worker) free.push(0);
  double listed = 0, end = 0;
  for (std::int64_t index = skipped; index < items; ++index) {
    const schedule::Item item = schedule::item_at(g, static_cast<int>(index));
    double seconds = unit_seconds[static_cast<std::size_t>(item.unit)];
    if (schedule::has_second_half(g, item))
      seconds += unit_seconds[static_cast<std::size_t>(schedule::second_half(g, item).unit)];
    const double done = free.top() + seconds;
    free.pop();
    free.push(done);
    listed += seconds;
    end = std::max(end, done);
  }
  return end + (total_seconds - listed) / plan.workers;
}

/// Once a launch: the last unit starts to add after a hop for each unit before it.
double skew_seconds(const Geometry& g, const Plan& plan, const Rates& rates) {
  if (plan.accumulate != Accumulate::ordered) return 0;
  const double hops = resident_units(g, plan.workers) - 1;
  switch (plan.schedule) {
    case Schedule::ascending:
      return hops * rates.hop;
    case Schedule::descending: {
      const bool repeats = g.causal && schedule::items(g) / 4 >= plan.workers;
      return hops * rates.hop * (repeats ? kDescendingCausalSkews : 1);
    }
    case Schedule::shift: {
      // A unit follows its neighbour `stride` steps later: only what a hop is longer than that is lost, at every step.
      const double slack = g.stride * rates.step;
      const double lost = std::max(0.0, rates.hop - slack) / g.stride;
      const double steps = static_cast<double>(g.q_tiles) * plan.group * schedule::items(g) / plan.workers;
      return g.wave > 1 ? lost * steps : 0;
    }
    case Schedule::alternate:
    case Schedule::symmetric_shift:
    case Schedule::arrival:
      return 0;
  }
  return 0;
}

struct Main {
  double seconds, stall, imbalance;
};

Main closed_form(const Geometry& g, const Plan& plan, const Rates& rates) {
  // Very long sequences: every so many units stand for all, and there is enough work for an even load.
  const int every = 1 + g.units / kMostListedItems;
  std::vector<double> lasting;
  double lasting_total = 0, work_total = 0;
  for (int unit = 0; unit < g.units; unit += every) {
    const int stand_for = std::min(every, g.units - unit);
    lasting.push_back(lasting_steps(g, plan, unit) * plan.group * rates.step + rates.item);
    lasting_total += lasting.back() * stand_for;
    work_total += (schedule::steps(g, unit) * static_cast<double>(plan.group) * rates.step + rates.item) * stand_for;
  }
  const double even = work_total * g.walks / plan.workers;
  const double waiting = (lasting_total - work_total) * g.walks / plan.workers;
  const double all = lasting_total * g.walks;
  const double listed = every == 1 ? list_schedule(g, plan, lasting, all) : std::max(all / plan.workers, lasting.front());
  const double skew = skew_seconds(g, plan, rates);
  return {listed + skew, waiting + skew, std::max(0.0, listed - even - waiting)};
}

/// The same from the event simulation; the fixed cost of an item is added for as many items as one worker gets.
Main simulated(const AttentionBackward& problem, const Geometry& g, const Plan& plan, const Rates& rates) {
  Simulation simulation;
  simulation.geometry = g;
  simulation.query_heads = plan.group;
  simulation.workers = plan.workers;
  const double compute = std::max(0.0, rates.step - rates.store);
  simulation.costs = {{compute, compute, compute}, std::min(rates.step, rates.store), rates.hop - rates.store};
  simulation.record = false;
  simulation.prove = false;
  Result<ArrivalTable> table{ArrivalTable{}};
  if (reads_table(plan)) {
    table = table_of(problem, plan);
    if (!table) return closed_form(g, plan, rates);
    simulation.table = &*table;
    simulation.mask = mask_of(problem, plan);
  }
  const auto report = simulate(simulation);
  if (!report) return closed_form(g, plan, rates);
  const double rounds = schedule::ceil_div(g.units * g.walks, plan.workers);
  const double stall = report->stall_total / plan.workers;
  double busy = 0;
  for (const WorkerTime& worker : report->workers) busy += worker.busy;
  const double seconds = report->makespan + rounds * rates.item;
  return {seconds, stall, std::max(0.0, report->makespan - busy / plan.workers - stall)};
}

/// The share of tiles that a mask by expression leaves alive: what the closed forms, which know no such mask, overestimate by.
double live_share(const AttentionBackward& problem, const Geometry& g, const Plan& plan) {
  const auto mask = mask_of(problem, plan);
  if (!mask) return 1;
  return static_cast<double>(live_tiles(TileMap(g, mask))) / (static_cast<double>(g.units) * g.q_tiles);
}

double auxiliary_seconds(const AttentionBackward& problem, const Plan& plan, const Target& target) {
  const auto elements = [&](std::int64_t seqlen, std::int64_t heads) {
    return static_cast<double>(problem.batch) * static_cast<double>(seqlen) * static_cast<double>(heads) *
           static_cast<double>(problem.head_dim);
  };
  double bytes = kAuxiliaryBytes * elements(problem.seqlen_q, problem.heads);
  int launches = 3;
  if (plan.accumulate == Accumulate::exact) {
    bytes += kScaleBytes * elements(problem.seqlen_k, problem.kv_heads);
    ++launches;
  }
  return bytes / (kMemoryEfficiency * target.memory_gbps * 1e9) + launches * kLaunchSeconds;
}

}  // namespace

Prediction predict(const AttentionBackward& problem, const Plan& plan, const Target& target) {
  const Geometry g = make_geometry(problem, plan);
  const Rates rates = rates_of(plan, target);
  const double tasks = static_cast<double>(g.units) * g.q_tiles * plan.group * g.walks;
  const bool simulate_it = plan.accumulate == Accumulate::ordered && tasks <= kMostSimulatedTasks;
  Main main = simulate_it ? simulated(problem, g, plan, rates) : closed_form(g, plan, rates);
  if (!simulate_it) {
    const double share = live_share(problem, g, plan);
    main = {main.seconds * share, main.stall * share, main.imbalance * share};
  }
  const double auxiliary = auxiliary_seconds(problem, plan, target);
  return {(main.seconds + auxiliary) * 1e3, main.stall * 1e3, main.imbalance * 1e3, auxiliary * 1e3, simulate_it};
}

SimulationCosts task_clocks(const Plan& plan, const Target& target) {
  const Rates rates = rates_of(plan, target);
  const auto clocks = [](double seconds) { return std::round(seconds * kSustainedClock); };
  const double compute = clocks(rates.step);
  return {.compute = {compute, compute, compute},
          .reduce = clocks(rates.store),
          .handover = clocks(rates.hop - rates.store),
          .unit = clocks(rates.item),
          .staging = plan.dq_buffers};
}

int predict_registers(const Plan& plan) {
  constexpr int kConsumerThreads = 256;
  const int gradients = 2 * plan.tile_kv * plan.head_dim / kConsumerThreads;  // dK and dV
  const int scores = 2 * plan.tile_q * 128 / kConsumerThreads;  // S and dP of a block; later fragments of P and dS, and dQ
  int registers = gradients + scores + kBaseRegisters;
  if (plan.mask == Mask::causal) registers += kCausalRegisters;
  if (!plan.static_shape) registers += kDynamicShapeRegisters;
  if (plan.accumulate == Accumulate::exact) registers += kExactRegisters;
  return registers;
}

}  // namespace ordo::cost
