#include "runtime/plan_memo.hpp"

#include <mutex>

namespace ordo {

std::size_t PlanMemo::Hash::operator()(const Question& question) const {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, a word at a time
  const auto mix = [&hash](std::uint64_t word) { hash = (hash ^ word) * 0x100000001b3; };
  const AttentionBackward& p = question.problem;
  for (const std::int64_t size : {p.batch, p.seqlen_q, p.seqlen_k, p.heads, p.kv_heads, p.head_dim})
    mix(static_cast<std::uint64_t>(size));
  const PlanRequest& r = question.request;
  mix(r.schedule ? 1 + static_cast<std::uint64_t>(*r.schedule) : 0);
  mix(r.accumulate ? 1 + static_cast<std::uint64_t>(*r.accumulate) : 0);
  return static_cast<std::size_t>(hash ^ (hash >> 32));
}

std::shared_ptr<const PlanChoice> PlanMemo::find(const AttentionBackward& problem, const PlanRequest& request) const {
  const Question question{problem, request};
  const std::shared_lock lock(mutex_);
  const auto at = choices_.find(question);
  return at == choices_.end() ? nullptr : at->second;
}

void PlanMemo::keep(const AttentionBackward& problem, const PlanRequest& request, std::shared_ptr<const PlanChoice> choice) {
  const std::scoped_lock lock(mutex_);
  if (choices_.size() >= kMostPlans) choices_.clear();
  choices_.insert_or_assign(Question{problem, request}, std::move(choice));
}

}  // namespace ordo
