#include "runtime/peers/links.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>

namespace ordo::peers {
namespace {

constexpr std::uint32_t kMagic = 0x6c696e6b;
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kMostBytes = 16384;

using Token = decltype(Place::token);

// What every rank tells every other.
struct Card {
  std::uint32_t magic = kMagic, version = kVersion;
  std::int32_t rank = 0, ranks = 0;
  Token token{};
  std::array<char, 96> host{};
  std::array<char, 96> address{};
};

// The first bytes of a connection.
struct Greeting {
  Token token{};  ///< of the rank that is greeted
  std::int32_t rank = 0;
  std::uint32_t channel = 0;
};

Result<Token> random_token() {
  Token token;
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size()))
    return Error{ErrorCode::io, "getrandom failed"};
  return token;
}

template <std::size_t size>
void store(std::array<char, size>& out, const std::string& text) {
  out.fill(0);
  std::memcpy(out.data(), text.data(), std::min(text.size(), size - 1));
}

std::string hex(const Token& token) {
  std::string text;
  for (const std::uint8_t byte : token) text += fmt::format("{:02x}", byte);
  return text;
}

// The address that other hosts reach this one by: $ORDO_HOST_ADDRESS, else that of the first interface that is up and not
// loopback.
std::string own_address() {
  if (const char* given = std::getenv("ORDO_HOST_ADDRESS")) return given;
  std::string found = "127.0.0.1";
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & IFF_LOOPBACK) != 0 || (entry->ifa_flags & IFF_UP) == 0) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
    if (::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size()) != nullptr) return text.data();
  }
  return found;
}

Error about(int rank, const Error& error) { return {error.code, fmt::format("rank {}: {}", rank, error.message)}; }

Result<std::vector<Card>> exchange_cards(const World& world, const Card& mine) {
  std::vector<Card> cards(static_cast<std::size_t>(world.ranks));
  if (auto gathered = world.all_gather(&mine, sizeof mine, cards.data()); !gathered) return gathered.error();
  for (int rank = 0; rank < world.ranks; ++rank) {
    const Card& card = cards[static_cast<std::size_t>(rank)];
    if (card.magic != kMagic || card.version != kVersion) {
      return Error{ErrorCode::io, fmt::format("rank {} runs another version of ordo", rank)};
    }
    if (card.rank != rank || card.ranks != world.ranks) {
      return Error{ErrorCode::io,
                   fmt::format("place {} of the gather holds rank {} of {}; rank {} is one of {}: all ranks must agree", rank,
                               card.rank, card.ranks, world.rank, world.ranks)};
    }
  }
  return cards;
}

}  // namespace

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network{};
  const bool known = ::stat("/proc/self/ns/net", &network) == 0;
  return fmt::format("{}/{}", boot, known ? static_cast<std::uint64_t>(network.st_ino) : 0);
}

std::uint64_t process_identity() {
  // A child of fork() is another process.
  static std::uint64_t identity = 0;
  static pid_t owner = 0;
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  if (owner != ::getpid()) {
    owner = ::getpid();
    if (::getrandom(&identity, sizeof identity, 0) != sizeof identity) identity = static_cast<std::uint64_t>(owner);
  }
  return identity;
}

Links::Links(int rank, int ranks) : rank_(rank), ranks_(ranks) {
  for (auto& sockets : sockets_) sockets.resize(static_cast<std::size_t>(ranks));
}

Result<Links> Links::connect(const World& world, const std::string& host, Milliseconds timeout) {
  Links links(world.rank, world.ranks);
  if (world.ranks == 1) return links;
  auto token = random_token();
  if (!token) return token.error();
  Card card;
  card.rank = world.rank;
  card.ranks = world.ranks;
  card.token = *token;
  store(card.host, host);
  auto local = Listener::open({true, "@ordo-" + hex(*token), 0});
  if (!local) return local.error();
  store(card.address, to_text(local->address()));
  auto cards = exchange_cards(world, card);
  if (!cards) return cards.error();
  for (const Card& other : *cards) links.one_host_ = links.one_host_ && std::string(other.host.data()) == (*cards)[0].host.data();

  std::optional<Listener> remote;
  if (!links.one_host_) {  // then all meet over TCP
    auto opened = Listener::open({false, "", 0});
    if (!opened) return opened.error();
    store(card.address, to_text({false, own_address(), opened->address().port}));
    remote.emplace(*std::move(opened));
    cards = exchange_cards(world, card);
    if (!cards) return cards.error();
  }
  std::vector<Place> places;
  for (const Card& other : *cards) {
    auto address = parse_address(other.address.data());
    if (!address) return address.error();
    places.push_back({*address, other.token});
  }
  if (auto met = links.meet(remote ? *remote : *local, places, Deadline::after(timeout)); !met) return met.error();
  return links;
}

// Every rank greets the lower ones, which need not have accepted yet, and then welcomes the higher ones.
Result<void> Links::meet(const Listener& listener, const std::vector<Place>& places, Deadline deadline) {
  for (int rank = 0; rank < rank_; ++rank) {
    if (auto greeted = greet(rank, places[static_cast<std::size_t>(rank)], deadline); !greeted)
      return about(rank, greeted.error());
  }
  for (int missing = 2 * (ranks_ - 1 - rank_); missing > 0;) {
    auto accepted = listener.accept(deadline);
    if (!accepted) {
      for (int rank = rank_ + 1; rank < ranks_; ++rank) {
        if (!socket(Channel::alarm, rank).valid())
          return Error{ErrorCode::io, fmt::format("rank {} did not connect in time", rank)};
      }
      return accepted.error();
    }
    auto known = welcome(*std::move(accepted), places[static_cast<std::size_t>(rank_)], deadline);
    if (!known) return known.error();
    if (*known) --missing;
  }
  return {};
}

Result<void> Links::greet(int rank, const Place& place, Deadline deadline) {
  for (const Channel channel : {Channel::control, Channel::alarm}) {
    auto connected = peers::connect(place.address, deadline);
    if (!connected) return connected.error();
    const Greeting greeting{place.token, rank_, static_cast<std::uint32_t>(channel)};
    if (auto sent = connected->send(&greeting, sizeof greeting, deadline); !sent) return sent;
    slot(channel, rank) = *std::move(connected);
  }
  return {};
}

// false: a stranger, who is ignored.
Result<bool> Links::welcome(Socket accepted, const Place& own, Deadline deadline) {
  constexpr Milliseconds kGreetingTime(2000);
  Greeting greeting;
  if (!accepted.receive(&greeting, sizeof greeting, Deadline::after(std::min(kGreetingTime, deadline.remaining())))) return false;
  if (greeting.token != own.token || !accepted.same_user() || greeting.channel > 1) return false;
  const auto channel = static_cast<Channel>(greeting.channel);
  if (greeting.rank <= rank_ || greeting.rank >= ranks_ || socket(channel, greeting.rank).valid()) {
    return Error{ErrorCode::io, fmt::format("rank {} connected to rank {} twice or out of turn", greeting.rank, rank_)};
  }
  slot(channel, greeting.rank) = std::move(accepted);
  return true;
}

Result<void> Links::all_gather(const void* mine, std::size_t bytes, void* all, Deadline deadline) const {
  // What every rank sends first fits the buffers of the connections, so that nobody waits for a reader.
  if (bytes > kMostBytes) return Error{ErrorCode::internal, fmt::format("a gather of {} bytes a rank over the links", bytes)};
  auto* out = static_cast<std::byte*>(all);
  const auto offset = [bytes](int rank) { return bytes * static_cast<std::size_t>(rank); };
  std::memcpy(out + offset(rank_), mine, bytes);
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_) continue;
    if (auto sent = socket(Channel::control, rank).send(mine, bytes, deadline); !sent) return about(rank, sent.error());
  }
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_) continue;
    if (auto got = socket(Channel::control, rank).receive(out + offset(rank), bytes, deadline); !got)
      return about(rank, got.error());
  }
  return {};
}

}  // namespace ordo::peers
