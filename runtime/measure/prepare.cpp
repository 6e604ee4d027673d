#include "runtime/measure/prepare.hpp"

#include <algorithm>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace ordo::measure {

Prepared prepare_all(Engine& engine, std::span<const Plan> plans, const std::function<bool(double share)>& progress) {
  std::map<std::string, const Plan*> wanted;
  for (const Plan& plan : plans) wanted.emplace(to_text(plan), &plan);

  Prepared prepared;
  std::mutex mutex;
  auto next = wanted.begin();
  bool stopped = false;
  const auto work = [&] {
    std::unique_lock lock(mutex);
    while (next != wanted.end() && !stopped) {
      const auto [text, plan] = *next++;
      lock.unlock();
      auto kernel = engine.prepare(*plan);
      lock.lock();
      prepared.emplace(text, std::move(kernel));
      stopped = stopped || (progress && !progress(static_cast<double>(prepared.size()) / static_cast<double>(wanted.size())));
    }
  };
  std::vector<std::jthread> threads;
  const std::size_t most = std::min<std::size_t>(std::thread::hardware_concurrency(), wanted.size());
  for (std::size_t i = 1; i < most; ++i) {
    try {
      threads.emplace_back(work);
    } catch (const std::system_error&) {  // no more threads to be had: those there are do it all
      break;
    }
  }
  work();
  threads.clear();
  return prepared;
}

}  // namespace ordo::measure
