#include "cache/store_impl.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <chrono>

namespace ordo::cache {

std::int64_t now_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::unique_lock<std::mutex> lock_soon(std::mutex& mutex) {
  constexpr int tries = 500;  // each some 20 to 40 ns
  std::unique_lock lock(mutex, std::try_to_lock);
  for (int i = 0; i < tries && !lock.owns_lock(); ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // some 10 to 20 ns
#endif
    (void)lock.try_lock();
  }
  if (!lock.owns_lock()) lock.lock();
  return lock;
}

Store::Impl::~Impl() {
  const Connection* connection = current_.load();
  if (connection != nullptr && connection->process == getpid()) delete connection;
  for (std::unique_ptr<Connection>& old : retired_) {
    if (old->process == getpid()) continue;
    [[maybe_unused]] const Connection* parents = old.release();  // closing it would drop the parent's locks
  }
}

Result<Connection*> Store::Impl::connection(dev_t& device, ino_t& inode) {
  Connection* seen = current_.load();
  if (seen == nullptr || seen->process != getpid()) {
    const std::scoped_lock lock(mutex_);
    seen = current_.load();
    if (seen == nullptr || seen->process != getpid()) {  // else another thread was first
      struct stat file{};
      if (::stat(path.c_str(), &file) == 0) {
        device = file.st_dev;
        inode = file.st_ino;
      }
      Result<std::unique_ptr<Connection>> fresh = Connection::open(path, options.access);
      if (!fresh) return fresh.error();
      seen = fresh->release();
      current_ = seen;
    }
  }
  device = seen->device;
  inode = seen->inode;
  return seen;
}

bool Store::Impl::put_aside(const Met& met) {
  std::string aside;
  {
    const std::scoped_lock lock(mutex_);
    Connection* current = current_.load();
    const bool same = current != nullptr && current->device == met.device && current->inode == met.inode;
    if (current != nullptr && !same) return true;  // another thread was first
    if (current == nullptr && !is_ours(path)) return false;
    Result<std::string> renamed = quarantine(path, met.device, met.inode);
    if (!renamed) return false;
    aside = *std::move(renamed);
    if (current != nullptr) retired_.emplace_back(current);
    current_ = nullptr;
  }
  if (!aside.empty()) {
    options.quarantined(
        fmt::format("The cache {} is damaged. It was renamed to {} and a new one begun; 'ordo cache merge {}' takes "
                    "over what is intact in it.",
                    path, aside, aside));
  }
  return true;
}

Error Store::Impl::read_only() const {
  return {ErrorCode::cache,
          fmt::format("The cache {} is read-only: its file or folder cannot be written, or a newer ordo made it.", path)};
}

}  // namespace ordo::cache
