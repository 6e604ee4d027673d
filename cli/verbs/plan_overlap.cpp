// ordo plan overlap: whether an exchange hides behind a product, in how many pieces, and why.
#include <memory>

#include "cli/overlap_options.hpp"
#include "cli/report.hpp"
#include "cli/verbs/verbs.hpp"

namespace ordo::cli {
namespace {

Json advice_json(const OverlapQuestion& asked, const overlap::Advice& advice, const OverlapPlan& plan) {
  Json choices = Json::array();
  for (const overlap::Choice& choice : advice.choices) {
    choices.push_back(
        {{"sub_slices", choice.sub_slices}, {"overlapped_ms", choice.overlapped * 1e3}, {"exposed_ms", choice.exposed * 1e3}});
  }
  const overlap::Constants constants = overlap::constants_of(asked.target);
  return {{"op", overlap::to_string(asked.of.exchange)},
          {"plan", to_text(plan)},
          {"ranks", asked.of.ranks},
          {"m", asked.of.m},
          {"n", asked.of.n},
          {"k", asked.of.k},
          {"target", to_text(asked.target)},
          {"constants", constants.measured ? "measured" : "scaled"},
          {"overlap", advice.overlap},
          {"method", advice.overlap ? "overlapped" : "collective-then-gemm"},
          {"sub_slices", advice.sub_slices},
          {"route", to_string(asked.route)},
          {"transport", asked.of.peer_access ? "copy-engine" : "nccl"},
          {"slice_compute_ms", advice.step_compute * 1e3},
          {"slice_communication_ms", advice.step_communication * 1e3},
          {"hides", advice.hides},
          {"size", advice.size},
          {"threshold", advice.threshold},
          {"gemm_ms", advice.compute * 1e3},
          {"collective_ms", advice.communication * 1e3},
          {"overlapped_ms", advice.overlapped * 1e3},
          {"exposed_ms", advice.exposed * 1e3},
          {"sequential_ms", advice.sequential * 1e3},
          {"reason", advice.reason},
          {"candidates", std::move(choices)}};
}

void print_advice(const OverlapQuestion& asked, const overlap::Advice& advice, const OverlapPlan& plan) {
  print("method        {}\n", advice.overlap ? fmt::format("overlapped, {} sub-slices a slice, copy engines", advice.sub_slices)
                                             : "the collective and the product one after the other");
  print("why           {}\n", advice.reason);
  print("plan          {}\n", to_text(plan));
  print("a slice       {:.4f} ms to compute, {:.4f} ms to move: it {}\n", advice.step_compute * 1e3,
        advice.step_communication * 1e3, advice.hides ? "hides" : "does not hide");
  print(
      "predicted     {:.4f} ms, {:.4f} ms of it exposed; product alone {:.4f} ms, collective alone {:.4f} ms, one after the "
      "other {:.4f} ms\n",
      advice.overlapped * 1e3, advice.exposed * 1e3, advice.compute * 1e3, advice.communication * 1e3, advice.sequential * 1e3);
  for (const overlap::Choice& choice : advice.choices) {
    print("candidate     {} sub-slices: {:.4f} ms, {:.4f} ms exposed\n", choice.sub_slices, choice.overlapped * 1e3,
          choice.exposed * 1e3);
  }
  if (!overlap::constants_of(asked.target).measured)
    print("note          the constants of {} are scaled, not measured\n", to_text(asked.target));
}

}  // namespace

Verb add_plan_overlap(CLI::App& app) {
  auto options = std::make_shared<OverlapOptions>();
  CLI::App* verb = app.add_subcommand("plan", "Choose how to overlap a product with its exchange, and say why");
  add_overlap_options(*verb, *options);
  verb->footer("Example:\n  ordo plan overlap --op gemm-reduce-scatter --m 8192 --n 4096 --k 2048 --ranks 2");
  return {verb, [options]() -> Result<int> {
            auto asked = resolve_overlap(*options);
            if (!asked) return asked.error();
            auto advice = overlap::advise(asked->of, asked->target, static_cast<overlap::Route>(asked->route));
            if (!advice) return advice.error();
            auto choice = make_overlap_plan(asked->problem, asked->target, asked->of.peer_access, asked->route);
            if (!choice) return choice.error();
            if (options->json) {
              print_json(advice_json(*asked, *advice, choice->plan));
            } else {
              print_advice(*asked, *advice, choice->plan);
            }
            return kOk;
          }};
}

}  // namespace ordo::cli
