// A device, its context, memory, streams and timing, for the CLI, benchmarks and GPU tests. No CUDA header is needed to use it.
// (AttentionBackwardKernel itself allocates nothing and takes the caller's stream: it does not use these.)
//
// All of these move, none copies. Buffers, streams and events belong to the context that was current when they were made, and are
// to be destroyed while it still lives: declare the DeviceContext first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "ordo/error.hpp"
#include "ordo/target.hpp"

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;

namespace ordo {

/// What the driver says about one device.
struct DeviceFacts {
  int index = 0;
  std::string name;                ///< "NVIDIA H200"
  int cc_major = 0, cc_minor = 0;  ///< compute capability: 9, 0 for Hopper
  int sm_count = 0;
  int shared_bytes_per_block = 0;  ///< that a block may opt in to
  int registers_per_sm = 0;
  std::size_t l2_bytes = 0;
  std::size_t memory_bytes = 0;
  int driver_version = 0;  ///< CUDA version of the driver: 13000 is 13.0
};

/// How many devices the driver sees; never 0. Errors: no_device when there is no driver or no device.
ORDO_API Result<int> device_count();

/// Errors: no_device (no driver, or no such device: says how many there are).
ORDO_API Result<DeviceFacts> device_facts(int device);

/// The device of the current context if there is one, else device 0. Errors: no_device.
ORDO_API Result<int> current_device();

/// Whether a CUDA context is current on this thread; no where there is no driver.
ORDO_API bool has_current_context();

/// The Target of a device: the named one where name and SM count agree with it, else "sm_90a:SMS".
/// Errors: no_device; unsupported when the device is not of compute capability 9.0.
ORDO_API Result<Target> target_of_device(int device);
/// The same from facts alone. Pure.
ORDO_API Result<Target> target_of_facts(const DeviceFacts& facts);

/// Holds the primary context of a device, current on the thread that opened it. The destructor releases it and makes the context
/// current that was so before (on the same thread).
class ORDO_API DeviceContext {
 public:
  static Result<DeviceContext> open(int device);
  DeviceContext(DeviceContext&& other) noexcept;
  DeviceContext& operator=(DeviceContext&&) = delete;
  ~DeviceContext();

  [[nodiscard]] const DeviceFacts& facts() const { return facts_; }
  /// Makes the context current on the calling thread (which has none of its own at first).
  Result<void> make_current() const;
  /// Waits for everything in the context.
  Result<void> synchronize() const;
  /// Bytes of device memory not in use.
  [[nodiscard]] Result<std::size_t> free_bytes() const;

 private:
  DeviceContext() = default;
  DeviceFacts facts_;
  CUctx_st* context_ = nullptr;
  CUctx_st* previous_ = nullptr;
};

/// Device memory, aligned to 256 bytes.
class ORDO_API DeviceBuffer {
 public:
  /// `bytes` may be 0: then data() is null.
  static Result<DeviceBuffer> allocate(std::size_t bytes);
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  /// Copies between `bytes` of host memory and the buffer from `offset` on; returns when done. Errors: past the end.
  Result<void> copy_from_host(const void* host, std::size_t bytes, std::size_t offset = 0);
  Result<void> copy_to_host(void* host, std::size_t bytes, std::size_t offset = 0) const;
  /// Sets every byte, in the order of `stream`; does not wait.
  Result<void> fill(std::uint8_t value, CUstream_st* stream = nullptr);

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A stream that does not synchronise with the legacy default stream.
class ORDO_API Stream {
 public:
  static Result<Stream> create();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;
  ~Stream();

  [[nodiscard]] CUstream_st* get() const { return stream_; }
  Result<void> synchronize() const;

 private:
  Stream() = default;
  CUstream_st* stream_ = nullptr;
};

/// A point in a stream's time.
class ORDO_API Event {
 public:
  static Result<Event> create();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event();

  [[nodiscard]] CUevent_st* get() const { return event_; }
  Result<void> record(CUstream_st* stream) const;
  Result<void> synchronize() const;
  /// Whether everything before the event is done, without waiting: for watchdogs.
  [[nodiscard]] Result<bool> done() const;
  /// Milliseconds from `start` to this event; both recorded and done.
  [[nodiscard]] Result<double> milliseconds_since(const Event& start) const;

 private:
  Event() = default;
  CUevent_st* event_ = nullptr;
};

}  // namespace ordo
