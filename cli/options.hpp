// The options that several verbs share, and what follows from them: problem, target, device, plan.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "ordo/error.hpp"
#include "ordo/ordo.hpp"
#include "runtime/kernel_builder.hpp"

namespace ordo::cli {

/// As written on the command line; what is absent was not given.
struct Options {
  std::string family;
  std::optional<std::int64_t> batch, seqlen, seqlen_q, seqlen_k, heads, kv_heads, head_dim;
  std::optional<std::string> mask, dtype;
  std::optional<std::string> schedule, accumulate, schedule_state, plan;
  bool static_shape = false;
  bool allow_spills = false;
  std::optional<std::string> target, device;
  std::string cache;
  bool json = false;
};

/// What --mask takes.
extern const char* const kMaskHelp;

/// Refuses what is not a decimal integer, before CLI11 converts it (which would take 010 for 8).
extern const CLI::Validator kInteger;

// Each adds its options to a verb.
CLI::Option* add_family(CLI::App& verb, Options& options);
void add_shape(CLI::App& verb, Options& options);
void add_plan(CLI::App& verb, Options& options);
void add_allow_spills(CLI::App& verb, Options& options);
void add_target(CLI::App& verb, Options& options);
void add_device(CLI::App& verb, Options& options, const std::string& help);
void add_cache(CLI::App& verb, Options& options);
void add_json(CLI::App& verb, Options& options);

/// A plan for a problem on a target.
struct Choice {
  AttentionBackward problem;
  Target target;
  PlanChoice choice;
};

/// The problem of the shape options. Where --plan is given, it stands in for dtype, head_dim, mask and heads that are not.
Result<AttentionBackward> resolve_problem(const Options& options, const std::optional<Plan>& plan);

/// --plan: canonical text, or a file that holds it (lines that start with # are skipped). nullopt without --plan.
Result<std::optional<Plan>> resolve_given_plan(const Options& options);

/// --target; else the device of --device; else the current device; else h200.
Result<Target> resolve_target(const Options& options);

/// The GPU that computes: --device N, or without --device the current one if ordo has kernels for it. nullopt: the CPU.
Result<std::optional<int>> resolve_device(const Options& options);

/// The GPU of resolve_device(). Errors (no_device): the CPU was asked for, or is all there is; `what` names who needs a GPU.
Result<int> resolve_gpu(const Options& options, const std::string& what);

/// What --schedule, --accumulate and --static-shape fix of the plan.
Result<PlanRequest> request_of(const Options& options);

/// The plan for `problem`: given by hand and checked, or the planner's.
Result<Choice> choose_plan(const Options& options, const AttentionBackward& problem, const std::optional<Plan>& given);

/// All of the above, for verbs whose problem comes from the command line.
Result<Choice> choose(const Options& options);

/// Where compiled kernels are kept; warnings go to standard error.
KernelBuilderOptions builder_options(const Options& options);

/// An engine for the target whose warnings go to standard error.
Result<Engine> make_engine(const Options& options, const Target& target);

}  // namespace ordo::cli
