// ordo compile: the kernels of a plan, into the cache.
#include <memory>

#include "cli/options.hpp"
#include "cli/report.hpp"
#include "cli/verbs/verbs.hpp"

namespace ordo::cli {
namespace {

Result<int> compile_kernels(const Options& options) {
  auto made = choose(options);
  if (!made) return made.error();
  auto engine = make_engine(options, made->target);
  if (!engine) return engine.error();
  auto kernel = engine->prepare(made->choice.plan);
  if (!kernel) return kernel.error();
  if (options.json) {
    Json json = kernels_json(kernel->reports());
    json["plan"] = to_text(made->choice.plan);
    json["target"] = to_text(made->target);
    print_json(json);
    return kOk;
  }
  print("plan          {}\n", to_text(made->choice.plan));
  print("target        {}\n\n", to_text(made->target));
  print_kernels(kernel->reports());
  return kOk;
}

}  // namespace

Verb add_compile(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("compile", "Compile the kernels of a plan into the cache; needs no GPU");
  add_family(*verb, *options);
  add_shape(*verb, *options);
  add_plan(*verb, *options);
  add_allow_spills(*verb, *options);
  add_target(*verb, *options);
  add_device(*verb, *options, "Compile for this GPU");
  add_cache(*verb, *options);
  add_json(*verb, *options);
  verb->footer(
      "Example:\n  ordo compile attention-backward --seqlen 8192 --heads 32 --kv-heads 8 --mask causal --target h200 --cache "
      "kernels.db");
  return {verb, [options] { return compile_kernels(*options); }};
}

}  // namespace ordo::cli
