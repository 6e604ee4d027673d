#include "tests/gpu/prepare.hpp"

#include <fmt/format.h>

#include "runtime/measure/prepare.hpp"

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

}  // namespace ordo::test
