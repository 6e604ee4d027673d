// What the verbs of tuning share: their options, the tuner, and how an answer is shown.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/options.hpp"
#include "cli/report.hpp"
#include "ordo/tuner.hpp"

namespace ordo::cli {

struct TuningOptions : Options {
  TuneOptions tune;
  double warmup_seconds = 0.3, measure_seconds = 0.3;
};

/// Adds --schedule, --accumulate, --static-shape, --same-bits, --candidates and --margin.
void add_tuning(CLI::App& verb, TuningOptions& options);
/// Adds --rounds, --warmup, --measure and --cold-l2: what measurements are known by.
void add_measuring(CLI::App& verb, TuningOptions& options);

/// Options to what the tuner takes; the request of --schedule and its like is in it.
Result<TuneOptions> tune_options(const TuningOptions& options);

/// An engine's tuner for --device, or the current device, or none.
Result<Tuner> open_tuner(const TuningOptions& options);

/// {problem, target, plan, fingerprint, source, ms, tflops, reason, ranking, notes}
Json tuned_json(const AttentionBackward& problem, const Target& target, const TunedPlan& best);
void print_tuned(const AttentionBackward& problem, const Target& target, const TunedPlan& best);

}  // namespace ordo::cli
