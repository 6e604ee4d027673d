#include "tests/gpu/prepare.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "runtime/measure/prepare.hpp"
#include "tests/gpu/gpu.hpp"

namespace ordo::test {

Kernels prepare_all(Engine& engine, std::span<const Plan> plans, int& failures) {
  Kernels kernels;
  for (auto& [text, kernel] : measure::prepare_all(engine, plans)) {
    if (kernel) {
      kernels.emplace(text, *std::move(kernel));
    } else {
      ++failures;
      fmt::print("NOT COMPILED {}\n  {}\n", text, kernel.error().message);
    }
  }
  return kernels;
}

void precompile(const Target& target, std::span<const Plan> plans) {
  if (std::getenv("ORDO_CACHE") == nullptr) FAIL("set ORDO_CACHE to the cache file to be made");
  EngineOptions options;
  options.target = target;
  Engine engine = must(Engine::create(std::move(options)));
  const Stopwatch time;
  int failures = 0;
  const Kernels kernels = prepare_all(engine, plans, failures);
  fmt::print("{} plans prepared in {:.1f} s\n", kernels.size(), time.seconds());
  CHECK(failures == 0);
}

}  // namespace ordo::test
