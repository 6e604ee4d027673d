// ordo bench: time on a GPU, by CUDA events: one plan, or the suite's cells; or what a launch costs beside the kernels.
#include <algorithm>
#include <memory>

#include "cli/bench/bench_options.hpp"
#include "cli/execution.hpp"
#include "cli/report.hpp"
#include "cli/verbs/verbs.hpp"
#include "runtime/measure/event_stand.hpp"
#include "runtime/measure/workbench.hpp"

namespace ordo::cli {
namespace {

void report(const BenchOptions& options, const Choice& made, const DeviceFacts& device, const measure::Sample& sample) {
  const double tflops = made.problem.flops() / sample.ms_median * 1e-9;
  if (options.json) {
    const auto number = [](const std::optional<double>& x) { return x ? Json(*x) : Json(); };
    print_json({{"problem", to_text(made.problem)},
                {"plan", to_text(made.choice.plan)},
                {"device", device.name},
                {"ms_median", sample.ms_median},
                {"ms_min", sample.ms_min},
                {"tflops", tflops},
                {"repeats", sample.launches},
                {"warmup_seconds", options.policy.first_warm_ms * 1e-3},
                {"policy", to_text(options.policy)},
                {"sm_clock_mhz", number(sample.clock_mhz)},
                {"watts", number(sample.watts)}});
    return;
  }
  print("problem       {}\nplan          {}\ndevice        {}\n", to_text(made.problem), to_text(made.choice.plan), device.name);
  print("time          {:.4f} ms median, {:.4f} ms min, of {} launches after {:g} s of warm-up{}\n", sample.ms_median,
        sample.ms_min, sample.launches, options.policy.first_warm_ms * 1e-3, options.policy.cold_l2 ? ", L2 cold" : "");
  print("speed         {:.0f} TFLOP/s (predicted {:.0f})\n", tflops, made.problem.flops() / made.choice.predicted_ms * 1e-9);
  if (sample.clock_mhz && sample.watts) print("clocks        {:.0f} MHz SM, {:.0f} W\n", *sample.clock_mhz, *sample.watts);
}

Result<int> bench_one(const BenchOptions& options) {
  auto made = choose(options);
  if (!made) return made.error();
  auto device = resolve_gpu(options, "ordo bench");
  if (!device) return device.error();
  auto bench = measure::Workbench::open(*device, builder_options(options));
  if (!bench) return bench.error();
  auto kernel = prepare_kernel(options, *made);
  if (!kernel) return kernel.error();
  auto problem = bench->random_problem(made->problem, options.seed);
  if (!problem) return problem.error();
  if (auto ok = problem->reserve(*kernel); !ok) return ok.error();
  auto stand = measure::EventStand::create(bench->stream().get(), bench->nvml(),
                                           options.policy.cold_l2 ? measure::flush_bytes(bench->facts()) : 0);
  if (!stand) return stand.error();
  const std::size_t subject = stand->add([&] { return problem->launch(*kernel); });
  measure::Measuring measuring(*stand, options.policy);
  std::vector<measure::Sample> rounds;
  for (int round = 0; round < options.policy.rounds; ++round) {
    auto sample = measuring.round(subject, static_cast<int>(options.repeats / options.policy.rounds));
    if (!sample) return sample.error();
    rounds.push_back(*sample);
  }
  report(options, *made, bench->facts(), measure::combined(rounds));
  return kOk;
}

/// One plan: one round of a second after two of warm-up. The suite: one round of every case, long enough after the case before
/// for the card to have settled. It holds its power limit over a second or so, in which what follows a case that draws less seems
/// to run faster: at head_dim 64, full, 16k, between rounds of `exact` and with 0.05 s of warm-up, `ordered` was at 533 TFLOP/s
/// and `atomic` at 557; after 1.5 s each, without `exact`, at 549 and 551.
Result<void> set_policy(BenchOptions& options) {
  MeasurementPolicy& policy = options.policy;
  policy.rounds = options.rounds.value_or(1);
  policy.measure_ms = options.suite ? 400 : options.repeats > 0 ? 1 : 1000;
  if (options.measure_seconds) policy.measure_ms = *options.measure_seconds * 1e3;
  const double warm_ms = options.warmup_seconds ? *options.warmup_seconds * 1e3 : options.suite ? 1200 : policy.first_warm_ms;
  policy.first_warm_ms = options.suite ? std::max(policy.first_warm_ms, warm_ms) : warm_ms;
  policy.warm_ms = policy.round_warm_ms = warm_ms;
  return policy.validate();
}

Result<int> bench(BenchOptions options) {
  if (auto ok = set_policy(options); !ok) return ok.error();
  if (!options.cache_hit.empty()) return bench_cache_hit(options);
  if (options.overheads) return bench_overheads(options);
  if (options.stalls) return bench_stalls(options);
  if (options.suite) return bench_suite(options);
  if (options.family.empty())
    return Error{ErrorCode::invalid_argument, "say what to time: attention-backward with a shape, --suite or --overheads"};
  return bench_one(options);
}

void add_suite(CLI::App& verb, BenchOptions& options) {
  auto* suite =
      verb.add_flag("--suite", options.suite,
                    "Time the 24 cells (head_dim 64 and 128, full and causal, 512 .. 16384) and GQA beside MHA; prints CSV");
  auto* overheads =
      verb.add_flag("--overheads", options.overheads, "Instead: host time of a launch over bare launches, and of a cache hit");
  auto* stalls =
      verb.add_flag("--stalls", options.stalls,
                    "Instead: how long adds wait for their turns, by the clock in a debug build of the kernel, beside what "
                    "the simulator predicts");
  overheads->excludes(suite)->excludes(stalls);
  stalls->excludes(suite);
  for (const char* one_plan : {"--plan", "--schedule"}) suite->excludes(verb.get_option(one_plan));
  const auto with_suite = [&](CLI::Option* option) { return option->needs(suite)->group("Suite"); };
  with_suite(verb.add_option("--cells", options.cells,
                             "Only cells whose name holds one of these comma-separated parts, e.g. hd128-full,gqa4"))
      ->type_name("PARTS");
  with_suite(verb.add_option("--plans", options.plans,
                             "best: the planner's choice; schedules: its plan for each schedule; candidates: all that it "
                             "compares; all: every candidate of the tuner (best)"))
      ->check(CLI::IsMember({"best", "schedules", "candidates", "all"}));
  with_suite(verb.add_option("--table", options.table, "Where to write a CSV of TFLOP/s, cells by schedules (of ordered)"))
      ->type_name("FILE");
  with_suite(verb.add_option("--set", options.edits, "Put into the text of every plan, e.g. stages=3; may be repeated"))
      ->type_name("KEY=VALUE");
  with_suite(verb.add_flag("!--no-checks", options.checks, "Leave same_bits and max_rel_err empty"));
  with_suite(verb.add_option("--csv", options.csv, "Where to write the CSV (standard output)"))->type_name("FILE");
  with_suite(verb.add_flag("--list", options.list, "Print the cells and plans and measure nothing; needs no GPU"));
  verb.add_option("--cache-hit", options.cache_hit, "Used by --overheads")->group("");
}

}  // namespace

Verb add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* verb = app.add_subcommand("bench", "Time the whole backward on a GPU: of one plan, or of the suite's cells");
  add_family(*verb, *options)->required(false);
  add_shape(*verb, *options);
  add_plan(*verb, *options);
  add_allow_spills(*verb, *options);
  add_target(*verb, *options);
  add_device(*verb, *options, "Which GPU (the current one)");
  add_suite(*verb, *options);
  verb->add_option("--warmup", options->warmup_seconds,
                   "Seconds of launches before each round of a measurement (2; --suite: 1.2)")
      ->check(CLI::Range(0.0, 600.0))
      ->type_name("S");
  verb->add_option("--measure", options->measure_seconds, "Seconds of launches that are timed (1; --suite: 0.4 a case)")
      ->check(CLI::Range(0.001, 600.0))
      ->type_name("S");
  verb->add_option("--rounds", options->rounds, "Rounds, between which the cases of a cell take turns (1)")
      ->check(kInteger)
      ->check(CLI::Range(1, 100))
      ->type_name("N");
  verb->add_flag("--cold-l2", options->policy.cold_l2, "Every launch finds the L2 full of other data");
  verb->add_option("--repeats", options->repeats, "Time at least so many launches, in place of --measure")
      ->check(kInteger)
      ->check(CLI::Range(1, 1000000))
      ->type_name("N");
  verb->add_option("--seed", options->seed, "Seed of the inputs (0)")->check(CLI::NonNegativeNumber)->type_name("N");
  add_cache(*verb, *options);
  add_json(*verb, *options);
  verb->footer(
      "ordo bench overlap --help is about products and their exchange.\nExamples:\n  ordo bench attention-backward --seqlen "
      "16384 --heads 16 --head-dim 128 --mask causal --json\n"
      "  ordo bench --suite --cells hd128-full-16384 --accumulate ordered,exact\n"
      "  ordo bench --suite --accumulate ordered --plans schedules --no-checks --table schedules.csv\n  ordo bench --overheads\n"
      "The card is limited by power: it runs faster just after it was idle. A sustained figure needs the warm-up.");
  return {verb, [options] { return bench(*options); }};
}

}  // namespace ordo::cli
