// Plans that an engine has made, so that asking again costs a look-up.
#pragma once

#include <cstddef>
#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "ordo/plan.hpp"
#include "ordo/problem.hpp"

namespace ordo {

/// Of one target. Thread-safe. Keeps at most kMostPlans choices; when full it forgets them all.
class PlanMemo {
 public:
  static constexpr std::size_t kMostPlans = 4096;

  /// Null when the question is new.
  [[nodiscard]] std::shared_ptr<const PlanChoice> find(const AttentionBackward& problem, const PlanRequest& request) const;
  void keep(const AttentionBackward& problem, const PlanRequest& request, std::shared_ptr<const PlanChoice> choice);

 private:
  struct Question {
    AttentionBackward problem;
    PlanRequest request;
    friend bool operator==(const Question&, const Question&) = default;
  };
  struct Hash {
    std::size_t operator()(const Question& question) const;
  };

  mutable std::shared_mutex mutex_;
  std::unordered_map<Question, std::shared_ptr<const PlanChoice>, Hash> choices_;
};

}  // namespace ordo
