// From a loaded kernel to work on a stream: parameters and tensor maps of one overlapped product.
#pragma once

#include <cuda.h>

#include "ordo/overlap_kernel.hpp"
#include "runtime/driver.hpp"

namespace ordo {

/// Pointers and strides are what TMA needs, and the exchange is complete. Errors: invalid_argument, naming the tensor or member.
Result<void> check_overlap_arguments(const OverlapGemm& problem, const OverlapPlan& plan, const OverlapGemmTensors& tensors,
                                     const OverlapExchange& exchange);

/// Enqueues the kernel. The problem fits the plan and the arguments are checked. `resident_clusters`: what the device holds at
/// once.
Result<void> launch_overlap_gemm(const Driver& driver, CUfunction function, int resident_clusters, const OverlapGemm& problem,
                                 const OverlapPlan& plan, const OverlapGemmTensors& tensors, const OverlapExchange& exchange,
                                 CUstream stream);

}  // namespace ordo
