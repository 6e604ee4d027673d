// Plan to CUDA text: the templates of a kernel, in include order, with the one substituted file (attention_backward/plan.cuh)
// replaced by the plan's Config and the wrappers it needs.
#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/expression/mask.hpp"
#include "codegen/generate/config.hpp"
#include "codegen/generate/expand.hpp"
#include "codegen/generate/mask_text.hpp"
#include "codegen/generate/wgmma.hpp"
#include "ordo/kernel_source.hpp"

namespace ordo {
namespace {

constexpr std::string_view kPlanFile = "attention_backward/plan.cuh";

std::string config_text(const Plan& plan, Flavour flavour) {
  const attention_backward::Config c = device_config(plan);
  return fmt::format(
      "inline constexpr Config config{{\n"
      "    .fp16 = {},\n    .head_dim = {},\n    .causal = {},\n    .mask_expression = {},\n    .mask_reads_head = {},\n    "
      ".group = {},\n    .schedule = schedule::Kind::{},\n"
      "    .accumulate = Accumulate::{},\n    .tile_q = {},\n    .tile_kv = {},\n    .stages = {},\n    .cluster = {},\n"
      "    .dq_buffers = {},\n    .state_in_consumer = {},\n    .consumer_registers = {},\n    .static_shape = {},\n    "
      ".seqlen_q = {},\n    .seqlen_k = {},\n"
      "    .kv_heads = {},\n    .walks = {},\n{}}};\n",
      c.fp16, c.head_dim, c.causal, c.mask_expression, c.mask_reads_head, c.group, to_string(plan.schedule),
      to_string(plan.accumulate), c.tile_q, c.tile_kv, c.stages, c.cluster, c.dq_buffers, c.state_in_consumer,
      c.consumer_registers, c.static_shape, c.seqlen_q, c.seqlen_k, c.kv_heads, c.walks,
      flavour == Flavour::stalls ? "    .measure_stalls = true,\n" : "");
}

/// What a kernel of `plan` may rely on: all of a static shape.
expression::Domain known_of(const Plan& plan) {
  if (!plan.static_shape) return any_shape();
  const StaticShape& shape = *plan.static_shape;
  return expression::mask_domain({.batch = shape.batch,
                                  .seqlen_q = shape.seqlen_q,
                                  .seqlen_k = shape.seqlen_k,
                                  .heads = shape.kv_heads * plan.group,
                                  .kv_heads = shape.kv_heads});
}

/// Every wgmma form of the main kernel, named by its product.
std::vector<WgmmaForm> main_forms(const Plan& plan) {
  const std::vector<WgmmaForm> products{
      {.n = plan.tile_q},                                                 // S, dP with K, V in shared memory
      {.n = plan.tile_q, .a_in_registers = true},                         // S, dP with K, V in registers
      {.n = plan.head_dim, .a_in_registers = true, .transpose_b = true},  // dV, dK
      {.n = 64, .transpose_a = true, .transpose_b = true},                // dQ
  };
  std::vector<WgmmaForm> forms = products;
  for (WgmmaForm form : products)
    if (!form.a_in_registers) {
      form.first = true;
      forms.push_back(form);
    }
  return forms;
}

/// Names nothing that is not baked: plans that differ in run-time fields (workers, head_group, shift_stride) share kernels.
std::string plan_file(const Plan& plan, Flavour flavour, bool with_wgmma) {
  std::string text =
      fmt::format("namespace ordo::attention_backward {{\n{}{}}}  // namespace ordo::attention_backward\n\nnamespace ordo {{\n{}",
                  config_text(plan, flavour), visible_text(plan.mask, known_of(plan)), conversion_wrappers(plan.dtype));
  if (with_wgmma)
    for (const WgmmaForm& form : main_forms(plan)) text += wgmma_wrapper(form, plan.dtype);
  return text + "}  // namespace ordo\n";
}

KernelSource make_source(const Plan& plan, const Target& target, Flavour flavour, std::string_view name, int threads,
                         int shared_bytes) {
  std::string text = expand_template(fmt::format("attention_backward/{}.cuh", name), kPlanFile,
                                     plan_file(plan, flavour, name == "main" || name == "probe"));
  return {std::string(name), fmt::format("ordo_{}", name), std::move(text), target.arch, threads, shared_bytes};
}

}  // namespace

attention_backward::Config device_config(const Plan& plan) {
  const StaticShape shape = plan.static_shape.value_or(StaticShape{});
  const expression::Mask* const expression = plan.mask.expression();
  return {.fp16 = plan.dtype == DType::fp16,
          .head_dim = plan.head_dim,
          .causal = plan.mask == Mask::causal,
          .mask_expression = expression != nullptr,
          .mask_reads_head = expression != nullptr && (expression->expression.uses(expression::Variable::head) ||
                                                       expression->expression.uses(expression::Variable::batch)),
          .group = plan.group,
          .schedule = static_cast<schedule::Kind>(plan.schedule),
          .accumulate = static_cast<attention_backward::Accumulate>(plan.accumulate),
          .tile_q = plan.tile_q,
          .tile_kv = plan.tile_kv,
          .stages = plan.stages,
          .cluster = plan.cluster,
          .dq_buffers = plan.dq_buffers,
          .state_in_consumer = plan.schedule_state == ScheduleState::consumer,
          .consumer_registers = plan.consumer_registers,
          .static_shape = plan.static_shape.has_value(),
          .seqlen_q = static_cast<int>(shape.seqlen_q),
          .seqlen_k = static_cast<int>(shape.seqlen_k),
          .kv_heads = static_cast<int>(shape.kv_heads),
          .walks = static_cast<int>(shape.batch * shape.kv_heads)};
}

Result<KernelSource> generate_probe(const Plan& plan, const Target& target) {
  if (auto valid = plan.validate(); !valid) return valid.error();
  return make_source(plan, target, Flavour::normal, "probe", attention_backward::kConsumerThreads,
                     attention_backward::layout_of(device_config(plan)).bytes);
}

Result<std::vector<KernelSource>> generate(const Plan& plan, const Target& target, Flavour flavour) {
  if (auto valid = plan.validate(); !valid) return valid.error();
  std::vector<KernelSource> sources;
  sources.push_back(make_source(plan, target, flavour, "main", attention_backward::kMainThreads,
                                attention_backward::layout_of(device_config(plan)).bytes));
  sources.push_back(make_source(plan, target, Flavour::normal, "preprocess", attention_backward::kElementwiseThreads, 0));
  if (plan.accumulate != Accumulate::ordered)
    sources.push_back(
        make_source(plan, target, Flavour::normal, "convert", attention_backward::convert_threads(device_config(plan)), 0));
  if (plan.accumulate == Accumulate::exact)
    sources.push_back(make_source(plan, target, Flavour::normal, "scales", attention_backward::kElementwiseThreads, 0));
  return sources;
}

}  // namespace ordo
