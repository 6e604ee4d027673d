// Time in tests and benchmarks: how long something takes, and how long it may take.
#pragma once

#include <chrono>
#include <string>

namespace ordo::test {

/// Seconds since it was made.
class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// While it lives, the process ends with status 3 and prints `what` if it lives longer than `seconds`. A thread watches, so that
/// a host blocked inside the driver is caught as well. The innermost of several counts.
/// $ORDO_DEADLINE_SCALE multiplies every limit: slow tools such as compute-sanitizer need 20 or more.
class Deadline {
 public:
  explicit Deadline(std::string what, double seconds = 20);
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;
  ~Deadline();
};

/// Prints `message` and ends the process at once, without destructors: they would wait for the device.
[[noreturn]] void stop(int status, const std::string& message);

}  // namespace ordo::test
