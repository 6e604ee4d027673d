// One compile per kernel among the processes of a host, and no more compiles at once than the host can bear.
//
// Locks are flock(2) on files of a folder that belongs to this host and user, so that a process that is killed leaves none
// behind; they are never taken on a shared filesystem, where they mean nothing. A holder that lives but does nothing is noticed
// by its file's time, which it renews while it works: after `timeout` the others go on without it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ordo/error.hpp"

namespace ordo::cache {

struct SingleFlightOptions {
  std::optional<std::string> folder;  ///< absent: private_folder(); where there is none nobody waits for anybody
  int jobs = 0;  ///< compiles at once on this host; 0: $ORDO_COMPILE_JOBS, else half of the processors, 2 to 16
  std::chrono::milliseconds timeout{30'000};     ///< of silence, after which a holder counts as hanging
  std::chrono::milliseconds tell_after{10'000};  ///< of waiting, see Wait::waiting
};

/// The right of one caller to compile some kernels. What it holds is released when it is destroyed.
class ORDO_API Flight {
 public:
  Flight(Flight&&) noexcept;
  Flight& operator=(Flight&&) = delete;
  ~Flight();

  /// The keys that are left to compile, in order: those found meanwhile are not among them.
  [[nodiscard]] const std::vector<std::string>& keys() const;
  /// Says that the holder is at work, at most once a second however often it is called. Thread-safe.
  void renew() const;

 private:
  friend class SingleFlight;
  struct State;
  explicit Flight(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// A turn to compile. Given back when it is destroyed.
class ORDO_API Turn {
 public:
  Turn(Turn&&) noexcept;
  Turn& operator=(Turn&&) = delete;
  ~Turn();
  void renew() const;  ///< likewise

 private:
  friend class SingleFlight;
  struct State;
  explicit Turn(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// What a wait asks and tells. Every member may be empty.
struct Wait {
  std::function<bool(const std::string& key)> done;  ///< the kernel is there now
  std::function<bool()> cancelled;
  /// Once, when the wait grows long: "process 1234 (train), which compiles the same kernel". Not of a turn that this process
  /// itself has.
  std::function<void(const std::string& whom)> waiting;
};

/// Thread-safe; threads of one process wait for each other as processes do.
class ORDO_API SingleFlight {
 public:
  explicit SingleFlight(SingleFlightOptions options = {});

  /// Waits until this caller may compile every key that is not done. Keys are taken in sorted order, so that callers who want
  /// several cannot wait for each other in a circle. A key whose holder hangs is compiled without waiting for it. Errors:
  /// cancelled.
  [[nodiscard]] Result<Flight> acquire(std::vector<std::string> keys, const Wait& wait) const;

  /// Waits for one of the host's turns. Errors: cancelled.
  [[nodiscard]] Result<Turn> turn(const Flight& flight, const Wait& wait) const;

  [[nodiscard]] int jobs() const { return options_.jobs; }

 private:
  [[nodiscard]] std::optional<std::string> folder() const;
  SingleFlightOptions options_;
};

}  // namespace ordo::cache
