#include "runtime/peers/communicator.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "codegen/fields.hpp"
#include "codegen/hash/sha256.hpp"

namespace ordo {
namespace peers {

Result<PrimaryContext> PrimaryContext::open(const Driver& driver, int device) {
  PrimaryContext out(driver, device);
  if (auto ok = driver.check(driver.ctxGetCurrent(&out.previous_), "cuCtxGetCurrent"); !ok) return ok.error();
  CUcontext context = nullptr;
  if (auto ok = driver.check(driver.devicePrimaryCtxRetain(&context, device),
                             fmt::format("cuDevicePrimaryCtxRetain of device {}", device));
      !ok)
    return ok.error();
  out.context_ = context;
  if (auto ok = driver.check(driver.ctxSetCurrent(context), "cuCtxSetCurrent"); !ok) return ok.error();
  return out;
}

PrimaryContext::PrimaryContext(PrimaryContext&& other) noexcept
    : driver_(other.driver_),
      device_(other.device_),
      context_(std::exchange(other.context_, nullptr)),
      previous_(std::exchange(other.previous_, nullptr)) {}

PrimaryContext::~PrimaryContext() {
  if (context_ == nullptr) return;
  driver_->ctxSetCurrent(previous_);
  driver_->devicePrimaryCtxRelease(device_);
}

Result<void> wait_for_stream(const Driver& driver, CUstream stream, const Watchdog& watchdog, Deadline deadline) {
  for (;;) {
    const CUresult state = driver.streamQuery(stream);
    if (state != CUDA_ERROR_NOT_READY) return driver.check(state, "cuStreamQuery");
    if (auto healthy = watchdog.status(); !healthy) return healthy;
    if (deadline.passed()) return Error{ErrorCode::io, "a stream did not finish in time"};
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace peers

using namespace peers;

std::string_view to_string(PeerTransport transport) {
  switch (transport) {
    case PeerTransport::automatic:
      return "automatic";
    case PeerTransport::vmm:
      return "vmm";
    case PeerTransport::ipc:
      return "ipc";
    case PeerTransport::nccl:
      return "nccl";
  }
  return "unknown";
}

Result<PeerTransport> parse_peer_transport(std::string_view text) {
  return text::read_name(text, "peer transport",
                         std::array{PeerTransport::automatic, PeerTransport::vmm, PeerTransport::ipc, PeerTransport::nccl});
}

Result<std::unique_ptr<Communicator::Impl>> Communicator::Impl::create(const Platform& platform, const World& world,
                                                                       const CommunicatorOptions& asked) {
  if (world.ranks < 1 || world.rank < 0 || world.rank >= world.ranks || !world.all_gather) {
    return Error{ErrorCode::invalid_argument, fmt::format("a world of rank {} of {} {} all_gather", world.rank, world.ranks,
                                                          world.all_gather ? "with an" : "without an")};
  }
  CommunicatorOptions options = asked;
  if (options.device < 0) options.device = world.local_rank;
  // All ranks meet before any touches its device, so that one without a device is an error on all.
  auto links = Links::connect(world, platform.host, options.timeout);
  if (!links) return links.error();
  auto context = PrimaryContext::open(*platform.driver, options.device);
  const auto opened = context ? Result<void>() : Result<void>(context.error());
  if (auto all = agree_on(*links, opened, Deadline::after(options.timeout)); !all) return all.error();
  std::unique_ptr<Impl> impl(new Impl(platform, options, *std::move(context), *std::move(links)));
  auto watchdog = Watchdog::start(*platform.driver, impl->context.get(), impl->links);
  const auto started = watchdog ? Result<void>() : Result<void>(watchdog.error());
  if (auto all = agree_on(impl->links, started, impl->deadline()); !all) return all.error();
  impl->watchdog = *std::move(watchdog);
  const std::string wishes = fmt::format("transport={} timeout={}ms", to_string(options.transport), options.timeout.count());
  if (auto same = impl->agree("communicator options", wishes); !same) return same.error();
  if (auto chosen = impl->choose_transport(); !chosen) return chosen.error();
  return impl;
}

Communicator::Impl::~Impl() {
  if (watchdog != nullptr && watchdog->status()) (void)barrier();
  if (nccl != nullptr && watchdog != nullptr && !watchdog->status()) nccl->abort();
  nccl.reset();
  watchdog.reset();
}

SharingContext Communicator::Impl::sharing() const { return {platform.driver, &links, options.device, options.timeout}; }

Result<void> Communicator::Impl::choose_transport() {
  constexpr std::array kInOrder{PeerTransport::vmm, PeerTransport::ipc, PeerTransport::nccl};
  for (const PeerTransport candidate : kInOrder) {
    if (options.transport != PeerTransport::automatic && options.transport != candidate) continue;
    const auto works = probe(*this, candidate);
    if (auto healthy = watchdog->status(); !healthy) return healthy;
    if (works) {
      transport = candidate;
      return {};
    }
    reason += fmt::format("{}{}: {}", reason.empty() ? "" : "; ", to_string(candidate), works.error().message);
  }
  return Error{ErrorCode::io, fmt::format("no transport between the ranks works ({})", reason)};
}

Result<SymmetricMemory> Communicator::Impl::allocate(std::size_t bytes) {
  if (auto healthy = watchdog->status(); !healthy) return healthy.error();
  auto memory = SymmetricMemory::allocate(sharing(), transport, bytes);
  if (!memory) return checked(memory.error()).error();
  return memory;
}

void Communicator::Impl::release(SymmetricMemory memory) {
  memory.unmap_peers();
  if (watchdog->status()) {
    (void)barrier();
    return;
  }
  // A failed communicator exchanges nothing more, but memory that others map by cuIpc or by its bare address must outlive their
  // copies into it: each rank closes its side once its own are done, and waits a little for the others to do so or to be gone.
  if (transport == PeerTransport::vmm) return;
  constexpr Milliseconds kFarewell(2000);
  const Deadline soon = Deadline::after(kFarewell);
  for (int rank = 0; rank < links.ranks(); ++rank) {
    if (rank != links.rank()) links.socket(Channel::control, rank).finish(soon);
  }
}

Result<void> Communicator::Impl::checked(Result<void> result) {
  if (!result && result.error().code == ErrorCode::io) watchdog->raise(result.error());
  return result;
}

Result<void> Communicator::Impl::conclude(const Result<void>& mine) {
  if (auto healthy = watchdog->status(); !healthy) return healthy;
  return checked(agree_on(links, mine, deadline()));
}

Result<void> Communicator::Impl::barrier() {
  if (auto healthy = watchdog->status(); !healthy) return healthy;
  const char mine = 'b';
  std::vector<char> all(static_cast<std::size_t>(links.ranks()));
  return checked(links.all_gather(&mine, 1, all.data(), deadline()));
}

Result<void> Communicator::Impl::agree(std::string_view what, std::string_view text) {
  if (auto healthy = watchdog->status(); !healthy) return healthy;
  // A digest of the whole, and the beginning to show.
  struct Statement {
    std::array<char, 64> digest{};
    std::array<char, 960> text{};
  };
  const auto state = [](std::string_view from) {
    Statement out;
    const std::string digest = sha256_hex(from);
    std::memcpy(out.digest.data(), digest.data(), std::min(digest.size(), out.digest.size()));
    std::memcpy(out.text.data(), from.data(), std::min(from.size(), out.text.size() - 1));
    return out;
  };
  const Statement mine = state(text);
  std::vector<Statement> all(static_cast<std::size_t>(links.ranks()));
  if (auto gathered = checked(links.all_gather(&mine, sizeof mine, all.data(), deadline())); !gathered) return gathered;
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].digest == all[0].digest) continue;
    return Error{ErrorCode::io, fmt::format("the ranks disagree about the {}: rank 0 has \"{}\", rank {} has \"{}\"", what,
                                            all[0].text.data(), rank, all[rank].text.data())};
  }
  return {};
}

Result<Communicator> Communicator::create(const World& world, const CommunicatorOptions& options) {
  const auto opened = ordo::driver();
  if (!opened) return opened.error();
  auto impl = Impl::create({*opened, [] { return peers::nccl(); }, host_identity()}, world, options);
  if (!impl) return impl.error();
  return Communicator(*std::move(impl));
}

Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

int Communicator::rank() const { return impl_->links.rank(); }
int Communicator::ranks() const { return impl_->links.ranks(); }
int Communicator::device() const { return impl_->options.device; }
PeerTransport Communicator::transport() const { return impl_->transport; }
const std::string& Communicator::transport_reason() const { return impl_->reason; }
Result<void> Communicator::status() const { return impl_->watchdog->examine(); }
Result<void> Communicator::agree(std::string_view what, std::string_view text) { return impl_->agree(what, text); }
Result<void> Communicator::barrier() { return impl_->barrier(); }

}  // namespace ordo
