// What `ordo bench` is asked for.
#pragma once

#include <string>
#include <vector>

#include "cli/options.hpp"
#include "ordo/measurement_policy.hpp"

namespace ordo::cli {

struct BenchOptions : Options {
  MeasurementPolicy policy;
  std::optional<double> warmup_seconds, measure_seconds;  ///< as given; each form has its own defaults
  std::optional<int> rounds;
  std::int64_t repeats = 0;
  std::uint64_t seed = 0;

  bool suite = false, overheads = false, stalls = false, list = false;
  std::string cells;  ///< comma-separated parts of names; empty: all
  std::string plans = "best";
  std::vector<std::string> edits;  ///< "key=value" put into every plan's text
  bool checks = true;              ///< same_bits and max_rel_err
  std::string csv;                 ///< empty: standard output
  std::string table;               ///< file for the table of schedules; empty: none
  std::string cache_hit;           ///< see measure_cache_hit
};

/// The CSV of the suite's cells. Returns the exit code.
Result<int> bench_suite(const BenchOptions& options);

/// Waits for turns to add in one plan, measured in a debug build of its kernel, and as simulated.
Result<int> bench_stalls(const BenchOptions& options);

/// Host time of a launch over bare launches, and of a cache hit.
Result<int> bench_overheads(const BenchOptions& options);

/// One cache hit, for a process of its own: opens the file options.cache_hit, prepares the plan that bench_overheads put there,
/// launches, prints.
Result<int> bench_cache_hit(const BenchOptions& options);

}  // namespace ordo::cli
