// What `ordo check overlap` and `ordo bench overlap` share: the product asked for, and the ranks that compute it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/measure/overlap_bench.hpp"

namespace ordo::cli {

/// As written on the command line.
struct OverlapRunOptions {
  std::string family, op = "all-gather-gemm";
  std::int64_t m = 8192, n = 8192, k = 8192, ranks = 0;
  std::string dtype = "bf16", a = "row", b = "column", out = "same", activation = "none";
  bool bias = false;
  std::optional<std::string> plan;
  std::string partial = "same", method = "auto", transport = "automatic";
  std::optional<OverlapRoute> route;  ///< absent: direct, or of a checked suite every one
  [[nodiscard]] OverlapRoute route_or_direct() const { return route.value_or(OverlapRoute::direct); }
  bool suite = false;
  std::string rows;
  double timeout = 30;
  std::uint64_t seed = 0;
  std::string cache;
  bool json = false;
};

void add_overlap_run_options(CLI::App& verb, OverlapRunOptions& options);

/// The products to run: the one of the options, or the lines of `suite` whose text holds --rows and whose op can take --route. A
/// line is canonical text with "ranks" left out. Errors: invalid_argument, invalid_problem.
Result<std::vector<OverlapGemm>> resolve_products(const OverlapRunOptions& options, int ranks,
                                                  const std::vector<std::string>& suite);

/// The routes that `op` can take.
std::vector<OverlapRoute> routes_of(OverlapOp op);

/// --plan, --partial and --method for `problem`, by `route` unless the plan says. Errors: invalid_argument, invalid_plan.
Result<OverlappedGemmOptions> resolve_how(const OverlapRunOptions& options, const OverlapGemm& problem, const Target& target,
                                          OverlapRoute route);

/// Compiles what `problems` will need, on several threads, beforehand. What fails is told when it is used.
void compile_all(const OverlapRunOptions& options, const measure::RankBench& with, const std::vector<OverlapGemm>& problems,
                 bool alone_too);

/// Runs `body` on every rank: this process' own where a launcher started it (world_from_environment), else --ranks (2) threads, a
/// GPU each. Returns the largest exit code, or the first error by rank. Errors: no_device (fewer GPUs than ranks),
/// invalid_argument (--ranks is not what the launcher started).
Result<int> run_ranks(const OverlapRunOptions& options, const std::function<Result<int>(const measure::RankBench&)>& body);

}  // namespace ordo::cli
