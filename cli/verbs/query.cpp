// ordo query: the best plan known for a shape.
#include <memory>

#include "cli/tuning_report.hpp"
#include "cli/verbs/verbs.hpp"

namespace ordo::cli {
namespace {

Result<int> query(const TuningOptions& options) {
  auto problem = resolve_problem(options, std::nullopt);
  if (!problem) return problem.error();
  auto asked = tune_options(options);
  if (!asked) return asked.error();
  auto tuner = open_tuner(options);
  if (!tuner) return tuner.error();
  auto target = resolve_target(options);
  if (!target) return target.error();
  auto best = tuner->query(*problem, *asked);
  if (!best) return best.error();
  if (options.json)
    print_json(tuned_json(*problem, *target, *best));
  else
    print_tuned(*problem, *target, *best);
  return kOk;
}

}  // namespace

Verb add_query(CLI::App& app) {
  auto options = std::make_shared<TuningOptions>();
  CLI::App* verb = app.add_subcommand("query", "The best plan known for a shape: measured, else interpolated, else predicted");
  add_family(*verb, *options);
  add_shape(*verb, *options);
  add_tuning(*verb, *options);
  add_measuring(*verb, *options);
  add_target(*verb, *options);
  add_device(*verb, *options, "Measurements on this GPU (the current one; without a GPU the newest for --target)");
  add_cache(*verb, *options);
  add_json(*verb, *options);
  verb->footer(
      "Example:\n  ordo query attention-backward --seqlen 8192 --heads 32 --kv-heads 8 --mask causal\n"
      "`measured`: ordo tune has measured it here. `interpolated`: the model's predictions, corrected by what was measured "
      "nearby.");
  return {verb, [options] { return query(*options); }};
}

}  // namespace ordo::cli
