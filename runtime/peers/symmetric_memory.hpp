// Device memory of the same size on every rank, mapped by all of them.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "ordo/peers.hpp"
#include "runtime/driver.hpp"
#include "runtime/peers/links.hpp"

namespace ordo::peers {

/// Where memory is shared, and with whom. The context of `device` is current.
struct SharingContext {
  const Driver* driver = nullptr;
  const Links* links = nullptr;
  int device = 0;
  Milliseconds timeout{0};
};

/// Frees and unmaps what it holds. Peers that still map it keep vmm memory alive; ipc memory must be freed after they unmapped
/// it.
class SymmetricMemory {
 public:
  /// Collective; an error on one rank (out of memory, peer access denied) is an error on all, and names the rank. `transport` is
  /// vmm, ipc or nccl (then no peer is mapped). Zeroed.
  static Result<SymmetricMemory> allocate(const SharingContext& context, PeerTransport transport, std::size_t bytes);
  SymmetricMemory() = default;
  SymmetricMemory(SymmetricMemory&&) noexcept = default;
  SymmetricMemory& operator=(SymmetricMemory&&) noexcept = default;

  /// Of this rank.
  [[nodiscard]] CUdeviceptr local() const { return addresses_.empty() ? 0 : addresses_[static_cast<std::size_t>(rank_)]; }
  /// Where this rank's device sees the memory of `rank`; 0 for other ranks under nccl.
  [[nodiscard]] CUdeviceptr of(int rank) const { return addresses_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Gives up the mappings of other ranks' memory. cuIpc asks that all ranks do before any frees: see
  /// Communicator::Impl::release.
  void unmap_peers() {
    if (!mappings_.empty()) mappings_.resize(1);
  }

 private:
  /// Undoes one step of making the memory, last first.
  struct Mapping {
    virtual ~Mapping() = default;
  };
  class VmmMapping;
  class OwnedMapping;
  class IpcMapping;
  class Maker;

  int rank_ = 0;
  std::size_t bytes_ = 0;
  std::vector<CUdeviceptr> addresses_;
  std::vector<std::unique_ptr<Mapping>> mappings_;  ///< the own one first
};

/// What one rank has to say about a collective step: success, or its error. Returns the same on all ranks: success only if all
/// succeeded, else the error of the lowest rank that failed, which it names.
Result<void> agree_on(const Links& links, const Result<void>& mine, Deadline deadline);

}  // namespace ordo::peers
