#include "runtime/prepared_plans.hpp"

#include <chrono>
#include <thread>
#include <utility>

namespace ordo {

Prepared PreparedPlans::get(const std::string& text, const std::function<Prepared()>& build) {
  std::promise<Prepared> promise;
  for (;;) {
    std::shared_future<Prepared> other;
    {
      const std::scoped_lock lock(mutex_);
      const auto [it, first] = slots_.try_emplace(text);
      it->second.asked = ++clock_;
      if (first)
        it->second.future = promise.get_future().share();
      else
        other = it->second.future;
    }
    if (!other.valid()) break;
    const Prepared& prepared = other.get();
    if (prepared || prepared.error().code != ErrorCode::cancelled) return prepared;
    std::this_thread::yield();  // cancelled by another's wish, not this caller's
  }

  Prepared result = build();
  {
    const std::scoped_lock lock(mutex_);
    if (!result) slots_.erase(text);
  }
  promise.set_value(result);
  if (result) {
    const std::scoped_lock lock(mutex_);
    drop_oldest();
  }
  return result;
}

std::optional<Prepared> PreparedPlans::find(const std::string& text) {
  std::shared_future<Prepared> future;
  {
    const std::scoped_lock lock(mutex_);
    const auto it = slots_.find(text);
    if (it == slots_.end()) return std::nullopt;
    it->second.asked = ++clock_;
    future = it->second.future;
  }
  Prepared result = future.get();
  if (!result) return std::nullopt;
  return result;
}

std::size_t PreparedPlans::size() const {
  const std::scoped_lock lock(mutex_);
  return slots_.size();
}

void PreparedPlans::drop_oldest() {
  const auto idle = [](const Slot& slot) {
    if (slot.future.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
    const Prepared& prepared = slot.future.get();
    return prepared.ok() && prepared->use_count() == 1;
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

}  // namespace ordo
