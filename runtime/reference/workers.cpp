#include "runtime/reference/workers.hpp"

#include <algorithm>
#include <system_error>

namespace ordo::reference {

Workers::Workers(int threads) {
  constexpr int kMost = 256;
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  threads = std::clamp(threads, 1, kMost);
  threads_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int worker = 1; worker < threads; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
  } catch (const std::system_error&) {
    return;  // out of threads: the ones that exist do the work
  }
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::run(std::int64_t jobs, const std::function<void(std::int64_t, int)>& job) {
  job_ = &job;
  jobs_ = jobs;
  next_ = 0;
  if (jobs > 1 && !threads_.empty()) {
    {
      const std::lock_guard lock(mutex_);
      ++generation_;
      busy_ = static_cast<int>(threads_.size());
    }
    changed_.notify_all();
    take(0);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return busy_ == 0; });
  } else {
    take(0);
  }
}

void Workers::serve(int worker) {
  std::uint64_t served = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ending_ || generation_ != served; });
      if (ending_) return;
      served = generation_;
    }
    take(worker);
    bool last = false;
    {
      const std::lock_guard lock(mutex_);
      last = --busy_ == 0;
    }
    if (last) changed_.notify_all();
  }
}

void Workers::take(int worker) {
  for (;;) {
    const std::int64_t index = next_.fetch_add(1);
    if (index >= jobs_) return;
    (*job_)(index, worker);
  }
}

}  // namespace ordo::reference
