// One process at a time measures on a GPU: two at once would slow each other and store what is not true.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "ordo/error.hpp"

namespace ordo::tuner {

/// An flock on a file in the folder for temporary files, named after the GPU. The kernel drops it when the process ends, however
/// it ends. Processes in containers that share no such folder do not see each other.
class DeviceLock {
 public:
  /// Waits for the lock. `waiting` is called a few times a second meanwhile, with the process that holds it (0: not known); it
  /// returns false to give up, which gives nullopt. Errors: io, the file cannot be made.
  static Result<std::optional<DeviceLock>> acquire(const std::string& device, const std::function<bool(int holder)>& waiting);
  DeviceLock(DeviceLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  DeviceLock& operator=(DeviceLock&&) = delete;
  ~DeviceLock();

 private:
  explicit DeviceLock(int file) : file_(file) {}
  int file_;
};

}  // namespace ordo::tuner
