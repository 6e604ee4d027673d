// The built-in rendezvous and the sockets under it.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/peers/links.hpp"
#include "runtime/peers/socket.hpp"
#include "tests/support/ranks.hpp"
#include "tests/unit/scratch.hpp"

namespace ordo {
namespace {

using namespace peers;
using namespace std::chrono_literals;
using test::Ending;

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// Joins and gathers a number a rank, twice; the ending is empty if all numbers are right.
Ending join_and_gather(const std::string& address, int rank, int ranks, Milliseconds timeout = 10s) {
  auto world = join_world(address, rank, ranks, timeout);
  if (!world) return world.error().message;
  for (int round = 0; round < 2; ++round) {
    const int mine = 100 * round + rank;
    std::vector<int> all(static_cast<std::size_t>(ranks));
    if (auto gathered = world->all_gather(&mine, sizeof mine, all.data()); !gathered) return gathered.error().message;
    for (int r = 0; r < ranks; ++r) {
      if (all[static_cast<std::size_t>(r)] != 100 * round + r) return "wrong number";
    }
  }
  return "";
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST_CASE("peers: addresses") {
  for (const char* text : {"tcp:localhost:1234", "tcp:10.0.0.1:0", "unix:/tmp/x", "unix:@name", "tcp:::1:80"}) {
    const auto address = parse_address(text);
    REQUIRE_MESSAGE(address, text);
    CHECK(to_text(*address) == text);
  }
  for (const char* text :
       {"", "tcp:", "tcp:host", "tcp:host:", "tcp:host:65536", "tcp:host:-1", "tcp:host:1x", "udp:host:1", "unix:", "unix:@"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_address(text));
  }
  CHECK_FALSE(parse_address("unix:/" + std::string(120, 'a')));
}

TEST_CASE("peers: threads and processes meet and gather, over Unix and TCP sockets") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    CAPTURE(ranks);
    const std::string name = test::new_address();
    for (const Ending& ending : test::run_threads(ranks, [&](int rank) { return join_and_gather(name, rank, ranks); }))
      CHECK(ending == "");
    test::Folder folder;
    const std::string file = "unix:" + folder.file("meet");
    for (const Ending& ending : test::run_processes(ranks, [&](int rank) { return join_and_gather(file, rank, ranks); }))
      CHECK(ending == "");
    CHECK_FALSE(std::filesystem::exists(folder.file("meet")));
  }
  const auto free_port = Listener::open({false, "127.0.0.1", 0});
  REQUIRE(free_port);
  const std::string address = "tcp:127.0.0.1:" + std::to_string(free_port->address().port + 1);
  for (const Ending& ending : test::run_processes(3, [&](int rank) { return join_and_gather(address, rank, 3); }))
    CHECK(ending == "");
}

TEST_CASE("peers: a rank that comes late is waited for, one that never comes is named to all") {
  const std::string late = test::new_address();
  for (const Ending& ending : test::run_threads(3, [&](int rank) {
         if (rank == 0) std::this_thread::sleep_for(200ms);  // the others find nobody at first
         if (rank == 2) std::this_thread::sleep_for(400ms);
         return join_and_gather(late, rank, 3);
       })) {
    CHECK(ending == "");
  }
  const std::string never = test::new_address();
  const auto start = std::chrono::steady_clock::now();
  const auto endings = test::run_threads(4, [&](int rank) { return rank == 2 ? "" : join_and_gather(never, rank, 4, 500ms); });
  CHECK(seconds_since(start) < 4);
  for (const int rank : {0, 1, 3}) {
    CAPTURE(endings[static_cast<std::size_t>(rank)]);
    CHECK(contains(endings[static_cast<std::size_t>(rank)], "rank 2 of 4 did not come within 500 ms"));
  }
  const auto alone = join_world(test::new_address(), 1, 2, 200ms);
  REQUIRE_FALSE(alone);
  CHECK(alone.error().code == ErrorCode::io);
  CHECK(contains(alone.error().message, "rank 0 was not reached within 200 ms"));
}

TEST_CASE("peers: a killed process is an error for all others, at once") {
  const std::string address = test::new_address();
  const auto start = std::chrono::steady_clock::now();
  const auto endings = test::run_processes(3, [&](int rank) -> Ending {
    auto world = join_world(address, rank, 3, 20s);
    if (!world) return world.error().message;
    if (rank == 1) ::kill(::getpid(), SIGKILL);
    int all[3];
    const auto gathered = world->all_gather(&rank, sizeof rank, all);
    return gathered ? "" : gathered.error().message;
  });
  CHECK(seconds_since(start) < 10);
  CHECK(endings[1] == "signal 9");
  for (const int rank : {0, 2}) CHECK(contains(endings[static_cast<std::size_t>(rank)], "rank 1: the other side closed"));
}

TEST_CASE("peers: ranks that were started differently are told") {
  const std::string sizes = test::new_address();
  const auto endings = test::run_threads(2, [&](int rank) { return join_and_gather(sizes, rank, rank == 0 ? 2 : 3, 2s); });
  for (const Ending& ending : endings) CHECK(contains(ending, "rank 1 of 3"));
  const std::string twice = test::new_address();
  const auto doubled = test::run_threads(3, [&](int rank) { return join_and_gather(twice, rank == 2 ? 1 : rank, 3, 2s); });
  CHECK(contains(doubled[0], "two processes call themselves rank 1"));
  for (const auto& [rank, ranks] : {std::pair{-1, 2}, {2, 2}, {0, 0}}) CHECK_FALSE(join_world("unix:@x", rank, ranks, 1s));
  const std::string lengths = test::new_address();
  const auto uneven = test::run_threads(2, [&](int rank) -> Ending {
    auto world = join_world(lengths, rank, 2, 2s);
    if (!world) return world.error().message;
    char all[64];
    const auto gathered = world->all_gather("0123456789", rank == 0 ? 4 : 8, all);
    return gathered ? "" : gathered.error().message;
  });
  for (const Ending& ending : uneven) CHECK(contains(ending, "rank 1 gathers 8 bytes, rank 0 4"));
}

TEST_CASE("peers: a stranger does not disturb the rendezvous") {
  const std::string address = test::new_address();
  const auto endings = test::run_threads(3, [&](int rank) -> Ending {
    if (rank < 2) return join_and_gather(address, rank, 2);
    auto stranger = connect(*parse_address(address), Deadline::after(500ms));
    if (stranger) (void)stranger->send("GET / HTTP/1.1\r\n\r\n", 18, Deadline::after(1s));
    return "";  // it may come after the others have met
  });
  for (const Ending& ending : endings) CHECK(ending == "");
}

TEST_CASE("peers: the environment of torchrun, MPI and ordo launch") {
  const test::Environment rank("RANK", nullptr), size("WORLD_SIZE", nullptr), local("LOCAL_RANK", nullptr),
      address("MASTER_ADDR", nullptr), port("MASTER_PORT", nullptr), place("ORDO_RENDEZVOUS", nullptr),
      ompi_rank("OMPI_COMM_WORLD_RANK", nullptr), ompi_size("OMPI_COMM_WORLD_SIZE", nullptr),
      ompi_local("OMPI_COMM_WORLD_LOCAL_RANK", nullptr);
  auto alone = world_from_environment(1s);
  REQUIRE(alone);
  CHECK(alone->ranks == 1);
  int all = 0;
  const int seven = 7;
  CHECK(alone->all_gather(&seven, sizeof seven, &all));
  CHECK(all == 7);
  {
    const test::Environment r("RANK", "1"), s("WORLD_SIZE", "2");
    const auto nowhere = world_from_environment(100ms);
    REQUIRE_FALSE(nowhere);
    CHECK(contains(nowhere.error().message, "MASTER_ADDR"));
    const test::Environment p("ORDO_RENDEZVOUS", "unix:@ordo-test-nobody");
    CHECK(world_from_environment(100ms).error().code == ErrorCode::io);
  }
  {
    const test::Environment r("RANK", "one"), s("WORLD_SIZE", "2");
    CHECK(contains(world_from_environment(100ms).error().message, "RANK=one"));
  }
  const std::string name = test::new_address();
  const auto endings = test::run_processes(2, [&](int number) -> Ending {
    ::setenv("OMPI_COMM_WORLD_RANK", std::to_string(number).c_str(), 1);
    ::setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    ::setenv("OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(1 - number).c_str(), 1);
    ::setenv("ORDO_RENDEZVOUS", name.c_str(), 1);
    const auto world = world_from_environment(5s);
    if (!world) return world.error().message;
    return world->rank == number && world->ranks == 2 && world->local_rank == 1 - number ? "" : "wrong place";
  });
  for (const Ending& ending : endings) CHECK(ending == "");
}

TEST_CASE("peers: descriptors pass between processes") {
  auto ends = socket_pair();
  REQUIRE(ends);
  CHECK(ends->first.same_user());
  const int before = test::open_descriptors();
  {
    int pipe_ends[2];
    REQUIRE(::pipe(pipe_ends) == 0);
    const FileDescriptor reader(pipe_ends[0]), writer(pipe_ends[1]);
    REQUIRE(ends->first.send_descriptor(writer.get(), Deadline::after(1s)));
    auto received = ends->second.receive_descriptor(Deadline::after(1s));
    REQUIRE(received);
    CHECK(::write(received->get(), "x", 1) == 1);
    char byte = 0;
    CHECK(::read(reader.get(), &byte, 1) == 1);
    CHECK(byte == 'x');
  }
  CHECK(test::open_descriptors() == before);
  const auto none = ends->second.receive_descriptor(Deadline::after(50ms));
  REQUIRE_FALSE(none);
  CHECK(contains(none.error().message, "in time"));
  REQUIRE(ends->first.send("y", 1, Deadline::after(1s)));
  CHECK(contains(ends->second.receive_descriptor(Deadline::after(1s)).error().message, "without its file descriptor"));
}

TEST_CASE("peers: a socket file that a killed process left is replaced, a live one is not") {
  const test::Folder folder;
  const Address address{true, folder.file("socket"), 0};
  const auto left = test::run_processes(1, [&](int) -> Ending {
    auto listener = Listener::open(address);
    ::kill(::getpid(), SIGKILL);
    return "";
  });
  CHECK(left[0] == "signal 9");
  CHECK(std::filesystem::exists(address.host));
  const auto again = Listener::open(address);
  REQUIRE(again);
  CHECK_FALSE(Listener::open(address));
}

TEST_CASE("peers: links by a caller's own gather") {
  for (const int ranks : {2, 3, 8}) {
    for (const bool hosts : {false, true}) {
      CAPTURE(ranks);
      CAPTURE(hosts);
      const std::string address = test::new_address();
      const int before = test::open_descriptors();
      const auto endings = test::run_threads(ranks, [&](int rank) -> Ending {
        auto world = join_world(address, rank, ranks, 10s);
        if (!world) return world.error().message;
        auto links = Links::connect(*world, hosts && rank > 0 ? "other" : "host", 10s);
        if (!links) return links.error().message;
        if (links->one_host() == hosts) return "wrong host";
        std::vector<int> all(static_cast<std::size_t>(ranks));
        if (auto gathered = links->all_gather(&rank, sizeof rank, all.data(), Deadline::after(10s)); !gathered)
          return gathered.error().message;
        for (int r = 0; r < ranks; ++r) {
          if (all[static_cast<std::size_t>(r)] != r) return "wrong number";
        }
        return "";
      });
      for (const Ending& ending : endings) CHECK(ending == "");
      CHECK(test::open_descriptors() == before);
    }
  }
}

}  // namespace ordo
