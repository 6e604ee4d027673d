// ordo_cache_soak [SCENARIO]: the long forms of what the cache must survive. Some minutes on two processors; exits with 1 on a
// problem.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tests/cache/scenarios.hpp"

int main(int argc, char** argv) {
  using namespace ordo::test;
  const std::size_t share = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1;
  if (share == 0) return 2;
  struct Scenario {
    const char* name;
    std::function<Report()> run;
  };
  const std::vector<Scenario> scenarios{
      {"warm", [] { return warm_start(21); }},
      {"large", [&] { return large_store(100'000 / share); }},
      {"cold", [] { return cold_start(64, 8); }},
      {"faults", [&] { return fault_cases(10'000 / share, 1); }},
      {"shipped", [&] { return shipped_damage(10'000 / share, 1); }},
      {"kills", [&] { return kill_rounds(1000 / share, 1); }},
  };
  int status = EXIT_SUCCESS;
  bool known = false;
  for (const Scenario& scenario : scenarios) {
    if (argc > 1 && argv[1] != std::string(scenario.name)) continue;
    known = true;
    const Report result = scenario.run();
    fmt::print("{:<8} {} {}\n", scenario.name, result.problems.empty() ? "ok    " : "FAILED", result.summary);
    for (const std::string& problem : result.problems) fmt::print("         {}\n", problem);
    (void)std::fflush(stdout);
    if (!result.problems.empty()) status = EXIT_FAILURE;
  }
  if (known) return status;
  fmt::print(stderr, "no such scenario; there are: warm large cold faults shipped kills\n");
  return 2;
}
