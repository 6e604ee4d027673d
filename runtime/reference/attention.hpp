// Attention backward on the CPU: the fp64 reference, and the executor that runs a Plan as the GPU does.
#pragma once

#include <cstdint>
#include <vector>

#include "ordo/error.hpp"
#include "ordo/plan.hpp"
#include "ordo/problem.hpp"

namespace ordo::reference {

/// Host tensors of one problem, contiguous in the layouts of AttentionBackward; 16-bit elements hold bf16 or fp16 bits.
struct HostInputs {
  std::vector<std::uint16_t> q, k, v, o, d_o;
  std::vector<float> lse;
};
struct HostGradients {
  std::vector<std::uint16_t> dq, dk, dv;
};
/// The same three in fp64.
struct ReferenceGradients {
  std::vector<double> dq, dk, dv;
};

/// Random inputs: q, k, v, dO standard normal from a counter-based generator (the same on every platform), o and lse by forward().
ORDO_API HostInputs random_inputs(const AttentionBackward& problem, float scale, std::uint64_t seed);

/// O (rounded to the dtype) and LSE in fp64 arithmetic from q, k, v. A fully masked row gives O = 0, LSE = -inf.
ORDO_API void forward(const AttentionBackward& problem, float scale, HostInputs& inputs);

/// Gradients in fp64 from the 16-bit inputs, with O as given. Threads: all cores.
ORDO_API ReferenceGradients gradients_fp64(const AttentionBackward& problem, float scale, const HostInputs& inputs);

/// The straightforward fp32 computation with P and dS rounded to the dtype and the same O, outputs rounded: the yardstick of the
/// error bound.
ORDO_API HostGradients gradients_straightforward(const AttentionBackward& problem, float scale, const HostInputs& inputs);

/// Runs `plan` tile by tile in its schedule's order with the GPU's rounding points (P and dS to the dtype, fp32 partials, dQ summed
/// in rank order or in fixed point). The same bits for every thread count and timing. Not the GPU's very bits: the order of the
/// additions inside one tensor-core instruction is not documented.
ORDO_API Result<HostGradients> execute(const AttentionBackward& problem, const Plan& plan, float scale,
                                       const HostInputs& inputs, int threads = 0);

/// Relative error of one gradient in the Frobenius norm, with the bound of the contract:
/// ||x-ref|| <= max(5e-3*||ref||, 1.1*||straightforward-ref||) + 1e-6*||summed magnitudes||.
struct GradientError {
  double relative = 0;       ///< ||x-ref|| / ||ref||, inf when x has a non-finite element the reference has not
  double allowed = 0;        ///< the bound, relative to ||ref||
  bool within = false;
};
struct CheckResult {
  GradientError dq, dk, dv;
  [[nodiscard]] bool passed() const { return dq.within && dk.within && dv.within; }
};
ORDO_API CheckResult compare(const AttentionBackward& problem, float scale, const HostInputs& inputs, const HostGradients& got);

}  // namespace ordo::reference
