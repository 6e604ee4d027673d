// ordo explain-miss: why a plan's kernels are not in the cache.
#include <memory>

#include "cli/options.hpp"
#include "cli/report.hpp"
#include "cli/stores.hpp"
#include "cli/verbs/verbs.hpp"
#include "runtime/compiler.hpp"
#include "runtime/explain.hpp"

namespace ordo::cli {
namespace {

struct ExplainOptions : Options {
  std::string toolchain;
};

Json explanation_json(const MissExplanation& e) {
  Json json{{"kernel", e.kernel}, {"key", e.key}, {"hit", !e.layer.empty()}};
  if (!e.layer.empty()) json["file"] = e.layer;
  if (!e.nearest) return json;
  json["nearest"] = {{"key", e.nearest->key}, {"file", e.file}, {"plan", e.nearest->plan}, {"toolchain", e.nearest->toolchain}};
  json["differences"] = Json::array();
  for (const KeyDifference& d : e.differences)
    json["differences"].push_back({{"what", d.what}, {"wanted", d.wanted}, {"found", d.found}});
  return json;
}

Result<int> explain(const ExplainOptions& options) {
  auto made = choose(options);
  if (!made) return made.error();
  auto sources = generate(made->choice.plan, made->target);
  if (!sources) return sources.error();
  std::string toolchain = options.toolchain;
  if (toolchain.empty()) {
    const auto compiler = Compiler::open();
    if (!compiler)
      return Error{compiler.error().code,
                   fmt::format("Which compiler? Name it with --toolchain 'NVRTC 13.0.88'. {}", compiler.error().message)};
    toolchain = compiler->version().text();
  }
  const auto stores = open_layers(options.cache);
  if (!stores) return stores.error();
  Json json{{"plan", to_text(made->choice.plan)}, {"toolchain", toolchain}, {"kernels", Json::array()}};
  if (!options.json) print("plan          {}\ntoolchain     {}\n\n", to_text(made->choice.plan), toolchain);
  bool all = true;
  for (const KernelSource& source : *sources) {
    const auto explained = explain_miss(*stores, source, to_text(made->choice.plan), toolchain);
    if (!explained) return explained.error();
    all = all && !explained->layer.empty();
    json["kernels"].push_back(explanation_json(*explained));
    if (!options.json) print("{}\n", explained->text());
  }
  if (options.json) print_json(json);
  return all ? kOk : kFailedCheck;
}

}  // namespace

Verb add_explain_miss(CLI::App& app) {
  auto options = std::make_shared<ExplainOptions>();
  CLI::App* verb =
      app.add_subcommand("explain-miss", "Say why kernels are not in the cache: the nearest entry, and what differs");
  add_family(*verb, *options);
  add_shape(*verb, *options);
  add_plan(*verb, *options);
  add_target(*verb, *options);
  add_device(*verb, *options, "Of the plan for this GPU");
  add_cache(*verb, *options);
  add_json(*verb, *options);
  verb->add_option("--toolchain", options->toolchain, "The compiler in question (the NVRTC of this machine)")->type_name("NAME");
  verb->footer(
      "Example:\n  ordo explain-miss attention-backward --seqlen 8192 --heads 32 --kv-heads 8 --mask causal --cache kernels.db\n"
      "Exits with 0 if every kernel is there, with 1 otherwise. Differences read: wanted / found.");
  return {verb, [options] { return explain(*options); }};
}

}  // namespace ordo::cli
