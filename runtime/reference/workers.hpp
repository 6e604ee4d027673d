// A few threads that share out numbered jobs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ordo::reference {

/// Which thread runs which job is chance: jobs of one run() must not depend on each other's order.
class Workers {
 public:
  /// `threads` in all, the caller included; 0 or less: one a core. Where the system refuses a thread, fewer.
  explicit Workers(int threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  [[nodiscard]] int count() const { return static_cast<int>(threads_.size()) + 1; }

  /// Calls job(index, worker) for every index in [0, jobs), worker in [0, count()), and returns when all are done. `job` throws
  /// nothing. Called from one thread at a time.
  void run(std::int64_t jobs, const std::function<void(std::int64_t index, int worker)>& job);

 private:
  void serve(int worker);
  void take(int worker);

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t generation_ = 0;  ///< of the run in hand
  int busy_ = 0;                  ///< threads that have not finished it
  bool ending_ = false;
  std::int64_t jobs_ = 0;
  std::atomic<std::int64_t> next_{0};
  const std::function<void(std::int64_t, int)>* job_ = nullptr;
};

}  // namespace ordo::reference
