// ordo bench --stalls: how long adds wait for their turns, by the clock in a debug build of the kernel, beside what the simulator
// predicts. Means are over CTAs and over simulated workers; times are SM clocks.
#include <algorithm>
#include <optional>

#include "cli/bench/bench_options.hpp"
#include "cli/execution.hpp"
#include "cli/report.hpp"
#include "codegen/cost/task_model.hpp"
#include "runtime/measure/workbench.hpp"

namespace ordo::cli {
namespace {

struct Stalls {
  std::vector<CtaStalls> each;
  double waited = 0, longest = 0, running = 0;
  std::optional<SimulationReport> predicted;  ///< absent where the problem is too large to simulate

  [[nodiscard]] double predicted_wait() const { return predicted->wait_total / static_cast<double>(predicted->workers.size()); }
  [[nodiscard]] double predicted_stall() const { return predicted->stall_total / static_cast<double>(predicted->workers.size()); }
};

Stalls summed(std::vector<CtaStalls> each) {
  Stalls out;
  const auto count = static_cast<double>(each.size());
  for (const CtaStalls& cta : each) {
    out.waited += static_cast<double>(cta.waited) / count;
    out.running += static_cast<double>(cta.running) / count;
    out.longest = std::max(out.longest, static_cast<double>(cta.waited));
  }
  out.each = std::move(each);
  return out;
}

Json to_json(const Choice& made, const DeviceFacts& device, const Stalls& stalls) {
  Json each = Json::array(), predicted;
  for (const CtaStalls& cta : stalls.each) each.push_back({{"waited", cta.waited}, {"running", cta.running}});
  if (stalls.predicted) {
    predicted = {{"waited_mean", stalls.predicted_wait()},
                 {"stalled_mean", stalls.predicted_stall()},
                 {"makespan", stalls.predicted->makespan}};
  }
  return {{"problem", to_text(made.problem)},
          {"plan", to_text(made.choice.plan)},
          {"device", device.name},
          {"measured",
           {{"ctas", stalls.each.size()},
            {"waited_mean", stalls.waited},
            {"waited_max", stalls.longest},
            {"running_mean", stalls.running},
            {"waited_share", stalls.waited / stalls.running}}},
          {"predicted", std::move(predicted)},
          {"each", std::move(each)}};
}

void report(const Choice& made, const DeviceFacts& device, const Stalls& stalls) {
  print("problem       {}\nplan          {}\ndevice        {}\n", to_text(made.problem), to_text(made.choice.plan), device.name);
  print("measured      {:.0f} clocks of {:.0f} waiting for turns, mean of {} CTAs ({:.1f} %); at most {:.0f}\n", stalls.waited,
        stalls.running, stalls.each.size(), 100 * stalls.waited / stalls.running, stalls.longest);
  if (!stalls.predicted) return;
  print(
      "predicted     {:.0f} clocks of {:.0f} waiting for turns, mean of {} workers ({:.1f} %); {:.0f} of them hold a worker up\n",
      stalls.predicted_wait(), stalls.predicted->makespan, stalls.predicted->workers.size(),
      100 * stalls.predicted_wait() / stalls.predicted->makespan, stalls.predicted_stall());
}

}  // namespace

Result<int> bench_stalls(const BenchOptions& options) {
  constexpr int kMeasuredLaunches = 20;  // the last is read
  auto made = choose(options);
  if (!made) return made.error();
  auto device = resolve_gpu(options, "ordo bench --stalls");
  if (!device) return device.error();
  auto bench = measure::Workbench::open(*device, builder_options(options));
  if (!bench) return bench.error();
  auto kernel = prepare_kernel(options, *made, Flavour::stalls);
  if (!kernel) return kernel.error();
  auto problem = bench->random_problem(made->problem, options.seed);
  if (!problem) return problem.error();
  if (auto ok = problem->reserve(*kernel); !ok) return ok.error();
  for (int i = 0; i < kMeasuredLaunches; ++i) {
    if (auto ok = problem->launch(*kernel); !ok) return ok.error();
  }
  auto each = problem->stalls(*kernel);
  if (!each) return each.error();
  if (each->empty()) return Error{ErrorCode::internal, "the kernel measured nothing"};
  Stalls stalls = summed(*std::move(each));
  if (auto predicted = cost::simulate_plan(made->problem, made->choice.plan, made->target))
    stalls.predicted = *std::move(predicted);
  if (options.json)
    print_json(to_json(*made, bench->facts(), stalls));
  else
    report(*made, bench->facts(), stalls);
  return kOk;
}

}  // namespace ordo::cli
