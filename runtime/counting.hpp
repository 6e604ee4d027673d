// Counts what prepare() does, for the API and for the cache file.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>

#include "ordo/prepare.hpp"

namespace ordo {

/// Thread-safe.
class Counting {
 public:
  /// `layer` is one of cache::Layers: "memory", "local", "shipped".
  void hit(const std::string& layer) {
    const std::scoped_lock lock(mutex_);
    ++(layer == "memory" ? counters_.memory_hits : layer == "local" ? counters_.local_hits : counters_.shipped_hits);
  }
  void missed(std::size_t count) {
    const std::scoped_lock lock(mutex_);
    counters_.misses += count;
  }
  void shared() {
    const std::scoped_lock lock(mutex_);
    ++counters_.shared_compiles;
  }
  void compiled(bool ok, double seconds) {
    const std::scoped_lock lock(mutex_);
    ++(ok ? counters_.compiles : counters_.compile_failures);
    counters_.compile_seconds += seconds;
  }
  void waited(double seconds) {
    const std::scoped_lock lock(mutex_);
    counters_.wait_seconds += seconds;
  }

  [[nodiscard]] CacheCounters all() const {
    const std::scoped_lock lock(mutex_);
    return counters_;
  }

  /// What was counted since the last take(), by name, to be added to a file's.
  std::map<std::string, double> take() {
    const std::scoped_lock lock(mutex_);
    std::map<std::string, double> now = named(counters_), taken;
    for (const auto& [name, value] : now) {
      if (const double more = value - taken_[name]; more > 0) taken.emplace(name, more);
    }
    taken_ = std::move(now);
    return taken;
  }

 private:
  mutable std::mutex mutex_;
  CacheCounters counters_;
  std::map<std::string, double> taken_;
};

}  // namespace ordo
