// A Stand on a GPU: CUDA events, clocks and watts by NVML.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/measure/measure.hpp"
#include "runtime/measure/nvml.hpp"

namespace ordo::measure {

/// Works on one stream of the current context. Not thread-safe.
class ORDO_API EventStand : public Stand {
 public:
  /// Enqueues one launch on the stand's stream.
  using Launch = std::function<Result<void>()>;

  /// `nvml` may be absent: then there are no clocks and watts. `flush_bytes` above 0: every launch finds its L2 filled by that
  /// many other bytes, and is timed alone. The stream must outlive the stand. Errors: driver.
  static Result<EventStand> create(CUstream_st* stream, std::optional<Nvml> nvml, std::size_t flush_bytes = 0);
  EventStand(EventStand&&) noexcept;
  EventStand& operator=(EventStand&&) = delete;
  ~EventStand() override;

  /// The subject's number.
  std::size_t add(Launch launch);

  double now_ms() override;
  Result<Batches> run(std::size_t subject, int batches, int launches) override;

 private:
  EventStand(CUstream_st* stream, std::optional<Nvml> nvml);
  Result<void> make_events(std::size_t count);
  Result<std::vector<double>> run_hot(const Launch& launch, int batches, int launches);
  Result<std::vector<double>> run_cold(const Launch& launch, int batches, int launches);

  CUstream_st* stream_;
  std::optional<Nvml> nvml_;
  DeviceBuffer flush_;
  std::vector<Launch> subjects_;
  std::vector<Event> events_;
};

/// What flushes a device's L2: twice its size.
ORDO_API std::size_t flush_bytes(const DeviceFacts& facts);

}  // namespace ordo::measure
