#include "runtime/tuner/device_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

namespace ordo::tuner {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(100);

std::string path_of(const std::string& device) {
  std::string name = "ordo-measuring-" + device + ".lock";
  std::replace_if(name.begin(), name.end(), [](char c) { return c == '/' || c == ' '; }, '_');
  std::error_code ignored;
  std::filesystem::path folder = std::filesystem::temp_directory_path(ignored);
  return ((ignored ? "/tmp" : folder) / name).string();
}

/// Another user's file is opened as it is: making it again would be refused in a sticky folder.
int open_file(const std::string& path) {
  int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0 && errno == EACCES) file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file >= 0) return file;
  file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file >= 0) (void)::fchmod(file, 0666);  // whatever the umask: other users lock it too
  return file;
}

int holder_of(int file) {
  std::array<char, 16> text{};
  const ssize_t bytes = ::pread(file, text.data(), text.size() - 1, 0);
  int pid = 0;
  if (bytes > 0) (void)std::from_chars(text.data(), text.data() + bytes, pid);
  return pid;
}

}  // namespace

Result<std::optional<DeviceLock>> DeviceLock::acquire(const std::string& device, const std::function<bool(int holder)>& waiting) {
  const std::string path = path_of(device);
  DeviceLock lock(open_file(path));
  if (lock.file_ < 0)
    return Error{ErrorCode::io, fmt::format("the lock file {} cannot be opened: {}", path, std::strerror(errno))};
  while (::flock(lock.file_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      return Error{ErrorCode::io, fmt::format("the lock file {} cannot be locked: {}", path, std::strerror(errno))};
    if (!waiting(holder_of(lock.file_))) return std::optional<DeviceLock>();
    std::this_thread::sleep_for(kPoll);
  }
  const std::string pid = fmt::format("{}\n", ::getpid());
  if (::ftruncate(lock.file_, 0) == 0) (void)!::pwrite(lock.file_, pid.data(), pid.size(), 0);  // for messages only
  return std::optional(std::move(lock));
}

DeviceLock::~DeviceLock() {
  if (file_ >= 0) (void)::close(file_);
}

}  // namespace ordo::tuner
