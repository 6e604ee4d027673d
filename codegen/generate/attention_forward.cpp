#include "codegen/generate/attention_forward.hpp"

#include <fmt/format.h>

#include "codegen/generate/expand.hpp"
#include "codegen/generate/mask_text.hpp"
#include "codegen/generate/wgmma.hpp"

namespace ordo {
namespace {

std::string plan_file(const AttentionBackward& problem) {
  const attention_forward::Config c = forward_config(problem);
  std::string text = fmt::format(
      "namespace ordo::attention_forward {{\n"
      "inline constexpr Config config{{\n    .fp16 = {},\n    .head_dim = {},\n    .causal = {},\n    .mask_expression = "
      "{},\n}};\n{}"
      "}}  // namespace ordo::attention_forward\n\nnamespace ordo {{\n{}",
      c.fp16, c.head_dim, c.causal, c.mask_expression, visible_text(problem.mask, any_shape()),
      conversion_wrappers(problem.dtype));
  const WgmmaForm forms[] = {
      {.n = attention_forward::kTileKv},                               // S = Q K^T
      {.n = attention_forward::kTileKv, .first = true},                // its first
      {.n = c.head_dim, .a_in_registers = true, .transpose_b = true},  // O += P V
  };
  for (const WgmmaForm& form : forms) text += wgmma_wrapper(form, problem.dtype);
  return text + "}  // namespace ordo\n";
}

}  // namespace

attention_forward::Config forward_config(const AttentionBackward& problem) {
  return {.fp16 = problem.dtype == DType::fp16,
          .head_dim = static_cast<int>(problem.head_dim),
          .causal = problem.mask == Mask::causal,
          .mask_expression = problem.mask.expression() != nullptr};
}

KernelSource generate_attention_forward(const AttentionBackward& problem, const Target& target) {
  return {"forward",
          "ordo_forward",
          expand_template("attention_forward/forward.cuh", "attention_forward/plan.cuh", plan_file(problem)),
          target.arch,
          attention_forward::kThreads,
          attention_forward::layout_of(forward_config(problem)).bytes};
}

}  // namespace ordo
