// The built-in rendezvous: a star of sockets around rank 0.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "ordo/peers.hpp"
#include "runtime/peers/socket.hpp"

namespace ordo {
namespace {

using namespace peers;

constexpr std::uint32_t kMagic = 0x6f72646f;  // "ordo"
constexpr std::uint32_t kProtocol = 1;
constexpr std::uint32_t kMostBytes = 1 << 20;  ///< of one rank in a gather
constexpr Milliseconds kHelloTime(2000);       ///< for a connection to say who it is
constexpr Milliseconds kFarewellTime(500);     ///< for the others to read why it ends
constexpr Milliseconds kAnswerTime(2000);      ///< beyond the timeout of rank 0, whose verdict the others wait for

struct Hello {
  std::uint32_t magic = kMagic, protocol = kProtocol;
  std::int32_t rank = 0, ranks = 0;
};

// Precedes what rank 0 sends: the gathered bytes, or why there are none.
struct Answer {
  std::uint32_t failed = 0, bytes = 0;
};

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += fmt::format("{} {}", i == 0 ? "" : ",", ranks[i]);
  return text;
}

class Star {
 public:
  Star(int rank, int ranks, Milliseconds timeout)
      : rank_(rank), ranks_(ranks), timeout_(timeout), sockets_(static_cast<std::size_t>(ranks)) {}

  Result<void> join(const Address& address) { return rank_ == 0 ? gather_ranks(address) : report_to_root(address); }

  Result<void> gather(const void* mine, std::size_t bytes, void* all) {
    if (bytes > kMostBytes)
      return Error{ErrorCode::invalid_argument, fmt::format("a gather of {} bytes a rank; {} are the most", bytes, kMostBytes)};
    return rank_ == 0 ? gather_at_root(mine, bytes, all) : gather_from_root(mine, bytes, all);
  }

 private:
  Socket& socket(int rank) { return sockets_[static_cast<std::size_t>(rank)]; }

  Result<void> gather_ranks(const Address& address) {
    auto listener = Listener::open(address);
    if (!listener) return listener.error();
    const Deadline deadline = Deadline::after(timeout_);
    for (int missing = ranks_ - 1; missing > 0;) {
      auto accepted = listener->accept(deadline);
      if (!accepted) return fail(absent());
      auto taken = take(*std::move(accepted), deadline);
      if (!taken) return fail(taken.error());
      if (*taken) --missing;
    }
    return tell_all({});
  }

  // false: a stranger, who is ignored.
  Result<bool> take(Socket accepted, Deadline deadline) {
    Hello hello;
    const Deadline soon = Deadline::after(std::min(kHelloTime, deadline.remaining()));
    if (!accepted.receive(&hello, sizeof hello, soon) || hello.magic != kMagic) return false;
    if (hello.protocol != kProtocol || hello.ranks != ranks_ || hello.rank < 1 || hello.rank >= ranks_) {
      const Error error{
          ErrorCode::io,
          fmt::format("a process calls itself rank {} of {} (protocol {}), where rank 0 is one of {} (protocol {}): start all "
                      "ranks with the same command",
                      hello.rank, hello.ranks, hello.protocol, ranks_, kProtocol)};
      (void)send_failure(accepted, error);
      return error;
    }
    if (socket(hello.rank).valid()) {
      const Error error{ErrorCode::io, fmt::format("two processes call themselves rank {}", hello.rank)};
      (void)send_failure(accepted, error);
      return error;
    }
    socket(hello.rank) = std::move(accepted);
    return true;
  }

  Error absent() const {
    std::vector<int> missing;
    for (int rank = 1; rank < ranks_; ++rank) {
      if (!sockets_[static_cast<std::size_t>(rank)].valid()) missing.push_back(rank);
    }
    return {ErrorCode::io, fmt::format("{} of {} did not come within {} ms", list_ranks(missing), ranks_, timeout_.count())};
  }

  Result<void> report_to_root(const Address& address) {
    const Deadline deadline = Deadline::after(timeout_);
    auto connected = connect(address, deadline);
    if (!connected) {
      return Error{connected.error().code,
                   fmt::format("rank 0 was not reached within {} ms: {}", timeout_.count(), connected.error().message)};
    }
    socket(0) = *std::move(connected);
    const Hello hello{.rank = rank_, .ranks = ranks_};
    if (auto sent = socket(0).send(&hello, sizeof hello, deadline); !sent) return about_root(sent.error());
    return receive_answer(nullptr, 0, Deadline::after(timeout_ + kAnswerTime));
  }

  Result<void> gather_at_root(const void* mine, std::size_t bytes, void* all) {
    auto* out = static_cast<std::byte*>(all);
    std::memcpy(out, mine, bytes);
    const Deadline deadline = Deadline::after(timeout_);
    for (int rank = 1; rank < ranks_; ++rank) {
      std::uint32_t size = 0;
      if (auto got = socket(rank).receive(&size, sizeof size, deadline); !got) return fail(about(rank, got.error()));
      if (size != bytes) {
        return fail({ErrorCode::io,
                     fmt::format("rank {} gathers {} bytes, rank 0 {}: they are not at the same call", rank, size, bytes)});
      }
      if (auto got = socket(rank).receive(out + bytes * static_cast<std::size_t>(rank), bytes, deadline); !got)
        return fail(about(rank, got.error()));
    }
    return tell_all({out, bytes * static_cast<std::size_t>(ranks_)});
  }

  Result<void> gather_from_root(const void* mine, std::size_t bytes, void* all) {
    const Deadline deadline = Deadline::after(timeout_);
    const auto size = static_cast<std::uint32_t>(bytes);
    if (auto sent = socket(0).send(&size, sizeof size, deadline); !sent) return about_root(sent.error());
    if (auto sent = socket(0).send(mine, bytes, deadline); !sent) return about_root(sent.error());
    return receive_answer(all, bytes * static_cast<std::size_t>(ranks_), Deadline::after(timeout_ + kAnswerTime));
  }

  struct Bytes {
    const void* data = nullptr;
    std::size_t size = 0;
  };
  Result<void> tell_all(Bytes bytes) {
    const Answer answer{0, static_cast<std::uint32_t>(bytes.size)};
    const Deadline deadline = Deadline::after(timeout_);
    for (int rank = 1; rank < ranks_; ++rank) {
      if (auto sent = socket(rank).send(&answer, sizeof answer, deadline); !sent) return fail(about(rank, sent.error()));
      if (auto sent = socket(rank).send(bytes.data, bytes.size, deadline); !sent) return fail(about(rank, sent.error()));
    }
    return {};
  }

  static Result<void> send_failure(const Socket& to, const Error& error) {
    const Deadline soon = Deadline::after(kHelloTime);
    const Answer answer{1, static_cast<std::uint32_t>(error.message.size())};
    if (auto sent = to.send(&answer, sizeof answer, soon); !sent) return sent;
    return to.send(error.message.data(), error.message.size(), soon);
  }

  // Every rank that is there learns of it.
  Error fail(const Error& error) {
    for (int rank = 1; rank < ranks_; ++rank) {
      if (socket(rank).valid()) (void)send_failure(socket(rank), error);
    }
    // A connection that is closed while bytes wait unread in it is reset, and the message is lost.
    for (int rank = 1; rank < ranks_; ++rank) {
      if (socket(rank).valid()) socket(rank).finish(Deadline::after(kFarewellTime));
    }
    return error;
  }

  Result<void> receive_answer(void* out, std::size_t bytes, Deadline deadline) {
    Answer answer;
    if (auto got = socket(0).receive(&answer, sizeof answer, deadline); !got) return about_root(got.error());
    if (answer.failed == 0 && answer.bytes == bytes) {
      auto got = socket(0).receive(out, bytes, deadline);
      return got ? got : about_root(got.error());
    }
    if (answer.failed == 0)
      return Error{ErrorCode::io, fmt::format("rank 0 answers with {} bytes, {} were due", answer.bytes, bytes)};
    std::string text(std::min<std::size_t>(answer.bytes, 4096), ' ');
    if (auto got = socket(0).receive(text.data(), text.size(), deadline); !got) return about_root(got.error());
    return Error{ErrorCode::io, std::move(text)};
  }

  static Error about(int rank, const Error& error) { return {error.code, fmt::format("rank {}: {}", rank, error.message)}; }
  static Error about_root(const Error& error) { return about(0, error); }

  int rank_, ranks_;
  Milliseconds timeout_;
  std::vector<Socket> sockets_;  ///< by rank; but for rank 0 only the first
};

std::optional<std::string> variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return std::string(value);
  }
  return std::nullopt;
}

Result<int> number(std::string_view what, const std::string& text) {
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value < 0) {
    return Error{ErrorCode::invalid_argument, fmt::format("the environment says {}={}, which is not a number", what, text)};
  }
  return value;
}

Result<std::string> rendezvous_address() {
  if (const auto address = variable({"ORDO_RENDEZVOUS"})) return *address;
  const auto host = variable({"MASTER_ADDR"});
  const auto port = variable({"MASTER_PORT"});
  if (!host || !port) {
    return Error{
        ErrorCode::invalid_argument,
        "the ranks have no place to meet: set MASTER_ADDR and MASTER_PORT, or ORDO_RENDEZVOUS to tcp:HOST:PORT or unix:PATH"};
  }
  auto value = number("MASTER_PORT", *port);
  if (!value) return value.error();
  const bool store_has_it = variable({"TORCHELASTIC_RUN_ID"}).has_value();
  return fmt::format("tcp:{}:{}", *host, *value + (store_has_it ? 1 : 0));
}

}  // namespace

Result<World> join_world(std::string_view address, int rank, int ranks, std::chrono::milliseconds timeout) {
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("rank {} of {}: ranks count from 0 and there is at least one", rank, ranks)};
  }
  World world;
  world.rank = rank;
  world.ranks = ranks;
  world.local_rank = rank;
  auto star = std::make_shared<Star>(rank, ranks, timeout);
  if (ranks > 1) {
    const auto parsed = parse_address(address);
    if (!parsed) return parsed.error();
    if (auto joined = star->join(*parsed); !joined) return joined.error();
  }
  world.all_gather = [star](const void* mine, std::size_t bytes, void* all) { return star->gather(mine, bytes, all); };
  return world;
}

Result<World> world_from_environment(std::chrono::milliseconds timeout) {
  const auto rank_text = variable({"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"});
  const auto size_text = variable({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"});
  if (!rank_text || !size_text) return join_world("", 0, 1, timeout);
  const auto rank = number("RANK", *rank_text);
  if (!rank) return rank.error();
  const auto ranks = number("WORLD_SIZE", *size_text);
  if (!ranks) return ranks.error();
  std::string address;
  if (*ranks > 1) {
    auto place = rendezvous_address();
    if (!place) return place.error();
    address = *std::move(place);
  }
  auto world = join_world(address, *rank, *ranks, timeout);
  if (!world) return world;
  if (const auto local = variable({"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})) {
    auto value = number("LOCAL_RANK", *local);
    if (!value) return value.error();
    world->local_rank = *value;
  }
  return world;
}

}  // namespace ordo
