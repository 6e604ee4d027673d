#include "codegen/expression/mask.hpp"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "codegen/expression/parse.hpp"
#include "codegen/fields.hpp"
#include "codegen/limits.hpp"

namespace ordo::expression {
namespace {

/// The last position of the last tile of a sequence.
std::int64_t padded_end(std::int64_t length) {
  return (length + limits::kLargestTile - 1) / limits::kLargestTile * limits::kLargestTile - 1;
}

}  // namespace

Result<const Mask*> keep_mask(std::string_view text) {
  auto parsed = parse(text.substr(kMaskPrefix.size()), Scope::mask, Type::boolean);
  if (!parsed) {
    return Error{parsed.error().code, fmt::format("mask {}: {}", text::quote(text), parsed.error().message)};
  }
  std::string canonical = std::string(kMaskPrefix) + to_text(*parsed);
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const Mask>, std::less<>> kept;
  const std::scoped_lock lock(mutex);
  std::unique_ptr<const Mask>& mask = kept[canonical];
  if (mask == nullptr) mask = std::make_unique<const Mask>(Mask{*std::move(parsed), canonical});
  return mask.get();
}

Domain mask_domain(const AttentionBackward& problem) {
  Domain domain;
  domain[Variable::q] = {0, padded_end(problem.seqlen_q)};
  domain[Variable::k] = {0, padded_end(problem.seqlen_k)};
  domain[Variable::head] = {0, problem.heads - 1};
  domain[Variable::batch] = {0, problem.batch - 1};
  domain.set(Variable::seqlen_q, problem.seqlen_q);
  domain.set(Variable::seqlen_k, problem.seqlen_k);
  return domain;
}

Result<void> check_mask(const AttentionBackward& problem) {
  const Mask& mask = *problem.mask.expression();
  auto checked = check_ranges(mask.expression, mask_domain(problem));
  if (checked) return {};
  return Error{checked.error().code, fmt::format("mask {}: {}; positions reach up to the end of the last {}-row tile",
                                                 text::quote(mask.text), checked.error().message, limits::kLargestTile)};
}

}  // namespace ordo::expression
