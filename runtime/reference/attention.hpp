// Attention backward on the CPU: the fp64 reference, and the executor that runs a Plan as the GPU does.
#pragma once

#include <cstdint>
#include <functional>
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

/// Gets the share of a long computation that is done, in [0, 1], now and then, on the calling thread. May be empty.
using Progress = std::function<void(double share)>;

/// Whether every tensor has the problem's number of elements. What follows, except execute(), takes that for granted.
ORDO_API Result<void> check_sizes(const AttentionBackward& problem, const HostInputs& inputs);

/// Random inputs: q, k, v, dO standard normal from a counter-based generator (the same on every platform), o and lse by
/// forward().
ORDO_API HostInputs random_inputs(const AttentionBackward& problem, float scale, std::uint64_t seed);

/// Only q, k, v and dO of random_inputs(): what costs little however long the sequences are.
ORDO_API HostInputs random_operands(const AttentionBackward& problem, std::uint64_t seed);

/// O (rounded to the dtype) and LSE in fp64 arithmetic from q, k, v. A fully masked row gives O = 0, LSE = -inf.
ORDO_API void forward(const AttentionBackward& problem, float scale, HostInputs& inputs);

/// The largest sum over keys of P = exp(scale*QK^T - LSE), over all rows: 1 when the LSE belongs to Q and K, less for a shard of
/// the keys with the LSE of all of them. Accumulate::exact needs it below 2.
ORDO_API double largest_probability_sum(const AttentionBackward& problem, float scale, const HostInputs& inputs);

/// Gradients in fp64 from the 16-bit inputs, with O as given. NaN and infinities reach the outputs they belong to and no others.
/// Threads: all cores.
ORDO_API ReferenceGradients gradients_fp64(const AttentionBackward& problem, float scale, const HostInputs& inputs,
                                           const Progress& progress = {});

/// The straightforward fp32 computation with P and dS rounded to the dtype and the same O, outputs rounded: the yardstick of the
/// error bound.
ORDO_API HostGradients gradients_straightforward(const AttentionBackward& problem, float scale, const HostInputs& inputs);

/// Runs `plan` tile by tile in its schedule's order with the GPU's rounding points (P and dS to the dtype, fp32 partials, dQ
/// summed in rank order or in fixed point). The same bits for every thread count and timing. Not the GPU's very bits: the order
/// of the additions inside one tensor-core instruction is not documented; and where a mask hides a pair, a NaN of an operand
/// stays out of what it does not belong to, while a tensor core multiplies it by the pair's zero. `threads`: 0 is one a core.
/// Accumulate::atomic adds in rank order here.
/// Errors: check_fit's, tensors of the wrong size, a scale that is not finite and positive, not enough memory.
ORDO_API Result<HostGradients> execute(const AttentionBackward& problem, const Plan& plan, float scale, const HostInputs& inputs,
                                       int threads = 0, const Progress& progress = {});

/// How coarse Accumulate::exact is on these inputs: the norm of the bounds R_i * C_d of dQ's elements over the norm of dQ. Each
/// partial is rounded to 2^-30 of its bound, so that dQ's relative error grows with this ratio; at 2^20 it is no better than
/// bf16's own.
ORDO_API double exact_bound_over_actual(const AttentionBackward& problem, float scale, const HostInputs& inputs,
                                        const HostGradients& gradients);

/// Relative error of one gradient in the Frobenius norm, with the bound of the contract:
/// ||x-ref|| <= max(5e-3*||ref||, 1.1*||straightforward-ref||) + 1e-6*||summed magnitudes||.
struct GradientError {
  double relative = 0;  ///< ||x-ref|| / ||ref||; infinite when x is non-finite where it should not be, or finite where it should
  double allowed = 0;   ///< the bound, relative to ||ref||; the least it can be, 5e-3, where that is enough
  bool within = false;
};
struct CheckResult {
  GradientError dq, dk, dv;
  [[nodiscard]] bool passed() const { return dq.within && dk.within && dv.within; }
};

/// Where non-finite results may stand.
enum class NonFinite {
  where_they_belong,  ///< exactly where the reference has them (or overflows the dtype, or the straightforward computation does)
  may_spread,         ///< elsewhere too: a tensor core multiplies a NaN by the zero of a masked pair of its tile
};

/// Compares with gradients_fp64. Elements that are non-finite in the reference must be non-finite in `got` and count for nothing
/// else.
ORDO_API CheckResult compare(const AttentionBackward& problem, float scale, const HostInputs& inputs, const HostGradients& got,
                             NonFinite non_finite = NonFinite::where_they_belong, const Progress& progress = {});

}  // namespace ordo::reference
