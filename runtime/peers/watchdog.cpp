#include "runtime/peers/watchdog.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace ordo::peers {
namespace {

constexpr Milliseconds kTick(10);
constexpr Milliseconds kSendTime(200);  ///< for a message to a peer that may be gone
constexpr std::uint32_t kMostText = 1024;

enum Kind : std::uint32_t {
  alarm_failed = 1,  ///< with what failed here
  alarm_leaving = 2,
  alarm_relayed = 3,  ///< of a failure that was heard of, or leaving after one: with what failed first, wherever
};

struct Frame {
  std::uint32_t kind = 0, bytes = 0;
};

}  // namespace

Result<PinnedMemory> PinnedMemory::allocate(const Driver& driver, std::size_t bytes) {
  PinnedMemory out;
  out.driver_ = &driver;
  if (auto ok = driver.check(driver.memHostAlloc(&out.host_, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                             fmt::format("cuMemHostAlloc of {} bytes", bytes));
      !ok) {
    return ok.error();
  }
  std::memset(out.host_, 0, bytes);
  if (auto ok = driver.check(driver.memHostGetDevicePointer(&out.device_, out.host_, 0), "cuMemHostGetDevicePointer"); !ok)
    return ok.error();
  return out;
}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(host_, other.host_);
  std::swap(device_, other.device_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  if (host_ != nullptr) driver_->memFreeHost(host_);
}

Result<std::unique_ptr<Watchdog>> Watchdog::start(const Driver& driver, CUcontext context, const Links& links) {
  auto abort = PinnedMemory::allocate(driver, sizeof(std::uint32_t));
  if (!abort) return abort.error();
  FileDescriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return Error{ErrorCode::io, "eventfd failed: the process has as many files open as it may (ulimit -n)"};
  std::unique_ptr<Watchdog> out(new Watchdog(driver, context, links, *std::move(abort), std::move(wake)));
  out->thread_ = std::thread([dog = out.get()] { dog->run(); });
  return out;
}

Watchdog::Watchdog(const Driver& driver, CUcontext context, const Links& links, PinnedMemory abort, FileDescriptor wake)
    : driver_(driver),
      context_(context),
      links_(links),
      abort_(std::move(abort)),
      wake_(std::move(wake)),
      left_(static_cast<std::size_t>(links.ranks()), false) {}

Watchdog::~Watchdog() {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  thread_.join();
  // A peer that has not heard of the failure yet must not take this end for the cause.
  const auto healthy = status();
  tell_all(healthy ? alarm_leaving : alarm_relayed, healthy ? "" : healthy.error().message);
}

Result<void> Watchdog::status() const {
  if (!failed_) return {};
  const std::scoped_lock lock(mutex_);
  return *failure_;
}

Result<void> Watchdog::examine() {
  read_alarms();
  if (auto checked = check_watched(); !checked) fail(checked.error(), Heard::here);
  return status();
}

Result<void> Watchdog::check_watched() {
  const std::scoped_lock lock(mutex_);
  for (Watched* watched : watched_) {
    if (failure_) {
      if (told_) watched->release();  // again: work that was queued behind the first wait waits anew
    } else if (auto checked = watched->check(); !checked) {
      return checked;
    }
  }
  return {};
}

void Watchdog::raise(const Error& error) { fail(error, Heard::here); }

void Watchdog::add(Watched& watched) {
  const std::scoped_lock lock(mutex_);
  watched_.push_back(&watched);
  if (told_) watched.release();
}

void Watchdog::remove(Watched& watched) {
  const std::scoped_lock lock(mutex_);
  std::erase(watched_, &watched);
}

void Watchdog::fail(const Error& error, Heard heard) {
  {
    const std::scoped_lock lock(mutex_);
    if (failure_) return;
    failure_ = error;
    failed_ = true;
    std::atomic_ref(*static_cast<std::uint32_t*>(abort_.host())).store(1, std::memory_order_release);
  }
  // First all hear of it: copies that are released carry undefined data, and the words behind them say that it is there. What was
  // heard from one peer is told too, for that one may not have told the others yet.
  tell_all(heard == Heard::here ? alarm_failed : alarm_relayed, error.message);
  const std::scoped_lock lock(mutex_);
  told_ = true;
  for (Watched* watched : watched_) watched->release();
}

void Watchdog::tell_all(std::uint32_t kind, const std::string& text) const {
  const Frame frame{kind, static_cast<std::uint32_t>(std::min<std::size_t>(text.size(), kMostText))};
  const Deadline deadline = Deadline::after(kSendTime);
  for (int rank = 0; rank < links_.ranks(); ++rank) {
    const Socket& socket = links_.socket(Channel::alarm, rank);
    // A peer that is gone needs no message.
    if (socket.valid() && socket.send(&frame, sizeof frame, deadline)) (void)socket.send(text.data(), frame.bytes, deadline);
  }
}

void Watchdog::run() {
  driver_.ctxSetCurrent(context_);
  // Queries of this thread must not end a capture of another (cuStreamBeginCapture's global mode).
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver_.threadExchangeStreamCaptureMode(&mode);
  std::vector<pollfd> polled;
  for (;;) {
    polled.assign(1, {wake_.get(), POLLIN, 0});
    {
      const std::scoped_lock lock(reading_);
      for (int rank = 0; rank < links_.ranks(); ++rank) {
        const Socket& socket = links_.socket(Channel::alarm, rank);
        if (socket.valid() && !left_[static_cast<std::size_t>(rank)]) polled.push_back({socket.fd(), POLLIN, 0});
      }
    }
    ::poll(polled.data(), polled.size(), static_cast<int>(kTick.count()));
    if (polled[0].revents != 0) return;
    read_alarms();
    if (auto checked = check_watched(); !checked) fail(checked.error(), Heard::here);
  }
}

void Watchdog::read_alarms() {
  const std::scoped_lock lock(reading_);
  for (int rank = 0; rank < links_.ranks(); ++rank) {
    const Socket& socket = links_.socket(Channel::alarm, rank);
    if (!socket.valid() || left_[static_cast<std::size_t>(rank)]) continue;
    pollfd polled{socket.fd(), POLLIN, 0};
    if (::poll(&polled, 1, 0) > 0) read_alarm(rank);
  }
}

void Watchdog::read_alarm(int rank) {
  const Socket& socket = links_.socket(Channel::alarm, rank);
  const Deadline deadline = Deadline::after(kSendTime);
  Frame frame;
  std::string text;
  auto got = socket.receive(&frame, sizeof frame, deadline);
  if (got) {
    text.resize(std::min(frame.bytes, kMostText));
    got = socket.receive(text.data(), text.size(), deadline);
  }
  left_[static_cast<std::size_t>(rank)] = true;
  if (!got) {
    fail({ErrorCode::io, fmt::format("rank {} ended without taking leave (killed, or its process crashed)", rank)},
         Heard::from_another);
  } else if (frame.kind == alarm_failed) {
    fail({ErrorCode::io, fmt::format("rank {} failed: {}", rank, text)}, Heard::from_another);
  } else if (frame.kind == alarm_relayed) {
    fail({ErrorCode::io, text}, Heard::from_another);
  }
}

}  // namespace ordo::peers
