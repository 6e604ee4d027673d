#include "tests/fuzz/expression.hpp"

#include "codegen/expression/cuda.hpp"
#include "codegen/expression/parse.hpp"
#include "codegen/expression/range.hpp"

namespace ordo::fuzz {

using namespace expression;

std::string check_expression(std::string_view text) {
  const auto parsed = parse(text, Scope::mask, Type::boolean);
  if (!parsed) return parsed.error().message.empty() ? "an error without a message" : "";
  const std::string canonical = to_text(*parsed);
  const auto again = parse(canonical, Scope::mask, Type::boolean);
  if (!again) return "canonical text is refused: " + canonical + ": " + again.error().message;
  if (*again != *parsed) return "canonical text reads back differently: " + canonical;
  if (canonical.find_first_of(" \t\r\n") != std::string::npos) return "canonical text holds white space: " + canonical;

  Domain domain;
  for (Interval& interval : domain.intervals) interval = {0, 700};
  domain.set(Variable::seqlen_q, 500);
  domain.set(Variable::seqlen_k, 600);
  if (!check_ranges(*parsed, domain)) return "";
  const Expression folded = fold(*parsed, domain);
  (void)to_cuda(folded);
  RangeEvaluator evaluator(*parsed);
  const Interval range = evaluator(domain);
  for (const std::int32_t q : {0, 1, 63, 499, 700}) {
    for (const std::int32_t k : {0, 2, 64, 599, 700}) {
      const Values values{q, k, q % 7, k % 5, 500, 600};
      const std::int32_t value = evaluate(*parsed, values);
      if (value < range.low || value > range.high) return "a value outside its interval: " + canonical;
      if (evaluate(folded, values) != value) return "folding changed a value: " + canonical;
    }
  }
  return "";
}

}  // namespace ordo::fuzz
