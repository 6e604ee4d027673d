// The verbs of the command, one file each.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "ordo/error.hpp"

namespace ordo::cli {

/// A verb on the command line and what it does. The action returns an exit code, or the error that stopped it.
struct Verb {
  CLI::App* command = nullptr;
  std::function<Result<int>()> action;
};

// Each adds its verb, with help and an example, to the command line.
Verb add_doctor(CLI::App& app);
Verb add_plan_verb(CLI::App& app);
Verb add_generate(CLI::App& app);
Verb add_compile(CLI::App& app);
Verb add_run(CLI::App& app);
Verb add_check(CLI::App& app);
Verb add_bench(CLI::App& app);
Verb add_inspect(CLI::App& app);
Verb add_simulate(CLI::App& app);
Verb add_tune(CLI::App& app);
Verb add_query(CLI::App& app);
Verb add_tuning_verb(CLI::App& app);
Verb add_launch(CLI::App& app);
Verb add_precompile(CLI::App& app);
Verb add_cache_verb(CLI::App& app);
Verb add_manifest(CLI::App& app);
Verb add_explain_miss(CLI::App& app);
Verb add_audit(CLI::App& app);
Verb add_calibrate(CLI::App& app);

// The same verbs for `ordo VERB overlap`: other options, and none of those above.
Verb add_simulate_overlap(CLI::App& app);
Verb add_plan_overlap(CLI::App& app);
Verb add_check_overlap(CLI::App& app);
Verb add_bench_overlap(CLI::App& app);

}  // namespace ordo::cli
