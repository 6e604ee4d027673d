// Shared values that are made once a key, by whoever asks first, a bounded number of them: the kernels of plans by their text.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "ordo/error.hpp"

namespace ordo {

/// Thread-safe. Beyond `most` values those asked for longest ago go, unless somebody else holds them.
template <class T>
class OnceMap {
 public:
  using Made = Result<std::shared_ptr<T>>;

  explicit OnceMap(std::size_t most) : most_(most) {}

  /// The value of `key`. Of several threads that ask for it the first runs `make` and the others wait. A failure is not
  /// remembered; what make() throws is one (internal). Who waited for one that was cancelled, by another's wish, tries again.
  Made get(const std::string& key, const std::function<Made()>& make) {
    std::promise<Made> promise;
    while (const auto other = join(key, promise)) {
      const Made& made = other->get();
      if (made || made.error().code != ErrorCode::cancelled) return made;
      std::this_thread::yield();
    }
    Made result = guarded(key, make);
    {
      const std::scoped_lock lock(mutex_);
      if (!result) slots_.erase(key);
    }
    promise.set_value(result);
    if (result) {
      const std::scoped_lock lock(mutex_);
      drop_oldest();
    }
    return result;
  }

  /// The value of a key that has one, or is being given one; nullopt for others.
  std::optional<Made> find(const std::string& key) {
    std::shared_future<Made> future;
    {
      const std::scoped_lock lock(mutex_);
      const auto it = slots_.find(key);
      if (it == slots_.end()) return std::nullopt;
      it->second.asked = ++clock_;
      future = it->second.future;
    }
    Made result = future.get();
    if (!result) return std::nullopt;
    return result;
  }

  [[nodiscard]] std::size_t size() const {
    const std::scoped_lock lock(mutex_);
    return slots_.size();
  }

 private:
  struct Slot {
    std::shared_future<Made> future;  ///< for the threads that wait
    std::uint64_t asked = 0;
  };

  /// What to wait for; nullopt: `promise` was put in, and the caller is to keep it.
  std::optional<std::shared_future<Made>> join(const std::string& key, std::promise<Made>& promise) {
    const std::scoped_lock lock(mutex_);
    const auto [it, first] = slots_.try_emplace(key);
    it->second.asked = ++clock_;
    if (!first) return it->second.future;
    it->second.future = promise.get_future().share();
    return std::nullopt;
  }

  static Made guarded(const std::string& key, const std::function<Made()>& make) {
    try {
      return make();
    } catch (const std::exception& exception) {  // out of memory, most likely; whoever waits must not wait for ever
      return Error{ErrorCode::internal, fmt::format("Preparing '{}' failed: {}.", key, exception.what())};
    }
  }

  void drop_oldest() {
    const auto idle = [](const Slot& slot) {
      if (slot.future.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
      const Made& made = slot.future.get();
      return made.ok() && made->use_count() == 1;
    };
    while (slots_.size() > most_) {
      auto oldest = slots_.end();
      for (auto it = slots_.begin(); it != slots_.end(); ++it) {
        if (idle(it->second) && (oldest == slots_.end() || it->second.asked < oldest->second.asked)) oldest = it;
      }
      if (oldest == slots_.end()) return;
      slots_.erase(oldest);
    }
  }

  const std::size_t most_;
  mutable std::mutex mutex_;
  std::uint64_t clock_ = 0;
  std::map<std::string, Slot> slots_;
};

}  // namespace ordo
