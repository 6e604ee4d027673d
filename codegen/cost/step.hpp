// What one tile step asks of an SM, resource by resource.
#pragma once

#include <string_view>

#include "codegen/cost/constants.hpp"
#include "ordo/plan.hpp"

namespace ordo::cost {

/// Clocks that each resource of an SM is busy for one step of a CTA: a Q tile by a KV tile.
struct StepClocks {
  double tensor = 0;  ///< five products
  double shared = 0;  ///< operands, dS, dQ staging, TMA
  double l2 = 0;      ///< Q and dO in, dQ out: the larger, the two directions are apart
  double exp = 0;     ///< one ex2 an element
  [[nodiscard]] double bound() const;
  [[nodiscard]] std::string_view bound_by() const;  ///< "tensor cores", "shared memory", "L2", "exponentials"
};

/// The tiles of `plan` on a GPU with these constants. The formulas and their sources are in README.md beside this file.
StepClocks step_clocks(const Plan& plan, const Constants& constants);

}  // namespace ordo::cost
