// The generated forward, which makes the O and LSE that a backward starts from.
#pragma once

#include "ordo/kernel_source.hpp"
#include "ordo/problem.hpp"
#include "templates/attention_forward/config.cuh"

namespace ordo {

/// What the generator writes into the forward kernel of a problem: lengths, batch and heads are run-time parameters.
attention_forward::Config forward_config(const AttentionBackward& problem);

/// The forward kernel ("forward", entry ordo_forward) for a valid problem's dtype, head_dim and mask. Pure.
ORDO_API KernelSource generate_attention_forward(const AttentionBackward& problem, const Target& target);

}  // namespace ordo
