// The cost model: its timeline against the event simulation, its constants, registers and steps.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "codegen/cost/constants.hpp"
#include "codegen/cost/model.hpp"
#include "codegen/cost/registers.hpp"
#include "codegen/cost/step.hpp"
#include "codegen/cost/timeline.hpp"
#include "codegen/embedded.hpp"
#include "codegen/schedule/proof.hpp"
#include "codegen/schedule/simulator.hpp"
#include "codegen/schedule/visit_table.hpp"
#include "ordo/plan.hpp"

using namespace ordo;

namespace {

constexpr double kEverything = 1e9;

Plan plan_for(const AttentionBackward& problem, Schedule schedule, int cluster) {
  const auto choice = make_plan(problem, *parse_target("h200"), {.schedule = schedule, .accumulate = Accumulate::ordered});
  REQUIRE_MESSAGE(choice.ok(), (choice ? "" : choice.error().message));
  for (const Candidate& candidate : choice->candidates)
    if (candidate.plan.cluster == cluster) return candidate.plan;
  return choice->plan;
}

SimulationReport simulated(const cost::Launch& launch, const cost::StepTimes& times, const ArrivalTable* table) {
  Simulation simulation;
  simulation.geometry = launch.geometry;
  simulation.table = table;
  simulation.workers = launch.workers;
  simulation.costs = {{times.compute, times.compute + times.masked, times.compute + times.masked}, times.add, times.hop};
  simulation.record = false;
  auto report = simulate(simulation);
  REQUIRE_MESSAGE(report.ok(), (report ? "" : report.error().message));
  return *std::move(report);
}

}  // namespace

TEST_CASE("cost: the timeline is the event simulation's where a worker waits for its add") {
  std::mt19937 random(3);
  const auto pick = [&](std::initializer_list<std::int64_t> from) {
    return *(from.begin() + std::uniform_int_distribution<std::size_t>(0, from.size() - 1)(random));
  };
  for (int round = 0; round < 120; ++round) {
    AttentionBackward problem;
    problem.batch = pick({1, 2, 3});
    problem.kv_heads = pick({1, 2, 5});
    problem.heads = problem.kv_heads * pick({1, 3});
    problem.seqlen_q = pick({1, 200, 1024, 2048, 3000});
    problem.seqlen_k = pick({1, 300, 1024, 2048, 5000});
    problem.head_dim = pick({64, 128});
    problem.mask = pick({0, 1}) == 0 ? Mask::full : Mask::causal;
    for (const Schedule schedule : schedules_of(problem.mask)) {
      Plan plan = plan_for(problem, schedule, 1);
      // Few workers too, so that waves, pairs and groups follow one another.
      if ((schedule == Schedule::symmetric_shift || schedule == Schedule::shift) && pick({0, 1}) == 1) {
        plan.head_group = 1;
        plan.workers = 7;
      }
      CAPTURE(to_text(problem));
      CAPTURE(to_text(plan));
      cost::Launch launch{make_geometry(problem, plan), plan.workers, true, 0};
      const cost::StepTimes times{5, 1, 0, 1, 2};
      Result<ArrivalTable> table{ArrivalTable{}};
      if (reads_table(plan)) {
        table = table_of(problem, plan);
        REQUIRE(table);
        launch.table = table->words.data();
      }
      const SimulationReport report = simulated(launch, times, launch.table != nullptr ? &*table : nullptr);
      const cost::Timeline timeline = cost::time_launch(launch, times, kEverything);
      CHECK(timeline.whole);
      CHECK(timeline.makespan == doctest::Approx(report.makespan).epsilon(1e-9));
      double busy = 0;
      for (const WorkerTime& worker : report.workers) busy += worker.busy;
      CHECK(timeline.work * plan.workers == doctest::Approx(busy).epsilon(1e-9));
    }
  }
}

TEST_CASE("cost: what is extrapolated is near what is timed whole") {
  for (const auto& [batch, seqlen, heads] :
       {std::tuple{1, 16384, 16}, std::tuple{4, 4096, 16}, std::tuple{16, 1024, 32}, std::tuple{1, 65536, 2}}) {
    for (const Mask mask : {Mask::full, Mask::causal}) {
      AttentionBackward problem{.batch = batch, .seqlen_q = seqlen, .seqlen_k = seqlen, .heads = heads, .kv_heads = heads};
      problem.mask = mask;
      for (const Schedule schedule : schedules_of(mask)) {
        if ((schedule == Schedule::alternate || schedule == Schedule::arrival) && seqlen > 16384) continue;
        const Plan plan = plan_for(problem, schedule, 2);
        CAPTURE(to_text(problem));
        CAPTURE(to_text(plan));
        cost::Launch launch{make_geometry(problem, plan), plan.workers, true, 2};
        Result<ArrivalTable> table{ArrivalTable{}};
        if (reads_table(plan)) {
          table = table_of(problem, plan);
          REQUIRE(table);
          launch.table = table->words.data();
        }
        const cost::StepTimes times{3400, 200, 9600, 1100, 1500};
        const cost::Timeline whole = cost::time_launch(launch, times, kEverything);
        const cost::Timeline some = cost::time_launch(launch, times, 20000);
        CHECK(whole.whole);
        CHECK(some.makespan == doctest::Approx(whole.makespan).epsilon(0.03));
      }
    }
  }
}

TEST_CASE("cost: constants of every target are shipped, and read back as written") {
  for (const char* name : {"h100", "h200", "h800", "h20"}) {
    const cost::Constants& constants = cost::shipped_constants(*parse_target(name));
    CHECK(constants.target == name);
    CHECK_FALSE(constants.origin.empty());
    CHECK(constants.measured == (constants.target == "h200"));
    const auto again = cost::parse_constants(cost::to_json(constants));
    REQUIRE_MESSAGE(again.ok(), (again ? "" : again.error().message));
    CHECK(cost::to_json(*again) == cost::to_json(constants));
  }
  // What is scaled has the kernels of what was measured.
  const auto kernels_of = [](const char* name) {
    const cost::Constants& constants = cost::shipped_constants(*parse_target(name));
    return nlohmann::json::parse(cost::to_json(constants)).at("kernels");
  };
  for (const char* name : {"h100", "h800", "h20"}) CHECK(kernels_of(name) == kernels_of("h200"));
  CHECK(constant_files().size() == 4);
  for (const EmbeddedFile& file : constant_files()) CHECK_MESSAGE(cost::parse_constants(file.text).ok(), file.path);
  CHECK(cost::shipped_constants(*parse_target("sm_90a:64")).target == "h200");
}

TEST_CASE("cost: constants that make no sense are refused by name") {
  const std::string good = cost::to_json(cost::shipped_constants(*parse_target("h200")));
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& expected) {
    std::string text = good;
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    const auto read = cost::parse_constants(text);
    REQUIRE_FALSE(read);
    CAPTURE(read.error().message);
    CHECK(read.error().message.find(expected) != std::string::npos);
  };
  refused("\"hop\"", "\"hopp\"", "'hop' is missing");
  refused("\"clock_hz\": 1", "\"clock_hz\": -1", "'clock_hz' is -1");
  refused("\"measured\": true", "\"measured\": 1", "'measured'");
  refused("\"head_dim\": 64", "\"head_dim\": 65", "head_dim 64");
  refused("\"target\": \"h200\"", "\"target\": 5", "'target'");
  CHECK_FALSE(cost::parse_constants("[]"));
  CHECK_FALSE(cost::parse_constants("{"));
}

// The table of shared-memory and tensor clocks in README.md beside the model.
TEST_CASE("cost: clocks of a tile step") {
  const cost::Constants& h200 = cost::shipped_constants(*parse_target("h200"));
  Plan plan;
  cost::StepClocks step = cost::step_clocks(plan, h200);
  CHECK(step.tensor == 2560);
  CHECK(step.shared == 2944);
  CHECK(step.exp == 512);
  CHECK(step.bound() == 2944);
  CHECK(step.bound_by() == "shared memory");
  plan.head_dim = 64;
  plan.tile_kv = 256;
  step = cost::step_clocks(plan, h200);
  CHECK(step.tensor == 2560);
  CHECK(step.shared == 2688);
  CHECK(cost::step_clocks(plan, cost::shipped_constants(*parse_target("h20"))).bound_by() == "tensor cores");
}

TEST_CASE("cost: a mask by expression costs the tiles that it shows") {
  const Target h200 = *parse_target("h200");
  AttentionBackward problem{.batch = 2, .seqlen_q = 4096, .seqlen_k = 4096, .heads = 16, .kv_heads = 16};
  const auto fastest = [&](const char* mask) {
    problem.mask = *parse_mask(mask);
    return make_plan(problem, h200)->predicted_ms;
  };
  const double window = fastest("expr:k <= q && q - k < 512"), causal = fastest("expr:k <= q"), all = fastest("expr:k >= 0");
  CHECK(window < 0.5 * causal);
  CHECK(causal < 0.7 * all);
  CHECK(causal == doctest::Approx(fastest("causal")).epsilon(0.1));
  CHECK(all == doctest::Approx(fastest("full")).epsilon(0.1));
}

TEST_CASE("cost: sums that leave L2 before they are converted cost traffic") {
  const Target h200 = *parse_target("h200");
  const cost::Constants& constants = cost::shipped_constants(h200);
  const AttentionBackward problem{
      .batch = 32, .seqlen_q = 512, .seqlen_k = 512, .heads = 32, .kv_heads = 32, .head_dim = 64, .mask = Mask::full};
  Plan plan = make_plan(problem, h200, {.schedule = Schedule::ascending, .accumulate = {}, .static_shape = false})->plan;
  // Milliseconds beside the main kernel, with so many bytes of sums in each of three groups.
  const auto beside = [&](double bytes) {
    plan.head_group = static_cast<int>(bytes / (512 * 64 * 4));
    return cost::predict(problem, plan, h200, constants).auxiliary_ms;
  };
  const double none = beside(constants.sums_in_l2 / 4), half = beside(constants.sums_in_l2 / 2),
               all = beside(constants.sums_in_l2);
  const double elements = 32.0 * 512 * 32 * 64;
  CHECK(half - none == doctest::Approx(elements * constants.missed_bytes / (h200.memory_gbps * 1e9) * 1e3 / 2).epsilon(0.05));
  CHECK(all - none == doctest::Approx(2 * (half - none)).epsilon(0.05));
  plan.accumulate = Accumulate::atomic;  // converts in a kernel of its own
  plan.dq_buffers = 1;
  CHECK(beside(constants.sums_in_l2) == beside(constants.sums_in_l2 / 4));
}

TEST_CASE("cost: arrival's clocks are the model's, whole, and do not follow a calibration") {
  const Target h200 = *parse_target("h200");
  const AttentionBackward problem{
      // of which kernels have one size of cluster
      .batch = 1, .seqlen_q = 4096, .seqlen_k = 4096, .heads = 16, .kv_heads = 16, .head_dim = 64, .mask = Mask::causal};
  cost::Constants slow = cost::shipped_constants(h200);
  for (cost::KernelConstants& kernel : slow.kernels) kernel.efficiency /= 2;
  PlanRequest request;
  request.schedule = Schedule::arrival;
  const Plan shipped = make_plan(problem, h200, request)->plan;
  request.constants = std::make_shared<const cost::Constants>(slow);
  CHECK(make_plan(problem, h200, request)->plan == shipped);
  const SimulationCosts costs = cost::task_clocks(shipped, h200);
  CHECK(shipped.arrival->compute == costs.compute.full);
  CHECK(costs.compute.diagonal < costs.compute.full);
}

TEST_CASE("cost: the state of the schedule costs registers in the consumer alone") {
  Plan plan;
  plan.head_dim = 64;
  plan.tile_kv = 256;
  const cost::Registers producer = cost::predict_registers(plan);
  CHECK(producer.schedule == 0);
  CHECK(producer.spill_bytes == 0);
  CHECK(producer.total == producer.accumulators + producer.fragments + producer.shape + producer.addressing);
  plan.schedule_state = ScheduleState::consumer;
  const cost::Registers consumer = cost::predict_registers(plan);
  CHECK(consumer.schedule > 0);
  CHECK(consumer.total == producer.total + consumer.schedule);
  CHECK(consumer.spill_bytes == 0);
  plan.consumer_registers = 216;
  const cost::Registers tight = cost::predict_registers(plan);
  CHECK(tight.total == consumer.total);
  CHECK(tight.spill_bytes > 0);
  plan.schedule_state = ScheduleState::producer;
  plan.consumer_registers = 208;
  CHECK(cost::predict_registers(plan).spill_bytes > 0);
}
