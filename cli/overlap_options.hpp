// The options of `ordo VERB overlap`.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "codegen/overlap/planner.hpp"

namespace ordo::cli {

/// As written on the command line.
struct OverlapOptions {
  std::string family, op = "all-gather-gemm";
  std::int64_t ranks = 2, m = 8192, n = 8192, k = 8192;
  bool no_peer_access = false;
  std::string route = "direct";
  std::optional<std::string> target;
  bool json = false;
};

/// The positional word `overlap`, --op, sizes, --ranks, --route, --target and --json.
void add_overlap_options(CLI::App& verb, OverlapOptions& options);

/// What is asked. Errors: invalid_argument (a name that is unknown, a number out of range).
struct OverlapQuestion {
  overlap::Case of;
  OverlapRoute route = OverlapRoute::direct;
  OverlapGemm problem;
  Target target;
};
Result<OverlapQuestion> resolve_overlap(const OverlapOptions& options);

}  // namespace ordo::cli
