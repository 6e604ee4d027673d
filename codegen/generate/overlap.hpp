// An OverlapPlan as the device templates see it.
#pragma once

#include "ordo/overlap.hpp"
#include "templates/overlap/config.cuh"
#include "templates/overlap/shared_memory.cuh"

namespace ordo {

/// The Config that the generator writes into the kernel of `plan`.
overlap::Config device_config(const OverlapPlan& plan);

static_assert(static_cast<int>(OverlapOp::all_to_all_gemm) == static_cast<int>(overlap::Op::all_to_all_gemm));
static_assert(static_cast<int>(Activation::silu) == static_cast<int>(overlap::Activation::silu));

}  // namespace ordo
