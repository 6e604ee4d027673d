// Stream sockets whose every wait ends by a deadline.
//
// Errors are ErrorCode::io: the other side closed, kept silent or was not there, or the system refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ordo/error.hpp"
#include "runtime/peers/deadline.hpp"
#include "runtime/peers/file_descriptor.hpp"

namespace ordo::peers {

/// Where to listen or connect: "tcp:host:port" or "unix:path"; "unix:@name" is Linux's abstract namespace, which leaves no file.
struct Address {
  bool local = false;  ///< Unix-domain
  std::string host;    ///< of tcp; the path or @name of unix
  std::uint16_t port = 0;
};

/// Errors (invalid_argument): another form, a port outside 0 .. 65535, a path longer than the system's 107 bytes.
Result<Address> parse_address(std::string_view text);
std::string to_text(const Address& address);

/// One connection. Not thread-safe; moves, does not copy.
class Socket {
 public:
  Socket() = default;
  explicit Socket(FileDescriptor fd) : fd_(std::move(fd)) {}

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] bool valid() const { return fd_.valid(); }

  /// All `bytes` or an error.
  Result<void> send(const void* data, std::size_t bytes, Deadline deadline) const;
  Result<void> receive(void* data, std::size_t bytes, Deadline deadline) const;

  /// Says that nothing more will be sent, and waits until the other side has closed, or the deadline.
  void finish(Deadline deadline) const;

  /// Passes a copy of a descriptor over a Unix-domain connection (SCM_RIGHTS, with one byte of data); the caller keeps its own.
  Result<void> send_descriptor(int descriptor, Deadline deadline) const;
  Result<FileDescriptor> receive_descriptor(Deadline deadline) const;

  /// Whether the other side of a Unix-domain connection runs under this user. Always true over TCP.
  [[nodiscard]] bool same_user() const;

 private:
  FileDescriptor fd_;
};

class Listener {
 public:
  /// Port 0 takes a free one. A Unix path that a dead process left behind is replaced; a live one is an error.
  static Result<Listener> open(const Address& address);
  Listener(Listener&& other) noexcept : fd_(std::move(other.fd_)), address_(std::exchange(other.address_, {})) {}
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  [[nodiscard]] const Address& address() const { return address_; }
  [[nodiscard]] Result<Socket> accept(Deadline deadline) const;

 private:
  Listener(FileDescriptor fd, Address address) : fd_(std::move(fd)), address_(std::move(address)) {}
  FileDescriptor fd_;
  Address address_;
};

/// Connects; while nobody listens there, tries again until the deadline.
Result<Socket> connect(const Address& address, Deadline deadline);

/// A TCP port of the loopback that nobody listens on at the moment.
ORDO_API Result<std::uint16_t> free_tcp_port();

/// Two connected Unix-domain sockets.
Result<std::pair<Socket, Socket>> socket_pair();

}  // namespace ordo::peers
