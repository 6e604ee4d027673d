// The tables of visits (schedule arrival, masks by expression) on the devices that launch them.
#pragma once

#include <cuda.h>

#include <memory>

#include "ordo/plan.hpp"
#include "ordo/problem.hpp"
#include "runtime/kernel_set.hpp"

namespace ordo {

/// Device copies of one plan's tables, one for each shape in each context. Thread-safe. A launch finds its copy in well under a
/// microsecond.
class ArrivalTables {
 public:
  ArrivalTables();
  ArrivalTables(ArrivalTables&&) noexcept;
  ArrivalTables& operator=(ArrivalTables&&) = delete;
  /// Frees the copies. No launch may be in flight, and no graph that holds one may be replayed later.
  ~ArrivalTables();

  /// The table in the current context, for the kernels loaded there: made, allocated and uploaded at the first call, which waits
  /// for `stream` and is refused while it captures. It lives as long as this object; graphs may hold it. `problem` fits `plan`.
  [[nodiscard]] Result<const unsigned int*> get(const LoadedKernels& kernels, const AttentionBackward& problem, const Plan& plan,
                                                CUstream stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ordo
