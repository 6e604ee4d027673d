// Values that are made once a key, by whoever asks first.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "ordo/error.hpp"

namespace ordo {

/// Thread-safe. Of several threads that ask for one key the first makes the value and the others wait for it.
template <class Value>
class OnceMap {
 public:
  /// The value of `key`, from `make()` -> Result<Value> the first time. A failure is not remembered: the next call tries again.
  template <class Make>
  Result<Value> get(const std::string& key, const Make& make) {
    std::promise<Result<Value>> promise;
    std::shared_future<Result<Value>> shared;
    {
      const std::scoped_lock lock(mutex_);
      const auto [it, first] = values_.try_emplace(key);
      if (first)
        it->second = promise.get_future().share();
      else
        shared = it->second;
    }
    if (shared.valid()) return shared.get();

    Result<Value> result = Error{ErrorCode::internal, "unset"};
    try {
      result = make();
    } catch (const std::exception& exception) {  // out of memory, most likely; whoever waits must not wait for ever
      result = Error{ErrorCode::internal, fmt::format("Preparing '{}' failed: {}.", key, exception.what())};
    }
    if (!result) {
      const std::scoped_lock lock(mutex_);
      values_.erase(key);
    }
    promise.set_value(result);
    return result;
  }

  /// The value of `key` if it has been made, or nothing.
  std::optional<Value> find(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    const auto at = values_.find(key);
    if (at == values_.end() || at->second.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return {};
    const Result<Value> value = at->second.get();
    return value ? std::optional(*value) : std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_future<Result<Value>>> values_;
};

}  // namespace ordo
