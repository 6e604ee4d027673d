// The part of check_fit that costs nothing: everything but the proof of the schedule.
#pragma once

#include "ordo/plan.hpp"

namespace ordo {

/// `plan` was made for such a problem, and the problem's sizes are within what its kernels count and sum.
/// Both must be valid by themselves; resident sets are not looked at.
Result<void> check_sizes(const AttentionBackward& problem, const Plan& plan);

/// `schedule` exists for `mask`.
Result<void> check_mask(Schedule schedule, Mask mask);

}  // namespace ordo
