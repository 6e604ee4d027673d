// What the watchdog knows of an exchange's launches.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "runtime/peers/watchdog.hpp"

namespace ordo::peers {

/// A failed wait of a kernel, in host memory that the device writes. Same layout as OverlapFailure.
struct KernelFailure {
  std::uint32_t state = 0;  ///< 0: none, 1: being written, 2: written
  std::int32_t rank = 0, slice = 0, chunk = 0;
  std::uint32_t expected = 0, seen = 0;
};

/// A stream whose waits hold up no kernel: streams of one priority share hardware queues (CUDA_DEVICE_MAX_CONNECTIONS, 8 unless
/// set), in which a kernel of the caller's could stay behind the wait that it would end.
Result<CUstream> create_waiting_stream(const Driver& driver);

/// Follows the launches of one exchange by events. Launches that are captured are bounded by their kernel's waits alone.
class LaunchWatch : public Watched {
 public:
  struct Setup {
    const Driver* driver = nullptr;
    const KernelFailure* failure = nullptr;
    Milliseconds timeout{0};
    CUdeviceptr words = 0;  ///< that streams wait for ...
    std::size_t count = 0;  ///< ... so many
    /// Names the waits that `words`, as they are now, do not end.
    std::function<std::string(const std::uint32_t* words)> explain;
  };
  explicit LaunchWatch(Setup setup) : setup_(std::move(setup)) {}
  LaunchWatch(const LaunchWatch&) = delete;
  LaunchWatch& operator=(const LaunchWatch&) = delete;
  ~LaunchWatch() override;

  /// Makes events and a stream. Errors: driver.
  Result<void> open();

  /// Around everything that a launch enqueues. Without a free record (many launches in flight) the launch is covered by those
  /// before it.
  Result<void> begin(CUstream stream);
  Result<void> end(CUstream stream);

  Result<void> check() override;
  void release() override;

 private:
  enum State : int { unused, begun, armed };
  struct Record {
    CUevent begin = nullptr, end = nullptr;
    std::atomic<int> state{unused};
    std::chrono::steady_clock::time_point running;  ///< the watchdog's: since when; zero: not yet seen
  };
  std::string what_is_missing();

  Setup setup_;
  CUstream rescue_ = nullptr;  ///< never waits for anything
  std::array<Record, 16> records_;
  std::size_t next_ = 0;
  Record* current_ = nullptr;
};

}  // namespace ordo::peers
