#include "runtime/measure/event_stand.hpp"

#include <chrono>
#include <stop_token>
#include <thread>
#include <utility>

namespace ordo::measure {
namespace {

/// Reads clocks and power every few milliseconds on a thread of its own.
class Sampler {
 public:
  explicit Sampler(const std::optional<Nvml>& nvml) {
    if (nvml) thread_ = std::jthread([this, &nvml](const std::stop_token& stop) { run(*nvml, stop); });
  }

  /// Ends the sampling and fills in the means over the middle half of its time.
  void finish(Batches& batches) {
    if (!thread_.joinable()) return;
    const double end = seconds();
    thread_.request_stop();
    thread_.join();
    double clock = 0, watts = 0;
    int count = 0;
    for (const Reading& reading : readings_) {
      if (reading.seconds < 0.25 * end || reading.seconds > 0.75 * end) continue;
      clock += reading.state.sm_clock_mhz;
      watts += reading.state.watts;
      ++count;
    }
    if (count == 0) return;
    batches.clock_mhz = clock / count;
    batches.watts = watts / count;
  }

 private:
  struct Reading {
    double seconds;
    GpuState state;
  };

  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  void run(const Nvml& nvml, const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (const auto state = nvml.state()) readings_.push_back({seconds(), *state});
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<Reading> readings_;
  std::jthread thread_;  // last: it uses the others, and its destructor stops it
};

}  // namespace

std::size_t flush_bytes(const DeviceFacts& facts) { return 2 * facts.l2_bytes; }

EventStand::EventStand(CUstream_st* stream, std::optional<Nvml> nvml) : stream_(stream), nvml_(std::move(nvml)) {}
EventStand::EventStand(EventStand&& other) noexcept
    : stream_(other.stream_),
      nvml_(std::move(other.nvml_)),
      flush_(std::move(other.flush_)),
      subjects_(std::move(other.subjects_)),
      events_(std::move(other.events_)) {}
EventStand::~EventStand() = default;

Result<EventStand> EventStand::create(CUstream_st* stream, std::optional<Nvml> nvml, std::size_t flush_bytes) {
  EventStand stand(stream, std::move(nvml));
  if (flush_bytes > 0) {
    auto buffer = DeviceBuffer::allocate(flush_bytes);
    if (!buffer) return buffer.error();
    stand.flush_ = *std::move(buffer);
  }
  return stand;
}

std::size_t EventStand::add(Launch launch) {
  subjects_.push_back(std::move(launch));
  return subjects_.size() - 1;
}

double EventStand::now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Result<void> EventStand::make_events(std::size_t count) {
  while (events_.size() < count) {
    auto event = Event::create();
    if (!event) return event.error();
    events_.push_back(*std::move(event));
  }
  return {};
}

Result<Batches> EventStand::run(std::size_t subject, int batches, int launches) {
  Sampler sampler(nvml_);
  const Launch& launch = subjects_[subject];
  auto ms = flush_.bytes() > 0 ? run_cold(launch, batches, launches) : run_hot(launch, batches, launches);
  if (!ms) return ms.error();
  Batches out{*std::move(ms), {}, {}};
  sampler.finish(out);
  return out;
}

Result<std::vector<double>> EventStand::run_hot(const Launch& launch, int batches, int launches) {
  const auto count = static_cast<std::size_t>(batches);
  if (auto ok = make_events(count + 1); !ok) return ok.error();
  if (auto ok = events_[0].record(stream_); !ok) return ok.error();
  for (std::size_t batch = 1; batch <= count; ++batch) {
    for (int i = 0; i < launches; ++i)
      if (auto ok = launch(); !ok) return ok.error();
    if (auto ok = events_[batch].record(stream_); !ok) return ok.error();
  }
  if (auto ok = events_[count].synchronize(); !ok) return ok.error();
  std::vector<double> out;
  for (std::size_t batch = 1; batch <= count; ++batch) {
    auto ms = events_[batch].milliseconds_since(events_[batch - 1]);
    if (!ms) return ms.error();
    out.push_back(*ms / launches);
  }
  return out;
}

Result<std::vector<double>> EventStand::run_cold(const Launch& launch, int batches, int launches) {
  const auto count = static_cast<std::size_t>(launches);
  if (auto ok = make_events(2 * count); !ok) return ok.error();
  std::vector<double> out;
  for (int batch = 0; batch < batches; ++batch) {
    for (std::size_t i = 0; i < count; ++i) {
      if (auto ok = flush_.fill(static_cast<std::uint8_t>(i), stream_); !ok) return ok.error();
      if (auto ok = events_[2 * i].record(stream_); !ok) return ok.error();
      if (auto ok = launch(); !ok) return ok.error();
      if (auto ok = events_[2 * i + 1].record(stream_); !ok) return ok.error();
    }
    if (auto ok = events_[2 * count - 1].synchronize(); !ok) return ok.error();
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      auto ms = events_[2 * i + 1].milliseconds_since(events_[2 * i]);
      if (!ms) return ms.error();
      sum += *ms;
    }
    out.push_back(sum / launches);
  }
  return out;
}

}  // namespace ordo::measure
