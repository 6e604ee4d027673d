// OverlapPlan: names, canonical text, the rules of the type itself, and whether a plan fits a problem.
#include <fmt/format.h>

#include "codegen/fields.hpp"
#include "codegen/generate/overlap.hpp"
#include "codegen/overlap/fields.hpp"
#include "codegen/overlap/planner.hpp"
#include "ordo/overlap.hpp"
#include "templates/overlap/params.cuh"

namespace ordo {
namespace {

constexpr std::string_view kNoun = "overlap-plan";
constexpr int kMostSharedBytes = 232448;  // a block may opt in to, CUDA C++ Programming Guide, compute capability 9.0

Error invalid(std::string message) { return {ErrorCode::invalid_plan, "plan: " + std::move(message)}; }

Result<void> check_ranges(const OverlapPlan& plan) {
  const struct {
    std::string_view name;
    int value, low, high;
  } ranges[] = {{"ranks", plan.ranks, 1, overlap::kMostRanks},
                {"stages", plan.stages, 2, 12},
                {"store_buffers", plan.store_buffers, 1, 8},
                {"cluster", plan.cluster, 1, 2},
                {"group_m", plan.group_m, 1, 4096},
                {"workers", plan.workers, 1, 1024},
                {"sub_slices", plan.sub_slices, 1, 256}};
  for (const auto& range : ranges) {
    if (range.value < range.low || range.value > range.high)
      return invalid(fmt::format("{} is {}; it must be within {} .. {}", range.name, range.value, range.low, range.high));
  }
  return {};
}

/// The tiles that a kernel exists for: two consumer warpgroups of 64 rows, accumulators in registers.
Result<void> check_tile(const OverlapPlan& plan) {
  const bool width = plan.tile_n % 64 == 0 && plan.tile_n >= 64 && plan.tile_n <= 256;
  if (plan.tile_m != 128 || plan.tile_k != 64 || !width)
    return invalid(
        fmt::format("no kernel exists for tile_m {}, tile_n {}, tile_k {}; there are tile_m 128, tile_n 64, "
                    "128, 192 and 256, tile_k 64",
                    plan.tile_m, plan.tile_n, plan.tile_k));
  if (plan.b == Storage::row && plan.tile_n % (64 * plan.cluster) != 0)
    return invalid(
        fmt::format("b stored by rows is loaded 64 columns at a time, and a cluster of {} shares tile_n {}; use cluster 1 "
                    "or a tile_n that {} divides",
                    plan.cluster, plan.tile_n, 64 * plan.cluster));
  const int bytes = overlap::layout_of(device_config(plan)).bytes;
  if (bytes > kMostSharedBytes)
    return invalid(
        fmt::format("tile {}x{}, stages {} and store_buffers {} need {} bytes of shared memory a block; sm_90a has {}; use "
                    "fewer stages or store_buffers",
                    plan.tile_m, plan.tile_n, plan.stages, plan.store_buffers, bytes, kMostSharedBytes));
  return {};
}

Result<void> check_ring(const OverlapPlan& plan) {
  if (plan.route == OverlapRoute::direct) return {};
  auto exchange = overlap::exchange_of(plan.op);
  if (!exchange) return invalid("op gemm exchanges nothing; use route direct");
  if (auto runs = overlap::check_route(*exchange, overlap::Route::ring); !runs) return invalid(runs.error().message);
  return {};
}

/// What one rank or a slice at rest cannot have.
Result<void> check_exchange(const OverlapPlan& plan) {
  const bool leaves = plan.op == OverlapOp::gemm_reduce_scatter || plan.op == OverlapOp::gemm_all_to_all;
  if (plan.transport == Transport::direct && !leaves)
    return invalid(
        fmt::format("transport direct is for slices that leave (gemm-reduce-scatter, gemm-all-to-all), not for op {}; use "
                    "copy-engine",
                    to_string(plan.op)));
  const bool reduces = plan.op == OverlapOp::gemm_reduce_scatter || plan.op == OverlapOp::gemm_all_reduce;
  if (plan.partial == OutputType::fp32 && !reduces)
    return invalid(fmt::format("partial fp32 is for partial sums, and op {} has none; use partial same", to_string(plan.op)));
  if (plan.op == OverlapOp::gemm && (plan.ranks != 1 || plan.sub_slices != 1))
    return invalid(
        fmt::format("op gemm exchanges nothing: ranks is {} and sub_slices {}; both must be 1", plan.ranks, plan.sub_slices));
  if (plan.a == Storage::column && (plan.op == OverlapOp::all_gather_gemm || plan.op == OverlapOp::all_to_all_gemm))
    return invalid(fmt::format("a stored by columns cannot arrive in slices of rows; op {} has a=row only", to_string(plan.op)));
  return {};
}

/// "ranks 2 instead of 4, ..." for the fields that the kernel is made for.
std::string differences(const OverlapGemm& problem, const OverlapPlan& plan) {
  std::string list;
  const auto differ = [&](std::string_view name, const auto& asked, const auto& planned) {
    if (asked != planned) list += fmt::format("{}{} is {} and the plan's {}", list.empty() ? "" : ", ", name, asked, planned);
  };
  differ("op", to_string(problem.op), to_string(plan.op));
  differ("ranks", problem.ranks, std::int64_t{plan.ranks});
  differ("dtype", to_string(problem.dtype), to_string(plan.dtype));
  differ("a", to_string(problem.a), to_string(plan.a));
  differ("b", to_string(problem.b), to_string(plan.b));
  differ("out", to_string(problem.out), to_string(plan.out));
  differ("bias", problem.bias, plan.bias);
  differ("activation", to_string(problem.activation), to_string(plan.activation));
  return list;
}

std::vector<text::Field> fields_of(OverlapPlan& p) {
  std::vector<text::Field> fields{text::named_field("op", p.op, &parse_overlap_op)};
  add_kernel_fields(fields, p);
  for (text::Field& field : std::vector<text::Field>{
           text::integer_field("tile_m", p.tile_m), text::integer_field("tile_n", p.tile_n),
           text::integer_field("tile_k", p.tile_k), text::integer_field("stages", p.stages),
           text::integer_field("store_buffers", p.store_buffers), text::integer_field("cluster", p.cluster),
           text::integer_field("group_m", p.group_m), text::integer_field("workers", p.workers),
           text::integer_field("sub_slices", p.sub_slices), text::named_field("partial", p.partial, &parse_output_type),
           text::named_field("transport", p.transport, &parse_transport),
           text::named_field("route", p.route, &parse_overlap_route)})
    fields.push_back(std::move(field));
  return fields;
}

}  // namespace

std::string_view to_string(Transport transport) {
  switch (transport) {
    case Transport::copy_engine:
      return "copy-engine";
    case Transport::direct:
      return "direct";
  }
  return "unknown";
}

Result<Transport> parse_transport(std::string_view text) {
  return text::read_name(text, "transport", std::array{Transport::copy_engine, Transport::direct});
}

static_assert(static_cast<int>(OverlapRoute::ring) == static_cast<int>(overlap::Route::ring));

std::string_view to_string(OverlapRoute route) { return overlap::to_string(static_cast<overlap::Route>(route)); }

Result<OverlapRoute> parse_overlap_route(std::string_view text) {
  auto route = overlap::parse_route(text);
  if (!route) return route.error();
  return static_cast<OverlapRoute>(*route);
}

Result<void> OverlapPlan::validate() const {
  if (to_string(op) == "unknown" || to_string(dtype) == "unknown" || to_string(a) == "unknown" || to_string(b) == "unknown" ||
      to_string(out) == "unknown" || to_string(activation) == "unknown" || to_string(partial) == "unknown" ||
      to_string(transport) == "unknown" || to_string(route) == "unknown") {
    return invalid("op, dtype, a, b, out, activation, partial, transport or route is not one of its named values");
  }
  if (auto checked = check_ranges(*this); !checked) return checked;
  if (auto checked = check_exchange(*this); !checked) return checked;
  if (auto checked = check_ring(*this); !checked) return checked;
  return check_tile(*this);
}

std::string to_text(const OverlapPlan& p) {
  OverlapPlan copy = p;
  return text::write_fields(kNoun, fields_of(copy));
}

Result<OverlapPlan> parse_overlap_plan(std::string_view text) {
  OverlapPlan p;
  if (auto read = text::read_fields(text, kNoun, fields_of(p), ErrorCode::invalid_plan); !read) return read.error();
  if (auto valid = p.validate(); !valid) return valid.error();
  return p;
}

Result<void> check_fit(const OverlapGemm& problem, const OverlapPlan& plan) {
  if (auto valid = problem.validate(); !valid) return valid;
  if (auto valid = plan.validate(); !valid) return valid;
  if (const std::string list = differences(problem, plan); !list.empty())
    return invalid(fmt::format("it was made for another problem: {}; make a plan for this one", list));
  return {};
}

}  // namespace ordo
