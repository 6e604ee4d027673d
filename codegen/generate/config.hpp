// A Plan as the device templates see it.
#pragma once

#include "ordo/plan.hpp"
#include "templates/attention_backward/config.cuh"
#include "templates/attention_backward/shared_memory.cuh"

namespace ordo {

/// The Config that the generator writes into the kernels of `plan` (valid plans only).
attention_backward::Config device_config(const Plan& plan);

static_assert(static_cast<int>(Schedule::arrival) == static_cast<int>(schedule::Kind::arrival));
static_assert(static_cast<int>(Accumulate::exact) == static_cast<int>(attention_backward::Accumulate::exact));

}  // namespace ordo
