#include "tests/bench/suite/measure.hpp"

#include <algorithm>
#include <cmath>
#include <stop_token>
#include <thread>
#include <vector>

#include "tests/gpu/deadline.hpp"

namespace ordo::bench {
namespace {

constexpr double kBatchMs = 1;      // shorter launches are timed several at a time, so that an event's own time does not count
constexpr double kWarmStepMs = 20;  // between looks at the host's clock
constexpr int kFewestBatches = 11;

/// Milliseconds of `launches` launches, waiting for them.
Result<double> time_launches(Subject& subject, const Event& start, const Event& end, int launches) {
  if (auto ok = start.record(subject.stream()); !ok) return ok.error();
  for (int i = 0; i < launches; ++i)
    if (auto ok = subject.launch(); !ok) return ok.error();
  if (auto ok = end.record(subject.stream()); !ok) return ok.error();
  if (auto ok = end.synchronize(); !ok) return ok.error();
  return end.milliseconds_since(start);
}

/// Keeps the device busy and returns the milliseconds of one launch.
Result<double> warm_up(Subject& subject, double warm_ms) {
  auto start = Event::create(), end = Event::create();
  if (!start) return start.error();
  if (!end) return end.error();
  const test::Stopwatch watch;
  int launches = 1;
  double one = 0;
  do {
    auto ms = time_launches(subject, *start, *end, launches);
    if (!ms) return ms;
    one = *ms / launches;
    launches = std::clamp(static_cast<int>(kWarmStepMs / std::max(one, 1e-3)), 1, 2000);
  } while (watch.seconds() * 1e3 < warm_ms);
  return one;
}

/// Reads clocks and power every few milliseconds on a thread of its own.
class Sampler {
 public:
  explicit Sampler(const std::optional<cli::Nvml>& nvml) {
    if (nvml) thread_ = std::jthread([this, &nvml](const std::stop_token& stop) { run(*nvml, stop); });
  }

  /// Ends the sampling and fills in the means over the middle half of its time.
  void finish(Timing& timing) {
    if (!thread_.joinable()) return;
    const double end = watch_.seconds();
    thread_.request_stop();
    thread_.join();
    double clock = 0, watts = 0;
    int count = 0;
    for (const Sample& sample : samples_) {
      if (sample.seconds < 0.25 * end || sample.seconds > 0.75 * end) continue;
      clock += sample.state.sm_clock_mhz;
      watts += sample.state.watts;
      ++count;
    }
    if (count == 0) return;
    timing.clock_mhz = clock / count;
    timing.watts = watts / count;
  }

 private:
  struct Sample {
    double seconds;
    cli::GpuState state;
  };

  void run(const cli::Nvml& nvml, const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (const auto state = nvml.state()) samples_.push_back({watch_.seconds(), *state});
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  test::Stopwatch watch_;
  std::vector<Sample> samples_;
  std::jthread thread_;  // last: it uses the others, and its destructor stops it
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

Result<Timing> measure(Subject& subject, const std::optional<cli::Nvml>& nvml, double warm_ms, double measure_ms) {
  auto one = warm_up(subject, warm_ms);
  if (!one) return one.error();
  const int in_batch = std::max(1, static_cast<int>(std::lround(kBatchMs / *one)));
  const int batches = std::max(kFewestBatches, static_cast<int>(measure_ms / (*one * in_batch)));
  std::vector<Event> events;
  for (int i = 0; i <= batches; ++i) {
    auto event = Event::create();
    if (!event) return event.error();
    events.push_back(*std::move(event));
  }
  Sampler sampler(nvml);
  if (auto ok = events[0].record(subject.stream()); !ok) return ok.error();
  for (std::size_t batch = 1; batch < events.size(); ++batch) {
    for (int i = 0; i < in_batch; ++i)
      if (auto ok = subject.launch(); !ok) return ok.error();
    if (auto ok = events[batch].record(subject.stream()); !ok) return ok.error();
  }
  if (auto ok = events.back().synchronize(); !ok) return ok.error();
  Timing timing;
  sampler.finish(timing);
  std::vector<double> times;
  for (std::size_t batch = 1; batch < events.size(); ++batch) {
    auto ms = events[batch].milliseconds_since(events[batch - 1]);
    if (!ms) return ms.error();
    times.push_back(*ms / in_batch);
  }
  timing.ms_median = median(times);
  timing.ms_min = *std::min_element(times.begin(), times.end());
  return timing;
}

}  // namespace ordo::bench
