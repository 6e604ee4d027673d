#include "runtime/peers/socket.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

namespace ordo::peers {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

Error system_error(std::string_view what, int error = errno) {
  return {ErrorCode::io, fmt::format("{} failed: {}", what, reason(error))};
}

Error closed() { return {ErrorCode::io, "the other side closed the connection"}; }

// Waits until `events` or the deadline; errors of the connection show in the call that follows.
Result<void> wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(deadline.remaining().count()));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return system_error("poll");
    if (deadline.passed()) return Error{ErrorCode::io, "no answer in time"};
  }
}

bool connection_lost(int error) { return error == EPIPE || error == ECONNRESET || error == ENOTCONN; }

// What getaddrinfo gave, or a Unix path.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

SocketAddress unix_address(const std::string& path) {
  SocketAddress out;
  sockaddr_un local{};
  local.sun_family = AF_UNIX;
  std::memcpy(local.sun_path, path.data(), path.size());
  out.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (path.front() == '@') {
    local.sun_path[0] = '\0';
  } else {
    ++out.size;  // a file's name ends with a zero
  }
  std::memcpy(&out.storage, &local, sizeof local);
  return out;
}

Result<SocketAddress> resolve(const Address& address, bool to_listen) {
  if (address.local) return unix_address(address.host);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_family = AF_UNSPEC;
  hints.ai_flags = to_listen ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const char* host = address.host.empty() ? nullptr : address.host.c_str();
  const int error = ::getaddrinfo(host, std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the host '{}' cannot be resolved: {}", address.host, ::gai_strerror(error))};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  SocketAddress out;
  std::memcpy(&out.storage, found->ai_addr, found->ai_addrlen);
  out.size = found->ai_addrlen;
  return out;
}

FileDescriptor open_socket(int family) {
  FileDescriptor fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.valid() && family != AF_UNIX) {
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  return fd;
}

enum class Attempt { connected, nobody_there };

// One try. `nobody_there`: worth another.
Result<Attempt> try_connect(const FileDescriptor& fd, const SocketAddress& to, Deadline deadline) {
  if (::connect(fd.get(), to.get(), to.size) == 0) return Attempt::connected;
  int error = errno;
  if (error == EINPROGRESS) {
    if (auto ready = wait_for(fd.get(), POLLOUT, deadline); !ready) return ready.error();
    socklen_t size = sizeof error;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return system_error("getsockopt");
    if (error == 0) return Attempt::connected;
  }
  const bool nobody = error == ECONNREFUSED || error == ENOENT || error == EAGAIN || error == ECONNRESET || error == ETIMEDOUT;
  if (nobody) return Attempt::nobody_there;
  return system_error("connect", error);
}

// Room for one descriptor beside a message.
union Control {
  cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

Result<Address> parse_address(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the address '{}' {}; it is tcp:HOST:PORT, unix:PATH or unix:@NAME", text, why)};
  };
  if (text.starts_with("unix:")) {
    const std::string path(text.substr(5));
    if (path.empty() || path == "@") return bad("has no path");
    if (path.size() >= sizeof(sockaddr_un{}.sun_path)) return bad("has a path that is too long");
    return Address{true, path, 0};
  }
  if (!text.starts_with("tcp:")) return bad("is of no known kind");
  text.remove_prefix(4);
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad("has no port");
  const std::string_view digits = text.substr(colon + 1);
  std::uint16_t port = 0;
  // NOLINTBEGIN(bugprone-suspicious-stringview-data-usage): its end goes along
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, port);
  // NOLINTEND(bugprone-suspicious-stringview-data-usage)
  if (digits.empty() || stop != end || error != std::errc()) return bad("has no port within 0 .. 65535");
  return Address{false, std::string(text.substr(0, colon)), port};
}

std::string to_text(const Address& address) {
  return address.local ? "unix:" + address.host : fmt::format("tcp:{}:{}", address.host, address.port);
}

Result<void> Socket::send(const void* data, std::size_t bytes, Deadline deadline) const {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd_.get(), at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      at += sent;
      bytes -= static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN) {
      if (auto ready = wait_for(fd_.get(), POLLOUT, deadline); !ready) return ready;
    } else if (connection_lost(errno)) {
      return closed();
    } else if (errno != EINTR) {
      return system_error("send");
    }
  }
  return {};
}

Result<void> Socket::receive(void* data, std::size_t bytes, Deadline deadline) const {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::recv(fd_.get(), at, bytes, MSG_DONTWAIT);
    if (got > 0) {
      at += got;
      bytes -= static_cast<std::size_t>(got);
    } else if (got == 0 || connection_lost(errno)) {
      return closed();
    } else if (errno == EAGAIN) {
      if (auto ready = wait_for(fd_.get(), POLLIN, deadline); !ready) return ready;
    } else if (errno != EINTR) {
      return system_error("recv");
    }
  }
  return {};
}

void Socket::finish(Deadline deadline) const {
  ::shutdown(fd_.get(), SHUT_WR);
  char unread = 0;
  while (receive(&unread, 1, deadline)) {
  }
}

Result<void> Socket::send_descriptor(int descriptor, Deadline deadline) const {
  char byte = 'd';
  iovec data{&byte, 1};
  Control control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  for (;;) {
    if (::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) return {};
    if (errno == EAGAIN) {
      if (auto ready = wait_for(fd_.get(), POLLOUT, deadline); !ready) return ready;
    } else if (connection_lost(errno)) {
      return closed();
    } else if (errno != EINTR) {
      return system_error("sendmsg with a descriptor");
    }
  }
}

Result<FileDescriptor> Socket::receive_descriptor(Deadline deadline) const {
  char byte = 0;
  iovec data{&byte, 1};
  Control control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  for (;;) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    const ssize_t got = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got == 1) break;
    if (got == 0 || connection_lost(errno)) return closed();
    if (errno == EAGAIN) {
      if (auto ready = wait_for(fd_.get(), POLLIN, deadline); !ready) return ready.error();
    } else if (errno != EINTR) {
      return system_error("recvmsg");
    }
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int))) {
    const bool full = (message.msg_flags & MSG_CTRUNC) != 0;
    return Error{ErrorCode::io, full ? "a file descriptor did not fit: the process has as many as it may open (ulimit -n)"
                                     : "a message came without its file descriptor"};
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return FileDescriptor(descriptor);
}

bool Socket::same_user() const {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) return false;
  if (own.ss_family != AF_UNIX) return true;
  ucred other{};
  size = sizeof other;
  return ::getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == ::geteuid();
}

Result<Listener> Listener::open(const Address& address) {
  const auto to = resolve(address, true);
  if (!to) return to.error();
  FileDescriptor fd = open_socket(to->storage.ss_family);
  if (!fd.valid()) return system_error("socket");
  const bool file = address.local && address.host.front() != '@';
  if (file) {
    // A file without a listener is what a killed process leaves.
    const FileDescriptor probe = open_socket(AF_UNIX);
    if (probe.valid() && ::connect(probe.get(), to->get(), to->size) != 0 && errno == ECONNREFUSED)
      ::unlink(address.host.c_str());
  } else if (!address.local) {
    const int on = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  if (::bind(fd.get(), to->get(), to->size) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    return system_error(fmt::format("listening on {}", to_text(address)));
  }
  Address bound = address;
  if (!address.local && address.port == 0) {
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) return system_error("getsockname");
    bound.port = ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(own).sin6_port
                                                 : reinterpret_cast<sockaddr_in&>(own).sin_port);
  }
  return Listener(std::move(fd), std::move(bound));
}

Listener::~Listener() {
  if (fd_.valid() && address_.local && address_.host.front() != '@') ::unlink(address_.host.c_str());
}

Result<Socket> Listener::accept(Deadline deadline) const {
  for (;;) {
    FileDescriptor fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      if (!address_.local) {
        const int on = 1;
        ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      }
      return Socket(std::move(fd));
    }
    if (errno == EAGAIN) {
      if (auto ready = wait_for(fd_.get(), POLLIN, deadline); !ready) return ready.error();
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return system_error("accept");
    }
  }
}

Result<Socket> connect(const Address& address, Deadline deadline) {
  constexpr Milliseconds kPause(10);
  const auto to = resolve(address, false);
  if (!to) return to.error();
  for (;;) {
    FileDescriptor fd = open_socket(to->storage.ss_family);
    if (!fd.valid()) return system_error("socket");
    const auto attempt = try_connect(fd, *to, deadline);
    if (!attempt) return Error{attempt.error().code, fmt::format("{}: {}", to_text(address), attempt.error().message)};
    if (*attempt == Attempt::connected) return Socket(std::move(fd));
    if (deadline.passed()) return Error{ErrorCode::io, fmt::format("nobody listens on {}", to_text(address))};
    std::this_thread::sleep_for(std::min(kPause, deadline.remaining()));
  }
}

Result<std::uint16_t> free_tcp_port() {
  const auto listener = Listener::open({false, "127.0.0.1", 0});
  if (!listener) return listener.error();
  return listener->address().port;
}

Result<std::pair<Socket, Socket>> socket_pair() {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return system_error("socketpair");
  return std::pair(Socket(FileDescriptor(ends[0])), Socket(FileDescriptor(ends[1])));
}

}  // namespace ordo::peers
