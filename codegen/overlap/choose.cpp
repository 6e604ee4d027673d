// From an OverlapGemm to its plan: the tile by counting waves, the sub-slices and the method by the planner's simulation.
#include <algorithm>
#include <array>

#include "codegen/overlap/planner.hpp"

namespace ordo {
namespace overlap {

Result<Exchange> exchange_of(OverlapOp op) {
  switch (op) {
    case OverlapOp::all_gather_gemm:
      return Exchange::all_gather;
    case OverlapOp::gemm_reduce_scatter:
      return Exchange::reduce_scatter;
    case OverlapOp::gemm_all_reduce:
      return Exchange::all_reduce;
    case OverlapOp::gemm_all_to_all:
      return Exchange::to_all;
    case OverlapOp::all_to_all_gemm:
      return Exchange::all_to_all;
    case OverlapOp::gemm:
      break;
  }
  return Error{ErrorCode::invalid_problem, "op gemm exchanges nothing: launch its OverlapGemmKernel without a communicator"};
}

Result<Case> case_of(const OverlapGemm& problem, OutputType partial, bool peer_access) {
  auto exchange = exchange_of(problem.op);
  if (!exchange) return exchange.error();
  const Pattern pattern = pattern_of(*exchange);
  const bool wide = (pattern == Pattern::reduce && partial == OutputType::fp32) ||
                    (pattern == Pattern::scatter && problem.out == OutputType::fp32);
  return Case{.exchange = *exchange,
              .ranks = static_cast<int>(problem.ranks),
              .m = problem.m,
              .n = problem.n,
              .k = problem.k,
              .element_bytes = wide ? 4 : 2,
              .peer_access = peer_access};
}

}  // namespace overlap

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Rows of the tallest slice, columns of the widest, and how many there are.
struct Slices {
  std::int64_t rows, columns, count;
};

Slices slices_of(const OverlapGemm& p) {
  switch (p.op) {
    case OverlapOp::gemm:
    case OverlapOp::all_to_all_gemm:
      return {p.m, p.n, 1};
    case OverlapOp::gemm_all_to_all:
      return {p.m, ceil_div(p.n, p.ranks), p.ranks};
    default:
      return {ceil_div(p.m, p.ranks), p.n, p.ranks};
  }
}

/// Time of the product, in columns of tiles that one cluster computes: whole waves, and what a narrower tile costs in operand
/// traffic, which is estimated.
double tile_cost(const OverlapGemm& problem, const OverlapPlan& plan) {
  const Slices s = slices_of(problem);
  const std::int64_t unit = std::int64_t{plan.tile_m} * plan.cluster;
  const std::int64_t tiles = s.count * ceil_div(s.rows, unit) * ceil_div(s.columns, plan.tile_n);
  const double narrow = plan.tile_n == 256 ? 1 : plan.tile_n == 192 ? 1.03 : plan.tile_n == 128 ? 1.08 : 1.4;
  return static_cast<double>(ceil_div(tiles, plan.workers) * plan.tile_n) * narrow;
}

/// The tile and how it is pipelined.
OverlapPlan tiled(const OverlapGemm& problem, const Target& target, OverlapRoute route) {
  OverlapPlan fixed{.op = problem.op,
                    .ranks = static_cast<int>(problem.ranks),
                    .dtype = problem.dtype,
                    .a = problem.a,
                    .b = problem.b,
                    .out = problem.out,
                    .bias = problem.bias,
                    .activation = problem.activation,
                    .route = route};
  fixed.workers = std::max(1, target.sm_count / fixed.cluster);
  OverlapPlan best = fixed;
  for (const int width : {192, 128}) {
    OverlapPlan plan = fixed;
    plan.tile_n = width;
    if (width == 128) plan.stages = 6;
    while (!plan.validate() && plan.stages > 4) --plan.stages;
    if (plan.validate() && tile_cost(problem, plan) < tile_cost(problem, best)) best = plan;
  }
  return best;
}

}  // namespace

Result<OverlapChoice> make_overlap_plan(const OverlapGemm& problem, const Target& target, bool peer_access, OverlapRoute route) {
  if (auto valid = problem.validate(); !valid) return valid.error();
  OverlapChoice out;
  out.plan = tiled(problem, target, route);
  if (auto valid = out.plan.validate(); !valid) return valid.error();
  if (problem.op == OverlapOp::gemm) {
    out.overlap = false;
    out.reason = "op gemm exchanges nothing";
    return out;
  }
  auto asked = overlap::case_of(problem, out.plan.partial, peer_access);
  if (!asked) return asked.error();
  auto advice = overlap::advise(*asked, target, static_cast<overlap::Route>(route));
  if (!advice) return advice.error();
  out.overlap = advice->overlap;
  out.reason = advice->reason;
  out.sequential_ms = advice->sequential * 1e3;
  out.exposed_ms = (advice->overlap ? advice->exposed : advice->communication) * 1e3;
  out.predicted_ms = advice->overlap ? advice->overlapped * 1e3 : out.sequential_ms;
  // A chunk is at least a cluster's rows of tiles, and a group of them no taller than a chunk: it is complete, or needed, as a
  // whole.
  const std::int64_t units = ceil_div(slices_of(problem).rows, std::int64_t{out.plan.tile_m} * out.plan.cluster);
  out.plan.sub_slices = static_cast<int>(std::min<std::int64_t>(advice->sub_slices, units));
  out.plan.group_m = static_cast<int>(std::min<std::int64_t>(out.plan.group_m, ceil_div(units, out.plan.sub_slices)));
  return out;
}

}  // namespace ordo
