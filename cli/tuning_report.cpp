#include "cli/tuning_report.hpp"

#include "codegen/schedule/proof.hpp"

namespace ordo::cli {
namespace {

std::string form_of(const Plan& plan) {
  std::string text = fmt::format("{}/{} cluster {} head_group {}", to_string(plan.schedule), to_string(plan.accumulate),
                                 plan.cluster, plan.head_group);
  if (plan.schedule == Schedule::shift) text += fmt::format(" stride {}", plan.shift_stride);
  if (plan.static_shape) text += " static";
  return text;
}

Json known(double value) { return value > 0 ? Json(value) : Json(); }

}  // namespace

void add_tuning(CLI::App& verb, TuningOptions& options) {
  verb.add_option("--schedule", options.schedule,
                  "Only this schedule: ascending, descending, arrival, shift (full), alternate or symmetric_shift (causal)")
      ->type_name("NAME")
      ->group("Plan");
  verb.add_option("--accumulate", options.accumulate, "ordered, exact or atomic (ordered)")->type_name("NAME")->group("Plan");
  verb.add_flag("--static-shape", options.static_shape, "Only plans with the shape baked into the kernels")->group("Plan");
  verb.add_flag("--same-bits", options.tune.same_bits, "Only plans that give the bits of the planner's choice")->group("Plan");
  verb.add_option("--candidates", options.tune.most_candidates, "Plans to weigh; the cost model leaves out the rest (12)")
      ->check(kInteger)
      ->check(CLI::Range(1, 1000))
      ->type_name("N")
      ->group("Plan");
  verb.add_option("--margin", options.tune.margin, "Lead that a plan needs over all others to win, as a share (0.01)")
      ->check(CLI::Range(0.0, 0.5))
      ->type_name("X")
      ->group("Plan");
}

void add_measuring(CLI::App& verb, TuningOptions& options) {
  verb.add_option("--rounds", options.tune.policy.rounds, "Rounds, in which the candidates take turns (3)")
      ->check(kInteger)
      ->check(CLI::Range(1, 100))
      ->type_name("N")
      ->group("Measuring");
  verb.add_option("--warmup", options.warmup_seconds,
                  "Seconds of launches before a candidate's first round (0.3); 6.7 times as many before all")
      ->check(CLI::Range(0.0, 600.0))
      ->type_name("S")
      ->group("Measuring");
  verb.add_option("--measure", options.measure_seconds, "Seconds of launches that are timed, over all rounds (0.3)")
      ->check(CLI::Range(0.001, 600.0))
      ->type_name("S")
      ->group("Measuring");
  verb.add_flag("--cold-l2", options.tune.policy.cold_l2, "Every launch finds the L2 full of other data")->group("Measuring");
}

Result<TuneOptions> tune_options(const TuningOptions& options) {
  TuneOptions out = options.tune;
  auto request = request_of(options);
  if (!request) return request.error();
  out.request = *request;
  const MeasurementPolicy usual;
  out.policy.warm_ms = options.warmup_seconds * 1e3;
  out.policy.first_warm_ms = out.policy.warm_ms * usual.first_warm_ms / usual.warm_ms;
  out.policy.measure_ms = options.measure_seconds * 1e3;
  return out;
}

Result<Tuner> open_tuner(const TuningOptions& options) {
  auto target = resolve_target(options);
  if (!target) return target.error();
  auto device = resolve_device(options);
  if (!device) return device.error();
  auto engine = make_engine(options, *target);
  if (!engine) return engine.error();
  return Tuner::create(*engine, *device);
}

Json tuned_json(const AttentionBackward& problem, const Target& target, const TunedPlan& best) {
  Json ranking = Json::array();
  for (const RankedPlan& entry : best.ranking)
    ranking.push_back({{"plan", to_text(entry.plan)},
                       {"source", to_string(entry.source)},
                       {"ms", entry.ms},
                       {"predicted_ms", known(entry.predicted_ms)},
                       {"rounds", entry.rounds},
                       {"spread", entry.spread},
                       {"sm_clock_mhz", known(entry.clock_mhz)},
                       {"watts", known(entry.watts)}});
  return {{"problem", to_text(problem)},
          {"target", to_text(target)},
          {"plan", to_text(best.plan)},
          {"fingerprint", order_fingerprint(problem, best.plan)},
          {"source", to_string(best.source)},
          {"ms", best.ms},
          {"tflops", problem.flops() / best.ms * 1e-9},
          {"reason", best.reason},
          {"ranking", std::move(ranking)},
          {"notes", best.notes}};
}

void print_tuned(const AttentionBackward& problem, const Target& target, const TunedPlan& best) {
  print("problem       {}\ntarget        {}\nplan          {}\n", to_text(problem), to_text(target), to_text(best.plan));
  print("time          {:.4f} ms ({:.0f} TFLOP/s), {}\nwhy           {}\n", best.ms, problem.flops() / best.ms * 1e-9,
        to_string(best.source), best.reason);
  for (const RankedPlan& entry : best.ranking) {
    print("{} {:>10.4f} ms  {:<13}{}", entry.plan == best.plan ? "chosen       " : "             ", entry.ms,
          to_string(entry.source), form_of(entry.plan));
    if (entry.rounds > 0) print("  (predicted {:.4f} ms, rounds differ by {:.1f} %)", entry.predicted_ms, entry.spread * 100);
    print("\n");
  }
  for (const std::string& remark : best.notes) note(remark);
}

}  // namespace ordo::cli
