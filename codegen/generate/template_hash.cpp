#include "codegen/generate/template_hash.hpp"

#include <string_view>

#include "codegen/hash/sha256.hpp"

namespace ordo {

std::string template_hash(const KernelSource& source) {
  constexpr std::string_view plan_part = "\n// ---- attention_backward/plan.cuh ----\n", part = "\n// ---- ";
  std::string text = source.text;
  if (const std::size_t begin = text.find(plan_part); begin != std::string::npos) {
    const std::size_t end = text.find(part, begin + plan_part.size());
    text.erase(begin, end == std::string::npos ? std::string::npos : end - begin);
  }
  return sha256_hex(text);
}

}  // namespace ordo
