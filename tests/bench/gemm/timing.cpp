#include "tests/bench/gemm/timing.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/gpu/deadline.hpp"

namespace ordo::bench {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Result<double> batch_ms(const Launch& launch, const Stream& stream, int launches) {
  auto start = Event::create(), end = Event::create();
  if (!start) return start.error();
  if (!end) return end.error();
  if (auto ok = start->record(stream.get()); !ok) return ok.error();
  for (int i = 0; i < launches; ++i)
    if (auto ok = launch(stream.get()); !ok) return ok.error();
  if (auto ok = end->record(stream.get()); !ok) return ok.error();
  if (auto ok = end->synchronize(); !ok) return ok.error();
  auto ms = end->milliseconds_since(*start);
  if (!ms) return ms;
  return *ms / launches;
}

}  // namespace

Result<double> burst_ms(const Launch& launch, const Stream& stream) {
  if (auto first = batch_ms(launch, stream, 2); !first) return first;  // loads the kernel
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
    auto ms = batch_ms(launch, stream, 3);
    if (!ms) return ms;
    times.push_back(*ms);
  }
  return median(std::move(times));
}

Result<void> measure_steady(const Launch& launch, const Stream& stream, const std::optional<measure::Nvml>& nvml,
                            double warm_seconds, double seconds, GemmTiming& timing) {
  auto one = batch_ms(launch, stream, 3);
  if (!one) return one.error();
  const int launches = std::clamp(static_cast<int>(10 / std::max(*one, 1e-3)), 1, 1000);
  std::vector<double> times;
  double clock = 0, watts = 0;
  int samples = 0;
  const test::Stopwatch watch;
  while (watch.seconds() < warm_seconds + seconds) {
    auto ms = batch_ms(launch, stream, launches);
    if (!ms) return ms.error();
    if (watch.seconds() < warm_seconds) continue;
    times.push_back(*ms);
    if (const auto state = nvml ? nvml->state() : std::nullopt) {
      clock += state->sm_clock_mhz;
      watts += state->watts;
      ++samples;
    }
  }
  if (!times.empty()) timing.steady_ms = median(std::move(times));
  if (samples > 0) {
    timing.clock_mhz = clock / samples;
    timing.watts = watts / samples;
  }
  return {};
}

}  // namespace ordo::bench
