#include "runtime/peers/exchange_watch.hpp"

#include <fmt/format.h>

#include <thread>
#include <vector>

namespace ordo::peers {
namespace {

// Ends any wait for "at least": numbers of launches and of signals stay far below.
constexpr unsigned kReleased = 0x40000000;

// Kernels report the slice they miss; a stream's wait is judged a little later, so that their better message is the one that
// counts.
constexpr Milliseconds kGrace(500);

}  // namespace

LaunchWatch::~LaunchWatch() {
  const Driver& d = *setup_.driver;
  for (Record& record : records_) {
    if (record.begin != nullptr) d.eventDestroy(record.begin);
    if (record.end != nullptr) d.eventDestroy(record.end);
  }
  if (rescue_ != nullptr) d.streamDestroy(rescue_);
}

Result<CUstream> create_waiting_stream(const Driver& driver) {
  int least = 0, greatest = 0;
  if (auto ok = driver.check(driver.ctxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange"); !ok)
    return ok.error();
  CUstream stream = nullptr;
  if (auto ok =
          driver.check(driver.streamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest), "cuStreamCreateWithPriority");
      !ok)
    return ok.error();
  return stream;
}

Result<void> LaunchWatch::open() {
  const Driver& d = *setup_.driver;
  auto rescue = create_waiting_stream(d);
  if (!rescue) return rescue.error();
  rescue_ = *rescue;
  for (Record& record : records_) {
    for (CUevent* event : {&record.begin, &record.end}) {
      if (auto ok = d.check(d.eventCreate(event, CU_EVENT_DISABLE_TIMING), "cuEventCreate"); !ok) return ok;
    }
  }
  return {};
}

Result<void> LaunchWatch::begin(CUstream stream) {
  const Driver& d = *setup_.driver;
  Record& record = records_[next_];
  if (record.state.load(std::memory_order_acquire) != unused) return {};
  next_ = (next_ + 1) % records_.size();
  current_ = &record;
  return d.check(d.eventRecord(record.begin, stream), "cuEventRecord");
}

Result<void> LaunchWatch::end(CUstream stream) {
  if (current_ == nullptr) return {};
  Record& record = *std::exchange(current_, nullptr);
  const Driver& d = *setup_.driver;
  if (auto ok = d.check(d.eventRecord(record.end, stream), "cuEventRecord"); !ok) return ok;
  record.running = {};
  record.state.store(armed, std::memory_order_release);
  return {};
}

Result<void> LaunchWatch::check() {
  const Driver& d = *setup_.driver;
  const KernelFailure& failure = *setup_.failure;
  if (std::atomic_ref(const_cast<std::uint32_t&>(failure.state)).load(std::memory_order_acquire) == 2) {
    return Error{ErrorCode::io,
                 fmt::format("rank {} waited {} ms for slice {}, chunk {}: expected {}, saw {}", failure.rank,
                             setup_.timeout.count(), failure.slice, failure.chunk, failure.expected, failure.seen)};
  }
  const auto now = std::chrono::steady_clock::now();
  for (Record& record : records_) {
    if (record.state.load(std::memory_order_acquire) != armed) continue;
    const CUresult ended = d.eventQuery(record.end);
    if (ended == CUDA_SUCCESS) {
      record.state.store(unused, std::memory_order_release);
      continue;
    }
    if (ended != CUDA_ERROR_NOT_READY) return d.check(ended, "an overlapped product");
    if (d.eventQuery(record.begin) != CUDA_SUCCESS) continue;  // work of the caller's before it
    if (record.running == std::chrono::steady_clock::time_point{}) record.running = now;
    if (now - record.running > setup_.timeout + kGrace) {
      return Error{ErrorCode::io,
                   fmt::format("an overlapped product did not end within {} ms: {}", setup_.timeout.count(), what_is_missing())};
    }
  }
  return {};
}

std::string LaunchWatch::what_is_missing() {
  const Driver& d = *setup_.driver;
  std::vector<std::uint32_t> words(setup_.count);
  const Deadline deadline = Deadline::after(Milliseconds(200));
  if (d.memcpyDtoHAsync(words.data(), setup_.words, 4 * words.size(), rescue_) != CUDA_SUCCESS) return "its words cannot be read";
  while (d.streamQuery(rescue_) == CUDA_ERROR_NOT_READY) {
    if (deadline.passed()) return "its words cannot be read";
    std::this_thread::sleep_for(Milliseconds(1));
  }
  return setup_.explain(words.data());
}

void LaunchWatch::release() {
  const Driver& d = *setup_.driver;
  d.memsetD32Async(setup_.words, kReleased, setup_.count, rescue_);
}

}  // namespace ordo::peers
