// The inside of ordo::Communicator.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <string>

#include "ordo/peers.hpp"
#include "runtime/driver.hpp"
#include "runtime/peers/links.hpp"
#include "runtime/peers/nccl.hpp"
#include "runtime/peers/symmetric_memory.hpp"
#include "runtime/peers/watchdog.hpp"

namespace ordo {

namespace peers {

/// CTAs of a device that work for one of NCCL's transfers, at most.
inline constexpr int kNcclCtas = 16;

/// What a communicator stands on, apart so that tests can put something else there.
struct Platform {
  const Driver* driver = nullptr;
  std::function<Result<const Nccl*>()> nccl;
  std::string host;  ///< host_identity()
};

/// A device's primary context, current on the thread that opened it until it is destroyed there.
class PrimaryContext {
 public:
  static Result<PrimaryContext> open(const Driver& driver, int device);
  PrimaryContext(PrimaryContext&& other) noexcept;
  PrimaryContext& operator=(PrimaryContext&&) = delete;
  ~PrimaryContext();
  [[nodiscard]] CUcontext get() const { return context_; }

 private:
  PrimaryContext(const Driver& driver, int device) : driver_(&driver), device_(device) {}
  const Driver* driver_;
  int device_;
  CUcontext context_ = nullptr, previous_ = nullptr;
};

/// Waits until everything in `stream` is done, the communicator fails, or the deadline passes (ErrorCode::io).
Result<void> wait_for_stream(const Driver& driver, CUstream stream, const Watchdog& watchdog, Deadline deadline);

}  // namespace peers

struct Communicator::Impl {
  static Result<std::unique_ptr<Impl>> create(const peers::Platform& platform, const World& world,
                                              const CommunicatorOptions& options);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  /// After a barrier, unless it failed: a peer may still use this rank's memory.
  ~Impl();

  [[nodiscard]] const Driver& driver() const { return *platform.driver; }
  [[nodiscard]] peers::Deadline deadline() const { return peers::Deadline::after(options.timeout); }

  /// Memory that all ranks map; see SymmetricMemory::allocate.
  Result<peers::SymmetricMemory> allocate(std::size_t bytes);
  /// Collective, unless the communicator failed: frees it once no rank maps it.
  void release(peers::SymmetricMemory memory);
  Result<void> agree(std::string_view what, std::string_view text);
  Result<void> barrier();
  /// Ends a collective step: success on all ranks or the same error on all. A rank that did not take part fails the communicator.
  Result<void> conclude(const Result<void>& mine);
  /// Passes `result` on; an error that leaves the ranks at different places of the protocol fails the communicator.
  Result<void> checked(Result<void> result);

  peers::Platform platform;
  CommunicatorOptions options;
  peers::PrimaryContext context;
  peers::Links links;
  std::unique_ptr<peers::Watchdog> watchdog;
  PeerTransport transport = PeerTransport::automatic;
  std::string reason;
  std::unique_ptr<peers::NcclComm> nccl;  ///< under PeerTransport::nccl

 private:
  Impl(peers::Platform on, CommunicatorOptions with, peers::PrimaryContext in, peers::Links over)
      : platform(std::move(on)), options(with), context(std::move(in)), links(std::move(over)) {}
  Result<void> choose_transport();
  [[nodiscard]] peers::SharingContext sharing() const;
};

namespace peers {

/// Collective: moves 64 KiB between every two ranks by `transport` and compares them, with the values that order copies. The same
/// verdict on all ranks.
Result<void> probe(Communicator::Impl& group, PeerTransport transport);

/// Collective: a communicator of NCCL's between the same ranks. Errors, the same on all ranks: unsupported (NCCL is missing),
/// driver.
Result<std::unique_ptr<NcclComm>> connect_nccl(Communicator::Impl& group, int most_ctas);

}  // namespace peers
}  // namespace ordo
