#include "tests/gpu/deadline.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace ordo::test {
namespace {

/// The thread behind every Deadline.
class Watcher {
 public:
  static Watcher& instance() {
    static auto* watcher = new Watcher;  // lives as long as its thread, which nobody joins
    return *watcher;
  }

  void push(std::string what, double seconds) {
    const std::scoped_lock lock(mutex_);
    entries_.push_back({std::move(what), seconds, {}});
    changed_.notify_one();
  }
  void pop() {
    const std::scoped_lock lock(mutex_);
    entries_.pop_back();
    if (!entries_.empty()) entries_.back().watch = {};
  }

 private:
  struct Entry {
    std::string what;
    double seconds;
    Stopwatch watch;
  };

  Watcher() {
    std::thread([this] { run(); }).detach();
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait_for(lock, std::chrono::milliseconds(100));
      if (entries_.empty() || entries_.back().watch.seconds() < entries_.back().seconds) continue;
      stop(3, fmt::format("WATCHDOG: no end after {} s: {}", entries_.back().seconds, entries_.back().what));
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> entries_;
};

}  // namespace

Deadline::Deadline(std::string what, double seconds) {
  static const double scale = [] {
    const char* text = std::getenv("ORDO_DEADLINE_SCALE");
    return text == nullptr ? 1.0 : std::max(1.0, std::strtod(text, nullptr));
  }();
  Watcher::instance().push(std::move(what), scale * seconds);
}
Deadline::~Deadline() { Watcher::instance().pop(); }

void stop(int status, const std::string& message) {
  fmt::print("{}\n", message);
  (void)std::fflush(stdout);
  ::_exit(status);
}

}  // namespace ordo::test
