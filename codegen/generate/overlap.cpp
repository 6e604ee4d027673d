#include "codegen/generate/overlap.hpp"

#include <fmt/format.h>

#include "codegen/generate/expand.hpp"
#include "codegen/generate/wgmma.hpp"

namespace ordo {
namespace {

/// An enumerator's name in the templates.
std::string enumerator(std::string_view name) {
  std::string out(name);
  for (char& c : out)
    if (c == '-') c = '_';
  return out;
}

/// Names nothing that is not baked: plans that differ in run-time fields share kernels.
std::string plan_file(const OverlapPlan& plan) {
  const overlap::Config c = device_config(plan);
  std::string text = fmt::format(
      "namespace ordo::overlap {{\n"
      "inline constexpr Config config{{\n    .op = Op::{},\n    .ranks = {},\n    .fp16 = {},\n    .a_column = {},\n"
      "    .b_column = {},\n    .out_fp32 = {},\n    .bias = {},\n    .activation = Activation::{},\n    .partial_fp32 = {},\n"
      "    .direct = {},\n    .tile_m = {},\n    .tile_n = {},\n    .stages = {},\n    .cluster = {},\n    .store_buffers = "
      "{},\n}};\n"
      "}}  // namespace ordo::overlap\n\nnamespace ordo {{\n{}",
      enumerator(to_string(plan.op)), c.ranks, c.fp16, c.a_column, c.b_column, c.out_fp32, c.bias, to_string(plan.activation),
      c.partial_fp32, c.direct, c.tile_m, c.tile_n, c.stages, c.cluster, c.store_buffers, conversion_wrappers(plan.dtype));
  for (const bool first : {false, true})
    text += wgmma_wrapper({.n = c.tile_n, .transpose_a = c.a_column, .transpose_b = !c.b_column, .first = first}, plan.dtype);
  return text + "}  // namespace ordo\n";
}

}  // namespace

overlap::Config device_config(const OverlapPlan& plan) {
  overlap::Config config{.op = static_cast<overlap::Op>(plan.op),
                         .ranks = plan.ranks,
                         .fp16 = plan.dtype == DType::fp16,
                         .a_column = plan.a == Storage::column,
                         .b_column = plan.b == Storage::column,
                         .out_fp32 = plan.out == OutputType::fp32,
                         .bias = plan.bias,
                         .activation = static_cast<overlap::Activation>(plan.activation),
                         .partial_fp32 = plan.partial == OutputType::fp32,
                         .direct = plan.transport == Transport::direct,
                         .tile_m = plan.tile_m,
                         .tile_n = plan.tile_n,
                         .stages = plan.stages,
                         .cluster = plan.cluster,
                         .store_buffers = plan.store_buffers};
  return config;
}

Result<KernelSource> generate(const OverlapPlan& plan, const Target& target) {
  if (auto valid = plan.validate(); !valid) return valid.error();
  return KernelSource{"overlap",   "ordo_overlap",    expand_template("overlap/main.cuh", "overlap/plan.cuh", plan_file(plan)),
                      target.arch, overlap::kThreads, overlap::layout_of(device_config(plan)).bytes};
}

}  // namespace ordo
