#include "runtime/measure/measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>
#include <utility>

namespace ordo::measure {
namespace {

constexpr double kBatchMs = 1;      // shorter launches are timed several at a time, so that an event's own time does not count
constexpr double kWarmStepMs = 20;  // between looks at the clock
constexpr double kPauseMs = 200;    // after which a card has cooled down noticeably
constexpr int kFewestBatches = 5;   // a round
constexpr int kMostLaunches = 2000;

}  // namespace

void Stand::rest(double ms) { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms)); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Sample combined(const std::vector<Sample>& rounds) {
  Sample out;
  out.ms_min = rounds.front().ms_min;
  std::vector<double> medians;
  double clock = 0, watts = 0;
  int clocks = 0, powers = 0;
  for (const Sample& round : rounds) {
    medians.push_back(round.ms_median);
    out.ms_min = std::min(out.ms_min, round.ms_min);
    out.launches += round.launches;
    clock += round.clock_mhz.value_or(0);
    watts += round.watts.value_or(0);
    clocks += round.clock_mhz ? 1 : 0;
    powers += round.watts ? 1 : 0;
  }
  out.ms_median = median(std::move(medians));
  if (clocks > 0) out.clock_mhz = clock / clocks;
  if (powers > 0) out.watts = watts / powers;
  return out;
}

std::vector<std::size_t> order_of_round(int round, std::size_t subjects) {
  std::vector<std::size_t> order(subjects);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(static_cast<std::mt19937::result_type>(round / 2));
  // Not std::shuffle, which is another one with every standard library.
  for (std::size_t left = subjects; left > 1; --left) std::swap(order[left - 1], order[random() % left]);
  if (round % 2 == 1) std::ranges::reverse(order);
  return order;
}

/// Keeps the device busy and returns the milliseconds of one launch.
Result<double> Measuring::warm_up(std::size_t subject, double warm_ms) {
  const double start = stand_.now_ms();
  int launches = 1;
  double one = 0;
  do {
    auto batches = stand_.run(subject, 1, launches);
    if (!batches) return batches.error();
    one = batches->ms.front();
    launches = std::clamp(static_cast<int>(kWarmStepMs / std::max(one, 1e-3)), 1, kMostLaunches);
  } while (stand_.now_ms() - start < warm_ms);
  return one;
}

Result<Sample> Measuring::round(std::size_t subject, int fewest_launches) {
  const bool paused = !last_end_ms_ || stand_.now_ms() - *last_end_ms_ > kPauseMs;
  const bool fresh = warmed_.insert(subject).second;
  const double warm_ms = !last_end_ms_ ? policy_.first_warm_ms : fresh || paused ? policy_.warm_ms : policy_.round_warm_ms;
  auto one = warm_up(subject, warm_ms);
  if (!one) return one.error();
  const int launches = std::clamp(static_cast<int>(std::lround(kBatchMs / *one)), 1, kMostLaunches);
  const double round_ms = policy_.measure_ms / policy_.rounds;
  const int batches =
      std::max({kFewestBatches, static_cast<int>(round_ms / (*one * launches)), (fewest_launches + launches - 1) / launches});
  auto measured = stand_.run(subject, batches, launches);
  if (!measured) return measured.error();
  last_end_ms_ = stand_.now_ms();
  Sample sample;
  sample.ms_median = median(measured->ms);
  sample.ms_min = *std::min_element(measured->ms.begin(), measured->ms.end());
  sample.launches = batches * launches;
  sample.clock_mhz = measured->clock_mhz;
  sample.watts = measured->watts;
  return sample;
}

Result<std::vector<Sample>> Measuring::rounds(const std::vector<std::size_t>& subjects) {
  std::vector<std::vector<Sample>> samples(subjects.size());
  for (int number = 0; number < policy_.rounds; ++number)
    for (const std::size_t i : order_of_round(number, subjects.size())) {
      auto sample = round(subjects[i]);
      if (!sample) return sample.error();
      samples[i].push_back(*sample);
    }
  std::vector<Sample> out(subjects.size());
  std::ranges::transform(samples, out.begin(), &combined);
  return out;
}

std::vector<Result<Sample>> Measuring::rounds_of_each(const std::vector<std::size_t>& subjects) {
  std::vector<std::vector<Sample>> samples(subjects.size());
  std::vector<std::optional<Error>> failed(subjects.size());
  for (int number = 0; number < policy_.rounds; ++number)
    for (const std::size_t i : order_of_round(number, subjects.size())) {
      if (failed[i]) continue;
      if (auto sample = round(subjects[i]))
        samples[i].push_back(*sample);
      else
        failed[i] = sample.error();
    }
  std::vector<Result<Sample>> out;
  out.reserve(subjects.size());
  for (std::size_t i = 0; i < subjects.size(); ++i)
    out.push_back(failed[i] ? Result<Sample>(*failed[i]) : Result<Sample>(combined(samples[i])));
  return out;
}

Result<double> Measuring::burst(std::size_t subject) {
  constexpr int kTimes = 7, kLaunches = 3;
  constexpr double kRestMs = 25;
  if (auto first = stand_.run(subject, 1, kLaunches); !first) return first.error();  // loads what is yet to be loaded
  std::vector<double> times;
  for (int i = 0; i < kTimes; ++i) {
    stand_.rest(kRestMs);
    auto launched = stand_.run(subject, 1, kLaunches);
    if (!launched) return launched.error();
    times.push_back(launched->ms.front());
  }
  return median(std::move(times));
}

}  // namespace ordo::measure
