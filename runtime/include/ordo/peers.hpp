// Ranks that work on one problem together: one GPU each, threads of one process or processes of any launcher.
//
//   auto world = ordo::world_from_environment(timeout);      // torchrun's variables, MPI's, or those of `ordo launch`
//   auto group = ordo::Communicator::create(*world, {});      // collective
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "ordo/error.hpp"

namespace ordo {

/// Gathers `bytes` from every rank: copies `mine` of rank r to all + r * bytes, on every rank. Blocks until all ranks called it.
/// Called in the same order, with the same size, by all ranks. Whoever supplies it bounds its waits.
using AllGather = std::function<Result<void>(const void* mine, std::size_t bytes, void* all)>;

/// Who takes part. `all_gather` is called a few times while a Communicator is created, and not kept.
struct World {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;  ///< among the ranks of this host: the default device
  AllGather all_gather;
};

/// The built-in rendezvous: rank 0 listens on `address` ("tcp:host:port", "unix:path" or "unix:@name"), the others connect, and
/// every gather goes through rank 0. Returns once all ranks are there. Errors: invalid_argument (rank, ranks, address); io (who
/// did not come within `timeout`, who left, who says it is one of another number of ranks): on every rank that has come.
ORDO_API Result<World> join_world(std::string_view address, int rank, int ranks, std::chrono::milliseconds timeout);

/// join_world by environment variables: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT as torchrun and `ordo launch`
/// set them; rank and size else from OMPI_COMM_WORLD_*, PMI_* or SLURM_*. $ORDO_RENDEZVOUS, an address, replaces MASTER_ADDR and
/// MASTER_PORT; under torchrun, whose own store holds MASTER_PORT, the port after it is used. Without any of them: one rank.
ORDO_API Result<World> world_from_environment(std::chrono::milliseconds timeout);

/// How bytes travel between ranks.
enum class PeerTransport {
  automatic,  ///< the first of the others that a real transfer between all ranks proves
  vmm,        ///< memory mapped by POSIX file descriptors (cuMemExportToShareableHandle), copy engines
  ipc,        ///< memory mapped by cuIpc handles, copy engines
  nccl,       ///< NCCL's send and receive: no peer access, or several hosts
};

ORDO_API std::string_view to_string(PeerTransport transport);
ORDO_API Result<PeerTransport> parse_peer_transport(std::string_view text);

struct CommunicatorOptions {
  int device = -1;  ///< -1: the world's local rank
  PeerTransport transport = PeerTransport::automatic;
  /// The longest that any wait for another rank takes, on the host and on the device.
  std::chrono::milliseconds timeout{30000};
};

/// The ranks that launch overlapped kernels together. Created, used and destroyed by all ranks in the same order. One thread a
/// rank calls it; status() may be called from any. A failure on one rank fails the communicator on every rank: whatever was in
/// flight ends, its results are undefined, and every later call returns the error that came first. Destroy it then, and create
/// another.
class ORDO_API Communicator {
 public:
  /// Collective. Errors: what World::all_gather says; no_device, driver; io (a rank with another number of ranks or version of
  /// ordo; no transport between all ranks works, and why).
  static Result<Communicator> create(const World& world, const CommunicatorOptions& options);
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) = delete;
  ~Communicator();

  [[nodiscard]] int rank() const;
  [[nodiscard]] int ranks() const;
  [[nodiscard]] int device() const;
  [[nodiscard]] PeerTransport transport() const;
  /// Why the better transports were not taken; empty if the first was.
  [[nodiscard]] const std::string& transport_reason() const;

  /// Success, or why the communicator failed. Does not wait. After a launch's stream was synchronised it says whether the
  /// launch's results are to be trusted.
  [[nodiscard]] Result<void> status() const;

  /// Collective: success if every rank gives the same text; else an error on every rank that shows both. `what` names it ("plan
  /// hash"). Does not fail the communicator.
  Result<void> agree(std::string_view what, std::string_view text);

  /// Collective. Returns once every rank called it.
  Result<void> barrier();

  struct Impl;
  [[nodiscard]] Impl& impl() const { return *impl_; }

 private:
  explicit Communicator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ordo
