// How times are measured: warm-up, rounds, batches; on a clock of the test's own.
#include <doctest/doctest.h>

#include <algorithm>
#include <barrier>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ordo/measurement_policy.hpp"
#include "runtime/measure/helper_kernels.hpp"
#include "runtime/measure/measure.hpp"
#include "runtime/measure/rank_stand.hpp"

namespace ordo {
namespace {

/// Subjects of fixed times; launching takes exactly that, and every call is written down.
class FakeStand : public measure::Stand {
 public:
  explicit FakeStand(std::vector<double> subject_ms) : subject_ms_(std::move(subject_ms)) {}

  double now_ms() override { return now; }
  void rest(double ms) override {
    now += ms;
    rested_ms.push_back(ms);
  }
  Result<measure::Batches> run(std::size_t subject, int batches, int launches) override {
    if (fails || subject == failing) return Error{ErrorCode::driver, "a launch failed"};
    ++runs[subject];
    const double ms = subject_ms_[subject];
    busy_ms.push_back(ms * batches * launches);
    now += busy_ms.back();
    measure::Batches out;
    for (int i = 0; i < batches; ++i) out.ms.push_back(ms * (i == 1 ? 3 : 1));  // one outlier
    out.clock_mhz = 1700;
    return out;
  }

  double now = 5000;
  bool fails = false;
  std::optional<std::size_t> failing;  ///< this subject
  std::map<std::size_t, int> runs;     ///< that did not fail, of each subject
  std::vector<double> busy_ms, rested_ms;

 private:
  std::vector<double> subject_ms_;
};

double total(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

}  // namespace

TEST_CASE(
    "measuring: the first subject is warmed up longest, a fresh one longer than a later round, and a pause counts as cold") {
  FakeStand stand({2, 4});
  MeasurementPolicy policy;
  policy.measure_ms = 300;
  measure::Measuring measuring(stand, policy);
  const auto round = [&](std::size_t subject) {
    stand.busy_ms.clear();
    const auto sample = measuring.round(subject);
    REQUIRE(sample.ok());
    return std::pair(total(stand.busy_ms) - stand.busy_ms.back(), *sample);
  };
  const auto [first_warm, first] = round(0);
  CHECK(first_warm >= 2000);
  CHECK(first_warm < 2100);
  CHECK(first.ms_median == 2);
  CHECK(first.ms_min == 2);
  CHECK(first.clock_mhz == 1700);
  CHECK_FALSE(first.watts.has_value());
  CHECK(stand.busy_ms.back() >= 95);  // a third of the measured time
  const auto [second_warm, second] = round(1);
  CHECK(second_warm >= 300);
  CHECK(second_warm < 400);
  CHECK(second.ms_median == 4);
  const auto [later_warm, later] = round(0);
  CHECK(later_warm >= 50);
  CHECK(later_warm < 100);
  stand.now += 1000;
  const auto [cold_warm, cold] = round(0);
  CHECK(cold_warm >= 300);
}

TEST_CASE("measuring: short launches share a batch, and a number of launches can be asked for") {
  FakeStand stand({0.01});
  MeasurementPolicy policy;
  policy.measure_ms = 1;
  policy.rounds = 1;
  measure::Measuring measuring(stand, policy);
  auto sample = measuring.round(0);
  REQUIRE(sample.ok());
  CHECK(sample->launches == 500);  // five batches of a millisecond
  sample = measuring.round(0, 2345);
  REQUIRE(sample.ok());
  CHECK(sample->launches >= 2345);
}

TEST_CASE("measuring: in rounds every subject has its result; one that fails ends them, or only its own") {
  FakeStand stand({2, 3, 4});
  stand.failing = 1;
  MeasurementPolicy policy;
  policy.rounds = 3;
  measure::Measuring measuring(stand, policy);
  const auto samples = measuring.rounds_of_each({2, 1, 0});
  REQUIRE(samples.size() == 3);
  REQUIRE(samples[0].ok());
  CHECK(samples[0]->ms_median == 4);
  REQUIRE_FALSE(samples[1].ok());
  CHECK(samples[1].error().message == "a launch failed");
  REQUIRE(samples[2].ok());
  CHECK(samples[2]->ms_median == 2);
  CHECK(stand.runs[0] >= 2 * policy.rounds);  // a warm-up and a measurement each
  CHECK(stand.runs[2] >= 2 * policy.rounds);
  CHECK(stand.runs[1] == 0);
  CHECK(measuring.rounds_of_each({}).empty());

  const auto all = measuring.rounds({2, 1, 0});
  REQUIRE_FALSE(all.ok());
  CHECK(all.error().message == "a launch failed");
  stand.failing.reset();
  const auto both = measuring.rounds({2, 0});
  REQUIRE(both.ok());
  REQUIRE(both->size() == 2);
  CHECK((*both)[0].ms_median == 4);
  CHECK((*both)[1].ms_median == 2);
}

TEST_CASE("measuring: a burst follows a rest") {
  FakeStand stand({2});
  measure::Measuring measuring(stand, {});
  const auto burst = measuring.burst(0);
  REQUIRE(burst.ok());
  CHECK(*burst == 2);
  CHECK(stand.rested_ms == std::vector<double>(7, 25.0));
  CHECK(stand.busy_ms == std::vector<double>(8, 6.0));
}

TEST_CASE("measuring: ranks measure in step, by the slowest of them") {
  constexpr int kRanks = 3;
  std::barrier meet(kRanks);
  std::vector<std::vector<double>> shown(kRanks);
  std::vector<measure::Sample> samples(kRanks);
  std::vector<std::vector<double>> busy(kRanks);
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      FakeStand mine({1.0 + static_cast<double>(rank)});
      mine.now = 100.0 * static_cast<double>(rank);
      measure::RankStand stand(mine, [&, rank](std::vector<double>& values) -> Result<void> {
        shown[rank] = values;
        meet.arrive_and_wait();
        for (const auto& other : shown)
          for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::max(values[i], other[i]);
        meet.arrive_and_wait();
        return {};
      });
      measure::Measuring measuring(stand, {});
      const auto sample = measuring.round(0);
      if (sample) samples[rank] = *sample;
      busy[rank] = mine.busy_ms;
      mine.fails = rank == 1;
      const auto failed = measuring.round(0);
      errors[rank] = failed ? "no error" : failed.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    CHECK(samples[rank].ms_median == 3);
    CHECK(samples[rank].launches == samples[0].launches);
    CHECK(busy[rank].size() == busy[0].size());
    CHECK(errors[rank] == (rank == 1 ? "a launch failed" : "a launch failed on another rank"));
  }
}

TEST_CASE("measuring: each round has an order of its own, and no subject always follows the same one") {
  CHECK(measure::order_of_round(0, 0).empty());
  for (std::size_t subjects = 2; subjects < 30; ++subjects) {
    CAPTURE(subjects);
    std::vector<std::set<std::size_t>> before(subjects);
    std::size_t last = subjects;  // none
    for (int round = 0; round < 4; ++round) {
      const std::vector<std::size_t> order = measure::order_of_round(round, subjects);
      CHECK(order == measure::order_of_round(round, subjects));
      CHECK(std::set<std::size_t>(order.begin(), order.end()).size() == subjects);
      CHECK(*std::ranges::max_element(order) == subjects - 1);
      for (const std::size_t subject : order)
        if (const std::size_t follows = std::exchange(last, subject); follows < subjects) before[subject].insert(follows);
    }
    for (const std::set<std::size_t>& others : before) CHECK(others.size() > 1);
  }
}

TEST_CASE("measuring: rounds combine to the median of medians") {
  measure::Sample a, b, c;
  a.ms_median = 3, a.ms_min = 2, a.launches = 10, a.watts = 600;
  b.ms_median = 1, b.ms_min = 0.5, b.launches = 20, b.watts = 700;
  c.ms_median = 2, c.ms_min = 1, c.launches = 30;
  const measure::Sample all = measure::combined({a, b, c});
  CHECK(all.ms_median == 2);
  CHECK(all.ms_min == 0.5);
  CHECK(all.launches == 60);
  CHECK(all.watts == 650);
  CHECK_FALSE(all.clock_mhz.has_value());
  CHECK(measure::median({4, 1, 3, 2}) == 2.5);
}

TEST_CASE("measuring: the helpers' kernels compile") {
  KernelBuilderOptions options;
  options.memory_cache_only = true;
  const auto helpers = measure::HelperKernels::create(options);
  CHECK_MESSAGE(helpers.ok(), (helpers ? std::string() : helpers.error().message));
}

TEST_CASE("measurement policy: its text reads back, and nonsense is refused") {
  MeasurementPolicy policy;
  policy.warm_ms = 12.5;
  policy.rounds = 7;
  policy.cold_l2 = true;
  const auto back = parse_measurement_policy(to_text(policy));
  REQUIRE(back.ok());
  CHECK(*back == policy);
  CHECK(to_text(MeasurementPolicy{}) ==
        "measurement first_warm_ms=2000 warm_ms=300 round_warm_ms=50 measure_ms=300 rounds=3 cold_l2=0");
  for (const char* text : {"measurement rounds=0", "measurement rounds=101", "measurement warm_ms=-1", "measurement warm_ms=nan",
                           "measurement measure_ms=0", "measurement cold_l2=2", "measurement colour=red", "rounds=3", ""})
    CHECK_MESSAGE(!parse_measurement_policy(text).ok(), text);
}

}  // namespace ordo
