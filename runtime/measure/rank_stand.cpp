#include "runtime/measure/rank_stand.hpp"

#include <algorithm>

#include "runtime/peers/communicator.hpp"

namespace ordo::measure {

Largest largest_over(Communicator& communicator) {
  return [&group = communicator.impl()](std::vector<double>& values) -> Result<void> {
    constexpr std::size_t kAtOnce = 1024;  // what a gather takes
    const auto ranks = static_cast<std::size_t>(group.links.ranks());
    if (auto healthy = group.watchdog->status(); !healthy) return healthy;
    for (std::size_t begin = 0; begin < values.size(); begin += kAtOnce) {
      const std::size_t count = std::min(kAtOnce, values.size() - begin);
      std::vector<double> all(ranks * count);
      auto gathered =
          group.checked(group.links.all_gather(values.data() + begin, count * sizeof(double), all.data(), group.deadline()));
      if (!gathered) return gathered;
      for (std::size_t i = 0; i < all.size(); ++i) values[begin + i % count] = std::max(values[begin + i % count], all[i]);
    }
    return {};
  };
}

double RankStand::now_ms() {
  std::vector<double> now{mine_.now_ms()};
  if (auto ok = largest_(now); !ok) failure_ = ok.error();
  return now.front();
}

Result<Batches> RankStand::run(std::size_t subject, int batches, int launches) {
  if (failure_) return *failure_;
  std::vector<double> together{0};  // all start at once
  if (auto ok = largest_(together); !ok) return ok.error();
  auto ran = mine_.run(subject, batches, launches);
  std::vector<double> values(static_cast<std::size_t>(batches) + 1);
  if (ran) std::copy(ran->ms.begin(), ran->ms.end(), values.begin());
  values.back() = ran ? 0 : 1;
  const auto agreed = largest_(values);
  if (!ran) return ran;
  if (!agreed) return agreed.error();
  if (values.back() != 0) return Error{ErrorCode::driver, "a launch failed on another rank"};
  ran->ms.assign(values.begin(), values.end() - 1);
  return ran;
}

}  // namespace ordo::measure
