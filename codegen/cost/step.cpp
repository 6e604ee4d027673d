#include "codegen/cost/step.hpp"

#include <algorithm>

namespace ordo::cost {
namespace {

constexpr double kSharedBytes = 128;  // a clock and SM
constexpr double kExponentials = 16;  // a clock and SM

/// Bytes that cross shared memory in a step. wgmma reads B, and A where it is not in registers, from there; each warpgroup for
/// itself, and for each of its blocks of 64 keys.
double shared_bytes(const Plan& plan) {
  const double q = 2.0 * plan.tile_q * plan.head_dim;    // a Q or dO tile
  const double kv = 2.0 * plan.tile_kv * plan.head_dim;  // a K or V tile
  const double ds = 2.0 * plan.tile_q * plan.tile_kv;
  const double dq = 4.0 * plan.tile_q * plan.head_dim;
  const int blocks = plan.tile_kv / 64;
  const double scores = 2 * (kv + blocks * q);  // S and dP: A is the block's part of K or V
  const double outputs = 2 * blocks * q;        // dV and dK: A in registers
  // dQ, a slice of 64 columns at a time: all of dS and that part of K. A cluster's CTA has one slice over both KV tiles.
  const int slices = plan.head_dim / 64;
  const double dq_operands = slices * ds + kv;
  const double staging = 2 * dq / plan.cluster;  // written by consumers, read by the copy engine
  const double exchange = plan.cluster == 2 ? 2 * ds : 0;
  const double fill = 2 * q;
  return scores + outputs + dq_operands + ds + staging + exchange + fill;
}

}  // namespace

double StepClocks::bound() const { return std::max({tensor, shared, l2, exp}); }

std::string_view StepClocks::bound_by() const {
  const double most = bound();
  return most == shared ? "shared memory" : most == tensor ? "tensor cores" : most == l2 ? "L2" : "exponentials";
}

StepClocks step_clocks(const Plan& plan, const Constants& constants) {
  const double tile = static_cast<double>(plan.tile_q) * plan.tile_kv;
  const double in = 2 * 2.0 * plan.tile_q * plan.head_dim / plan.cluster;  // multicast to the cluster
  const double out = 4.0 * plan.tile_q * plan.head_dim / plan.cluster;     // summed over the cluster first
  return {10 * tile * plan.head_dim / constants.tensor_flops, shared_bytes(plan) / kSharedBytes,
          std::max(in, out) / constants.l2_bytes, tile / kExponentials};
}

}  // namespace ordo::cost
