// Command line of the benchmark.
#pragma once

#include <string>
#include <vector>

#include "ordo/plan.hpp"

namespace ordo::bench {

struct Options {
  double first_warm_ms = 2000;
  double warm_ms = 300;
  double measure_ms = 300;
  std::string cells;  ///< comma-separated parts of names; empty: all
  std::vector<Accumulate> accumulate{Accumulate::atomic, Accumulate::ordered, Accumulate::exact};
  bool all_plans = false;
  bool static_shape = false;
  std::vector<std::string> edits;  ///< "key=value" put into every plan's text
  bool checks = true;              ///< same_bits and max_rel_err
  std::string csv;                 ///< empty: stdout
  std::string cache;               ///< kernels; empty: memory only
  bool list = false;
  bool overheads = false;
  std::string cache_hit;  ///< see print_cache_hit
};

/// Reads the command line; prints help or what is wrong with it. `run` is false when the program is to end with `status`.
struct Parsed {
  Options options;
  bool run = false;
  int status = 0;
};
Parsed parse(int argc, char** argv);

/// The plan with "key=value" edits of its text.
Result<Plan> edited(const Plan& plan, const std::vector<std::string>& edits);

}  // namespace ordo::bench
