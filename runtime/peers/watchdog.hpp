// What notices that a rank failed, and ends every wait for it.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "ordo/error.hpp"
#include "runtime/driver.hpp"
#include "runtime/peers/links.hpp"

namespace ordo::peers {

/// Work in flight that the watchdog looks after. Called by one thread at a time.
class Watched {
 public:
  Watched() = default;
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  virtual ~Watched() = default;

  /// Every few milliseconds: an error when a wait failed or took too long. Does not wait.
  virtual Result<void> check() = 0;
  /// Ends the waits of streams, whose results are then undefined. Called again and again once the communicator failed.
  virtual void release() = 0;
};

/// Page-locked host memory, zeroed, that every device sees.
class PinnedMemory {
 public:
  static Result<PinnedMemory> allocate(const Driver& driver, std::size_t bytes);
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory();

  [[nodiscard]] void* host() const { return host_; }
  [[nodiscard]] CUdeviceptr device() const { return device_; }

 private:
  const Driver* driver_ = nullptr;
  void* host_ = nullptr;
  CUdeviceptr device_ = 0;
};

/// One rank's watchdog: a thread that reads the alarm channels and checks what is watched. Thread-safe.
class Watchdog {
 public:
  /// `links` outlives it. The thread makes `context` its own.
  static Result<std::unique_ptr<Watchdog>> start(const Driver& driver, CUcontext context, const Links& links);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  /// Takes leave of the peers: that this rank goes is no failure for them.
  ~Watchdog();

  /// The first failure, of this rank or of another.
  [[nodiscard]] Result<void> status() const;

  /// status(), after a look at what is watched and at what peers have raised: once a stream's work is done, whether it succeeded.
  /// A rank tells all others of a failure before it ends its streams' waits, so that whoever received what was copied behind them
  /// learns here that it is undefined.
  Result<void> examine();

  /// This rank failed: tells all peers, sets the abort word, releases what is watched. The first failure stays.
  void raise(const Error& error);

  void add(Watched& watched);
  /// After it returns `watched` is not called any more.
  void remove(Watched& watched);

  /// A word that is 0 until the communicator fails, as devices see it.
  [[nodiscard]] CUdeviceptr abort_word() const { return abort_.device(); }

 private:
  Watchdog(const Driver& driver, CUcontext context, const Links& links, PinnedMemory abort, FileDescriptor wake);
  void run();
  Result<void> check_watched();
  void read_alarms();
  void read_alarm(int rank);
  enum class Heard { here, from_another };
  void fail(const Error& error, Heard heard);
  void tell_all(std::uint32_t kind, const std::string& text) const;

  const Driver& driver_;
  CUcontext context_;
  const Links& links_;
  PinnedMemory abort_;
  FileDescriptor wake_;  ///< an eventfd that ends the thread

  mutable std::mutex mutex_;  ///< of all below
  std::optional<Error> failure_;
  bool told_ = false;  ///< all peers, of the failure
  std::vector<Watched*> watched_;

  std::atomic<bool> failed_{false};
  std::mutex reading_;      ///< of the alarm channels, and of:
  std::vector<bool> left_;  ///< by rank: took leave
  std::thread thread_;
};

}  // namespace ordo::peers
