#include "codegen/generate/mask_text.hpp"

#include <fmt/format.h>

#include "codegen/expression/cuda.hpp"
#include "codegen/expression/mask.hpp"

namespace ordo {

std::string visible_text(Mask mask, const expression::Domain& known) {
  const expression::Mask* by_expression = mask.expression();
  std::string body = "  return true;\n";
  if (by_expression != nullptr) {
    // Divisions of what cannot be negative need fewer registers.
    body = fmt::format("  __builtin_assume(q >= 0);\n  __builtin_assume(k >= 0);\n  return {};\n",
                       expression::to_cuda(expression::fold(by_expression->expression, known)));
  }
  return fmt::format(
      "\n/// {}\nORDO_DEVICE bool visible(int q, int k, int head, int batch, int seqlen_q, int seqlen_k) {{\n{}}}\n",
      to_string(mask), body);
}

expression::Domain any_shape() {
  expression::Domain domain;
  for (expression::Interval& interval : domain.intervals) interval.low = 0;
  return domain;
}

}  // namespace ordo
