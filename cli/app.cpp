#include "cli/app.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string_view>
#include <vector>

#include "cli/report.hpp"
#include "cli/verbs/verbs.hpp"

namespace ordo::cli {
namespace {

// CLI11 has its own exit codes; ours are 0 for help and 2 for anything else it says.
int report_usage(const CLI::App& app, const CLI::ParseError& problem) {
  if (problem.get_exit_code() == 0) {  // --help, --version
    (void)app.exit(problem, std::cout, std::cerr);
    std::cout.flush();
    return kOk;
  }
  fmt::print(stderr, "error: {}\nRun with --help for help.\n", problem.what());
  return kBadUsage;
}

std::vector<Verb> attention_verbs(CLI::App& app) {
  return {add_doctor(app),   add_plan_verb(app),    add_generate(app), add_compile(app),    add_run(app),
          add_check(app),    add_bench(app),        add_inspect(app),  add_simulate(app),   add_tune(app),
          add_query(app),    add_tuning_verb(app),  add_launch(app),   add_precompile(app), add_cache_verb(app),
          add_manifest(app), add_explain_miss(app), add_audit(app),    add_calibrate(app)};
}

// `ordo VERB overlap` takes the sizes of a product and its ranks; the families share no option.
std::vector<Verb> overlap_verbs(CLI::App& app) {
  return {add_plan_overlap(app), add_simulate_overlap(app), add_check_overlap(app), add_bench_overlap(app)};
}

int run_unguarded(int argc, char** argv) {
  CLI::App app("ordo writes, compiles and runs deterministic attention-backward kernels for Hopper GPUs.", "ordo");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("ordo ") + ORDO_VERSION);
  app.footer(
      "Example:\n  ordo check attention-backward --seqlen 1000 --heads 4 --mask causal\n\n"
      "Exit codes: 0 ok, 1 a check failed, 2 bad usage, 3 the environment lacks something.\n"
      "ordo VERB --help has the options of a verb and an example.");
  const std::vector<Verb> verbs = argc > 2 && std::string_view(argv[2]) == "overlap" ? overlap_verbs(app) : attention_verbs(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return report_usage(app, problem);
  }
  const auto verb = std::find_if(verbs.begin(), verbs.end(), [](const Verb& v) { return v.command->parsed(); });
  Result<int> result = verb->action();
  return result ? *result : report_error(result.error());
}

}  // namespace

int run(int argc, char** argv) {
  int code = kEnvironment;
  try {
    code = run_unguarded(argc, argv);
  } catch (const std::bad_alloc&) {
    (void)std::fputs("error: not enough memory\n", stderr);
    return kEnvironment;
  } catch (const std::exception& problem) {
    (void)std::fprintf(stderr, "error: %s\n", problem.what());
    return kEnvironment;
  }
  // A full disk or a closed pipe shows when the buffer is written.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    (void)std::fputs("error: standard output cannot be written\n", stderr);
    return kEnvironment;
  }
  return code;
}

}  // namespace ordo::cli
