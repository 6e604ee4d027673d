// Objects that fork() does not carry over.
#pragma once

#include <string_view>

#include "ordo/error.hpp"

namespace ordo {

/// The process that made an object which holds CUDA handles, or locks that another thread may hold during a fork: a child that
/// fork() makes must not use it. Costs a load to check.
class MadeIn {
 public:
  MadeIn();
  /// Whether this is the process that made it, or a copy made there.
  [[nodiscard]] bool here() const;
  /// Success here; in a child invalid_argument, which names `what` ("this Engine").
  [[nodiscard]] Result<void> check(std::string_view what) const;

 private:
  int forks_;  ///< that lie between the first process and this one
};

}  // namespace ordo
