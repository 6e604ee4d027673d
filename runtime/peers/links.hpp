// Two connections between every two ranks: `control` for collective calls and descriptors, `alarm` for failures, which a watchdog
// reads.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ordo/peers.hpp"
#include "runtime/peers/socket.hpp"

namespace ordo::peers {

enum class Channel : std::uint32_t { control, alarm };

/// Of one machine and network namespace: ranks with equal identities reach each other over Unix-domain sockets.
std::string host_identity();

/// A number that no other process has; the same for all threads of this one.
std::uint64_t process_identity();

/// Where a rank listens, and the secret that it told the others: whoever connects shows it.
struct Place {
  Address address;
  std::array<std::uint8_t, 16> token{};
};

/// The mesh. One thread at a time uses the control channels. A rank's socket to itself is not valid.
class Links {
 public:
  /// Collective over world.all_gather. `host` tells which ranks share a machine (host_identity(), apart for tests).
  /// Errors: as all_gather says; io (a rank of another number of ranks or another version; a rank that does not connect in
  /// time).
  static Result<Links> connect(const World& world, const std::string& host, Milliseconds timeout);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] const Socket& socket(Channel channel, int rank) const {
    return sockets_[static_cast<std::size_t>(channel)][static_cast<std::size_t>(rank)];
  }
  /// Whether descriptors can be sent to all ranks.
  [[nodiscard]] bool one_host() const { return one_host_; }

  /// As World::all_gather, at most 16 KiB a rank. An error of ErrorCode::io names the rank that left or did not answer.
  Result<void> all_gather(const void* mine, std::size_t bytes, void* all, Deadline deadline) const;

 private:
  Links(int rank, int ranks);
  Socket& slot(Channel channel, int rank) { return sockets_[static_cast<std::size_t>(channel)][static_cast<std::size_t>(rank)]; }
  Result<void> meet(const Listener& listener, const std::vector<Place>& places, Deadline deadline);
  Result<void> greet(int rank, const Place& place, Deadline deadline);
  Result<bool> welcome(Socket accepted, const Place& own, Deadline deadline);

  int rank_, ranks_;
  bool one_host_ = true;
  std::array<std::vector<Socket>, 2> sockets_;
};

}  // namespace ordo::peers
