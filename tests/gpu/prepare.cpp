#include "tests/gpu/prepare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace ordo::test {

Kernels prepare_all(Engine& engine, std::span<const Plan> plans, int& failures) {
  std::vector<std::string> texts;
  for (const Plan& plan : plans) texts.push_back(to_text(plan));
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());

  Kernels kernels;
  std::mutex mutex;
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < texts.size(); i = next++) {
      auto kernel = engine.prepare(*parse_plan(texts[i]));
      const std::scoped_lock lock(mutex);
      if (kernel) {
        kernels.emplace(texts[i], *std::move(kernel));
      } else {
        ++failures;
        fmt::print("NOT COMPILED {}\n  {}\n", texts[i], kernel.error().message);
      }
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  threads.clear();
  return kernels;
}

}  // namespace ordo::test
