// ordo plan: how a problem will be computed, and why.
#include <memory>

#include "cli/options.hpp"
#include "cli/report.hpp"
#include "cli/verbs/verbs.hpp"
#include "codegen/schedule/proof.hpp"

namespace ordo::cli {
namespace {

Json candidate_json(const Candidate& candidate) {
  const Plan& plan = candidate.plan;
  return {{"plan", to_text(plan)},
          {"schedule", to_string(plan.schedule)},
          {"accumulate", to_string(plan.accumulate)},
          {"tile_q", plan.tile_q},
          {"tile_kv", plan.tile_kv},
          {"cluster", plan.cluster},
          {"predicted_registers", candidate.predicted_registers},
          {"predicted_spill_bytes", candidate.predicted_spill_bytes},
          {"predicted_ms", candidate.predicted_ms},
          {"note", candidate.note}};
}

Json plan_json(const Choice& made) {
  const Plan& plan = made.choice.plan;
  Json candidates = Json::array();
  for (const Candidate& candidate : made.choice.candidates) candidates.push_back(candidate_json(candidate));
  return {{"problem", to_text(made.problem)},
          {"target", to_text(made.target)},
          {"plan", to_text(plan)},
          {"fingerprint", order_fingerprint(made.problem, plan)},
          {"schedule", to_string(plan.schedule)},
          {"accumulate", to_string(plan.accumulate)},
          {"tile_q", plan.tile_q},
          {"tile_kv", plan.tile_kv},
          {"predicted_registers", made.choice.predicted_registers},
          {"predicted_ms", made.choice.predicted_ms},
          {"reason", made.choice.reason},
          {"candidates", std::move(candidates)}};
}

// The plan, then comments: the whole output is a file that --plan takes.
void print_plan(const Choice& made) {
  const double tflops = made.problem.flops() / made.choice.predicted_ms * 1e-9;
  print("{}\n", to_text(made.choice.plan));
  print("# problem      {}\n", to_text(made.problem));
  print("# target       {}\n", to_text(made.target));
  print("# fingerprint  {}\n", order_fingerprint(made.problem, made.choice.plan));
  print("# predicted    {:.4g} ms ({:.0f} TFLOP/s), {} registers a consumer thread\n", made.choice.predicted_ms, tflops,
        made.choice.predicted_registers);
  print("# why          {}\n", made.choice.reason);
  for (const Candidate& candidate : made.choice.candidates) {
    print("# candidate    {:>10.4g} ms  {:<16}{:<9}tile {}x{} cluster {}  {}\n", candidate.predicted_ms,
          to_string(candidate.plan.schedule), to_string(candidate.plan.accumulate), candidate.plan.tile_q, candidate.plan.tile_kv,
          candidate.plan.cluster, candidate.note);
  }
}

}  // namespace

Verb add_plan_verb(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("plan", "Choose how to compute a problem, and say why");
  add_family(*verb, *options);
  add_shape(*verb, *options);
  add_plan(*verb, *options);
  add_target(*verb, *options);
  add_device(*verb, *options, "Plan for this GPU");
  add_cache(*verb, *options);
  add_json(*verb, *options);
  verb->footer(
      "ordo plan overlap --help is about products and their exchange.\nExample:\n  ordo plan attention-backward --seqlen 8192 "
      "--heads 32 --kv-heads 8 --mask causal --target h200 > my.plan\n"
      "The output is a plan file: edit it and give it to any verb with --plan my.plan.");
  return {verb, [options]() -> Result<int> {
            auto made = choose(*options);
            if (!made) return made.error();
            if (options->json) {
              print_json(plan_json(*made));
            } else {
              print_plan(*made);
            }
            return kOk;
          }};
}

}  // namespace ordo::cli
