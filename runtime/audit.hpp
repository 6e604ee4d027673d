// Predicted registers and spills of plans against those of ptxas. Needs NVRTC, no GPU.
#pragma once

#include <string>
#include <vector>

#include "ordo/error.hpp"
#include "ordo/plan.hpp"
#include "ordo/target.hpp"
#include "runtime/kernel_builder.hpp"

namespace ordo {

struct AuditRow {
  std::string key;  ///< of the main kernel in the cache
  Plan plan;
  int predicted_registers = 0, actual_registers = 0;      ///< a consumer thread, spilled values counted
  int predicted_spill_bytes = 0, actual_spill_bytes = 0;  ///< of the main kernel, stores and loads
  /// How far off a prediction of registers may be.
  static constexpr int kTolerance = 10;
  [[nodiscard]] bool registers_agree() const {
    return predicted_registers - actual_registers <= kTolerance && actual_registers - predicted_registers <= kTolerance;
  }
  [[nodiscard]] bool spill_agrees() const { return (predicted_spill_bytes != 0) == (actual_spill_bytes != 0); }
};

/// Every kind of main kernel: element types, head_dim and cluster, masks, MHA and GQA, schedules, accumulation; and of `ordered`
/// those with a baked shape and those with the schedule's state in the consumer.
ORDO_API std::vector<Plan> support_matrix();

/// Plans whose main kernels spill: consumers with fewer registers than they need, or producers left with too few.
ORDO_API std::vector<Plan> spilling_plans();

/// Builds the main kernel and the probe of the consumer path (see generate_probe), or takes both from the cache. `builder` must
/// allow spills. Thread-safe.
ORDO_API Result<AuditRow> audit(const Plan& plan, const Target& target, KernelBuilder& builder);

}  // namespace ordo
