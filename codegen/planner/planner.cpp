// Chooses a plan: lists what can run the problem, predicts each, and says why the first is first.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "codegen/cost/model.hpp"
#include "codegen/fit.hpp"
#include "codegen/schedule/arrival.hpp"
#include "codegen/schedule/proof.hpp"
#include "codegen/schedule/visit_table.hpp"
#include "ordo/plan.hpp"

namespace ordo {
namespace {

/// Neighbours in a shift are at most this many Q tiles apart: enough to hide a hop, few enough to share Q tiles in L2.
constexpr int kLongestStride = 4;

/// Plans closer than this are the same by the model's accuracy; the order in which they are listed decides.
constexpr double kTie = 1.004;

/// Tiles of a walk up to which arrival is weighed without being asked for: a table takes about 100 ns a tile, and masks by
/// expression have two to choose from, for each of which the mask is read.
constexpr double kMostArrivalTiles = 20000;

struct Option {
  Candidate candidate;
  cost::Prediction prediction;
  cost::Registers registers;
  std::size_t listed;
};

Plan base_plan(const AttentionBackward& problem, const Target& target, const PlanRequest& request, Accumulate accumulate,
               int cluster) {
  Plan plan;
  plan.dtype = problem.dtype;
  plan.head_dim = static_cast<int>(problem.head_dim);
  plan.mask = problem.mask;
  plan.group = static_cast<int>(problem.group());
  plan.accumulate = accumulate;
  plan.cluster = cluster;
  plan.schedule_state = request.schedule_state;
  const bool wide = problem.head_dim == 128;
  plan.tile_q = 64;
  plan.tile_kv = wide ? 128 : 256;
  plan.stages = 2;
  // As many as fit beside the rest: an add that waits for its turn holds the consumers up only when all are full.
  plan.dq_buffers = cluster == 2 || accumulate != Accumulate::ordered ? 1 : wide ? 2 : 3;
  plan.workers = std::clamp(target.sm_count / cluster, 1, 1024);
  if (request.static_shape) plan.static_shape = StaticShape{problem.batch, problem.seqlen_q, problem.seqlen_k, problem.kv_heads};
  return plan;
}

/// KV units of a walk.
std::int64_t units_of(const AttentionBackward& problem, const Plan& plan) {
  const std::int64_t unit = std::int64_t{plan.tile_kv} * plan.cluster;
  return (problem.seqlen_k + unit - 1) / unit;
}

/// Whether half as many walks together are faster, at head_dim 64: that leaves more of L2 to the sums. On full masks where units
/// start one behind the other and so wait for nobody, shift 0.5 to 3.5 % from 512 to 16384; ascending is slower for it. On causal
/// ones at 512 descending 3 % and alternate 1 %; from 1024 on they are equal, and symmetric_shift and ascending 5 % slower.
/// (H200, `ordo bench --suite --plans schedules --set head_group=N`; head_dim 128 is the same within 1 %.)
bool half_group_pays(const AttentionBackward& problem, const Plan& plan) {
  if (plan.accumulate != Accumulate::ordered || plan.head_dim != 64) return false;
  constexpr std::int64_t kShort = 512;
  const bool arrives = plan.schedule == Schedule::arrival;
  if (plan.mask == Mask::full) return arrives || plan.schedule == Schedule::shift;
  return plan.mask == Mask::causal && plan.group == 1 && std::max(problem.seqlen_q, problem.seqlen_k) <= kShort &&
         (arrives || plan.schedule == Schedule::alternate || plan.schedule == Schedule::descending);
}

/// Dispatch as many walks together as fit on the device, so that neighbours add into different dQ tiles. alternate (and arrival,
/// where it goes up and down) wants an upward group for each downward one: one group more, of smaller groups, where their number
/// is odd.
int head_group_for(const AttentionBackward& problem, const Plan& plan) {
  const std::int64_t units = units_of(problem, plan);
  const std::int64_t items = plan.schedule == Schedule::symmetric_shift ? (units + 1) / 2 : units;
  const std::int64_t walks = problem.batch * problem.kv_heads;
  std::int64_t group = std::clamp<std::int64_t>(plan.workers / items / (half_group_pays(problem, plan) ? 2 : 1), 1, walks);
  const bool in_turns = plan.schedule == Schedule::alternate || (plan.schedule == Schedule::arrival && plan.mask == Mask::causal);
  if (in_turns && walks * units > plan.workers) {
    const std::int64_t groups = (walks + group - 1) / group;
    const std::int64_t even = groups + groups % 2;
    group = (walks + even - 1) / even;
  }
  return static_cast<int>(group);
}

/// The visits that schedule arrival may be given. In simulations of the suite's cells and of 65536 tokens no other way was ahead
/// of these; turn is for L2, which they do not know (schedule::first_down).
std::vector<ArrivalVisits> visits_for(const schedule::Geometry& g, bool by_expression) {
  if (by_expression) return {ArrivalVisits::down, ArrivalVisits::greedy};
  if (!g.causal) return {ArrivalVisits::rotate};
  if (g.wave == g.units) return {g.heads > 1 ? ArrivalVisits::turn : ArrivalVisits::up_and_down};
  return {ArrivalVisits::down, ArrivalVisits::greedy};
}

/// A plan, and where it reads one its table of visits, if that has been made.
struct Made {
  Plan plan;
  std::optional<ArrivalTable> table = {};
};

/// The order of arrival whose simulation ends first. Errors: a table that would be too large.
Result<Made> with_arrival(const AttentionBackward& problem, Plan plan, const Target& target) {
  const SimulationCosts costs = cost::task_clocks(plan, target);
  const auto clocks = [](double value) { return static_cast<int>(value); };
  const schedule::Geometry g = make_geometry(problem, plan);
  const TileMap tiles(g, mask_of(problem, plan));
  double shortest = 0;
  Made out;
  for (const ArrivalVisits visits : visits_for(g, problem.mask.expression() != nullptr)) {
    auto table = make_arrival(g, plan.workers, costs, visits, tiles);
    if (!table) return table.error();
    add_mask(problem, plan, *table);
    const double makespan = table->makespan / table->patterns();
    if (plan.arrival && makespan >= shortest) continue;
    shortest = makespan;
    plan.arrival = Arrival{.visits = visits,
                           .compute = clocks(costs.compute.full),
                           .diagonal = clocks(costs.compute.diagonal),
                           .partial = clocks(costs.compute.partial),
                           .reduce = clocks(costs.reduce),
                           .handover = clocks(costs.handover),
                           .unit = clocks(costs.unit),
                           .staging = costs.staging,
                           .hash = table->hash()};
    out.table = *std::move(table);
  }
  out.plan = plan;
  return out;
}

/// Of a walk, all its query heads.
double tiles_of(const AttentionBackward& problem, const Plan& plan) {
  const double q_tiles = std::ceil(static_cast<double>(problem.seqlen_q) / plan.tile_q);
  return q_tiles * static_cast<double>(units_of(problem, plan)) * plan.group;
}

/// `plan` with the fields that follow from its schedule.
Result<Made> with_schedule(const AttentionBackward& problem, Plan plan, Schedule schedule, const Target& target) {
  plan.schedule = schedule;
  plan.head_group = head_group_for(problem, plan);
  if (schedule == Schedule::shift || schedule == Schedule::symmetric_shift) {
    plan.shift_stride = kLongestStride;
    plan.shift_stride = make_geometry(problem, plan).stride;
  }
  if (schedule == Schedule::arrival) return with_arrival(problem, plan, target);
  return Made{plan};
}

/// Schedules for the mask, the one to take among equals first.
std::vector<Schedule> schedules_for(Mask mask) {
  if (mask == Mask::full) return {Schedule::ascending, Schedule::shift, Schedule::arrival, Schedule::descending};
  if (mask.expression() != nullptr) return {Schedule::descending, Schedule::arrival, Schedule::ascending};
  return {Schedule::alternate, Schedule::arrival, Schedule::symmetric_shift, Schedule::descending, Schedule::ascending};
}

/// Cluster sizes that a kernel exists for, the usual one first. The bits of `exact` follow the cluster, so there it must come
/// from the problem alone; in `ordered` it may be chosen by time.
std::vector<int> clusters_for(const AttentionBackward& problem, const Target& target, Accumulate accumulate) {
  if (problem.head_dim != 128 || problem.seqlen_k <= 128) return {1};
  if (accumulate != Accumulate::ordered) return {2};
  if (target.sm_count < 2) return {1};
  return {2, 1};
}

std::string_view strength(const Plan& plan) {
  if (plan.accumulate == Accumulate::exact && plan.schedule == Schedule::shift) {
    return "integer sums need no order, but shift's visits, and so the bits of dK and dV, follow the SM count";
  }
  if (plan.accumulate == Accumulate::exact)
    return "integer sums need no order, and tiles and order follow from the problem alone";
  if (plan.accumulate == Accumulate::atomic) return "adds in arrival order: not deterministic";
  switch (plan.schedule) {
    case Schedule::ascending:
      return plan.mask == Mask::full ? "neighbours share Q tiles in L2 and the turns to add cost one skew a launch"
                                     : "each unit waits on its diagonal for the first";
    case Schedule::descending:
      return plan.mask == Mask::full ? "as ascending, from the last Q tile"
                                     : "the longest items start first and wait on earlier items only";
    case Schedule::shift:
      return "each unit starts where its neighbour has been, so turns to add come without waiting";
    case Schedule::alternate:
      return "groups of heads go up and down in turn, so turns come without waiting and long items meet short ones";
    case Schedule::symmetric_shift:
      return "every cluster takes a long and a short KV tile, and turns come as they rotate";
    case Schedule::arrival:
      return "turns come in the order in which a simulation of the launch has KV tiles arrive";
  }
  return "";
}

std::string form(const Plan& plan) {
  const std::string_view cluster = plan.head_dim != 128 ? "" : plan.cluster == 2 ? " in clusters of 2" : " with single CTAs";
  const std::string_view state = plan.schedule_state == ScheduleState::consumer ? " in the consumer" : "";
  return fmt::format("{}{}{}", to_string(plan.schedule), state, cluster);
}

/// What the schedule costs in registers; empty where it costs none.
std::string register_words(const Option& option) {
  const cost::Registers& r = option.registers;
  if (r.schedule == 0 && r.spill_bytes == 0) return "";
  const std::string state = r.schedule > 0 ? fmt::format("{:+} live registers", r.schedule) : std::string("a budget too small");
  return fmt::format("; {} -> {}", state, r.spill_bytes == 0 ? "no spill" : fmt::format("{} bytes of spills", r.spill_bytes));
}

std::string note(const Option& option, const Option& best) {
  const cost::Prediction& p = option.prediction;
  std::string text(strength(option.candidate.plan));
  if (p.stall_ms >= 0.005 * p.ms) text += fmt::format("; {:.3f} ms of waiting to add", p.stall_ms);
  if (p.imbalance_ms >= 0.02 * p.ms) text += fmt::format("; {:.3f} ms of workers without work", p.imbalance_ms);
  text += register_words(option);
  if (&option != &best) text += fmt::format("; {:+.1f} %", (p.ms / best.prediction.ms - 1) * 100);
  return text;
}

/// What the planner would have taken, had it been asked for nothing.
std::string against_free_choice(const Option& best, const Option& free) {
  if (free.candidate.plan == best.candidate.plan) return "; nothing is predicted faster";
  const double ratio = best.prediction.ms / free.prediction.ms;
  if (ratio <= kTie) return fmt::format("; {} is predicted as fast", form(free.candidate.plan));
  return fmt::format("; {} predicted {:.1f} % faster", form(free.candidate.plan), (ratio - 1) * 100);
}

/// `free` is the best where nothing is asked for; null where that is what `options` are.
std::string reason(const std::vector<Option>& options, const PlanRequest& request, const cost::Constants& constants,
                   const Option* free) {
  const Option& best = options.front();
  std::string text = fmt::format("{}: {}{}; predicted {:.3f} ms", form(best.candidate.plan), strength(best.candidate.plan),
                                 register_words(best), best.prediction.ms);
  if (!constants.measured || request.constants) text += fmt::format(" (constants {})", constants.origin);
  if (request.schedule) text += "; the schedule was asked for";
  if (free != nullptr) text += against_free_choice(best, *free);
  if (request.schedule || best.candidate.plan.accumulate == Accumulate::exact) return text;
  // On a full mask descending is ascending's mirror image: no news.
  const auto next = std::find_if(options.begin() + 1, options.end(), [](const Option& option) {
    return option.candidate.plan.mask == Mask::causal || option.candidate.plan.schedule != Schedule::descending;
  });
  if (next == options.end()) return text;
  const double ratio = next->prediction.ms / best.prediction.ms;
  const std::string_view verdict = ratio <= kTie ? "; too close to tell" : "";
  return text + fmt::format(", next is {} at {:.3f} ms ({:+.1f} %{})", form(next->candidate.plan), next->prediction.ms,
                            (ratio - 1) * 100, verdict);
}

/// Best first. Only a lead beyond the model's accuracy moves a plan ahead of one listed before it.
void sort_options(std::vector<Option>& options) {
  if (options.empty()) return;
  const auto best = std::min_element(options.begin(), options.end(),
                                     [](const Option& a, const Option& b) { return a.prediction.ms < b.prediction.ms; });
  const double limit = best->prediction.ms * kTie;
  const auto first =
      std::find_if(options.begin(), options.end(), [&](const Option& option) { return option.prediction.ms <= limit; });
  std::rotate(options.begin(), first, first + 1);
  std::sort(options.begin() + 1, options.end(), [](const Option& a, const Option& b) {
    return std::pair(a.prediction.ms, a.listed) < std::pair(b.prediction.ms, b.listed);
  });
}

/// Whether the items that wait for each other are resident together: the closed form of what prove_schedule checks.
bool group_fits(const AttentionBackward& problem, const Plan& plan) {
  if (plan.schedule != Schedule::alternate) return true;
  const schedule::Geometry g = make_geometry(problem, plan);
  return std::int64_t{g.head_group} * g.units <= plan.workers;
}

/// Whether alternate can run the problem: a whole head fits on the device.
bool alternate_fits(const AttentionBackward& problem, const Plan& plan) {
  return problem.mask == Mask::causal && units_of(problem, plan) <= plan.workers;
}

const cost::Constants& constants_of(const Target& target, const PlanRequest& request) {
  return request.constants ? *request.constants : cost::shipped_constants(target);
}

Result<void> check_target(const Target& target) {
  if (target.sm_count >= 1 && target.tensor_tflops > 0 && target.memory_gbps > 0) return {};
  return Error{ErrorCode::invalid_argument, fmt::format("target {} has {} SMs, {} TFLOP/s and {} GB/s; all must be above 0",
                                                        target.name, target.sm_count, target.tensor_tflops, target.memory_gbps)};
}

/// Everything that can run the problem, best first.
Result<std::vector<Option>> weigh(const AttentionBackward& problem, const Target& target, const PlanRequest& request) {
  if (auto valid = problem.validate(); !valid) return valid.error();
  if (auto valid = check_target(target); !valid) return valid.error();
  const Accumulate accumulate = request.accumulate.value_or(Accumulate::ordered);
  std::vector<Schedule> schedules = schedules_for(problem.mask);
  if (request.schedule) {
    schedules = {*request.schedule};
  } else if (accumulate != Accumulate::ordered) {
    schedules = {Schedule::ascending};
  }
  const cost::Constants& constants = constants_of(target, request);
  std::vector<Option> options;
  std::optional<Error> refusal;
  const std::vector<int> clusters = clusters_for(problem, target, accumulate);
  for (const int cluster : clusters) {
    const Plan base = base_plan(problem, target, request, accumulate, cluster);
    for (const Schedule schedule : schedules) {
      if (auto valid = check_mask(schedule, problem.mask); !valid) return valid.error();
      if (auto valid = check_sizes(problem, base); !valid) {
        refusal = valid.error();
        continue;
      }
      // Its table takes a while to make: weighed without being asked for where it is small, in the usual cluster, and not where
      // alternate gives the same orders by rule.
      if (schedule == Schedule::arrival && !request.schedule &&
          (tiles_of(problem, base) * (problem.mask.expression() != nullptr ? 2 : 1) > kMostArrivalTiles ||
           cluster != clusters.front() || alternate_fits(problem, base)))
        continue;
      auto made = with_schedule(problem, base, schedule, target);
      if (!made) {
        refusal = made.error();
        continue;
      }
      const Plan& plan = made->plan;
      if (!group_fits(problem, plan)) {
        refusal = check_fit(problem, plan).error();
        continue;
      }
      const cost::Prediction prediction = cost::predict(problem, plan, target, constants, made->table ? &*made->table : nullptr);
      const cost::Registers registers = cost::predict_registers(plan);
      options.push_back(
          {{plan, prediction.ms, registers.total, registers.spill_bytes, {}}, prediction, registers, options.size()});
    }
  }
  if (options.empty()) return *refusal;
  sort_options(options);
  return options;
}

std::vector<Candidate> described(const std::vector<Option>& options) {
  std::vector<Candidate> candidates;
  candidates.reserve(options.size());
  for (const Option& option : options) {
    candidates.push_back(option.candidate);
    candidates.back().note = note(option, options.front());
  }
  return candidates;
}

}  // namespace

Result<PlanChoice> make_plan(const AttentionBackward& problem, const Target& target, const PlanRequest& request) {
  auto options = weigh(problem, target, request);
  if (!options) return options.error();
  std::vector<Option> free;
  if (request.schedule || request.schedule_state != ScheduleState::producer) {
    PlanRequest nothing = request;
    nothing.schedule.reset();
    nothing.schedule_state = ScheduleState::producer;
    if (auto others = weigh(problem, target, nothing)) free = *std::move(others);
  }
  PlanChoice choice;
  choice.reason = reason(*options, request, constants_of(target, request), free.empty() ? nullptr : &free.front());
  choice.candidates = described(*options);
  choice.plan = choice.candidates.front().plan;
  choice.predicted_ms = choice.candidates.front().predicted_ms;
  choice.predicted_registers = choice.candidates.front().predicted_registers;
  return choice;
}

}  // namespace ordo
