#include "tests/gpu/gemm_problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

namespace ordo::test {

Result<HelperKernels> compile_helpers() {
  KernelBuilderOptions options;
  options.memory_cache_only = true;
  return HelperKernels::create(options);
}

std::vector<std::optional<OverlapGemmKernel>> prepare_overlap(Engine& engine, std::span<const OverlapPlan> plans, int& failures) {
  std::vector<std::optional<OverlapGemmKernel>> kernels(plans.size());
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i = next++; i < plans.size(); i = next++) {
      auto kernel = engine.prepare(plans[i]);
      if (kernel) {
        kernels[i] = *std::move(kernel);
        continue;
      }
      const std::scoped_lock lock(mutex);
      ++failures;
      fmt::print("NOT COMPILED {}\n  {}\n", to_text(plans[i]), kernel.error().message);
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  threads.clear();
  return kernels;
}

}  // namespace ordo::test
