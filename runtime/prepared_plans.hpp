// The kernels of the plans that an engine has prepared, a bounded number of them.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/kernel_impl.hpp"

namespace ordo {

using Prepared = Result<std::shared_ptr<AttentionBackwardKernel::Impl>>;

/// Thread-safe. Beyond `most` plans those asked for longest ago go, unless somebody holds their kernel.
class PreparedPlans {
 public:
  explicit PreparedPlans(std::size_t most) : most_(most) {}

  /// The kernels of a plan by its text. Of several threads that ask for one plan the first runs `build` and the others wait. A
  /// failure is not remembered.
  Prepared get(const std::string& text, const std::function<Prepared()>& build);

  /// Those of a plan that is prepared, or being so; nullopt for others.
  std::optional<Prepared> find(const std::string& text);

  [[nodiscard]] std::size_t size() const;

 private:
  struct Slot {
    /// A future, for the threads that wait.
    std::shared_future<Prepared> future;
    std::uint64_t asked = 0;
  };
  void drop_oldest();

  const std::size_t most_;
  mutable std::mutex mutex_;
  std::uint64_t clock_ = 0;
  std::map<std::string, Slot> slots_;
};

}  // namespace ordo
