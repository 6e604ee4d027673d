// A point in time by which a wait must end.
#pragma once

#include <algorithm>
#include <chrono>

namespace ordo::peers {

using Milliseconds = std::chrono::milliseconds;

/// Every wait of this folder takes one.
class Deadline {
 public:
  static Deadline after(Milliseconds span) { return Deadline(Clock::now() + span); }

  [[nodiscard]] bool passed() const { return Clock::now() >= at_; }
  /// Time that is left, rounded up, never negative; at most an hour, so that it fits the int of poll().
  [[nodiscard]] Milliseconds remaining() const {
    const auto left = std::chrono::ceil<Milliseconds>(at_ - Clock::now());
    return std::clamp(left, Milliseconds(0), Milliseconds(3600 * 1000));
  }

 private:
  using Clock = std::chrono::steady_clock;
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace ordo::peers
