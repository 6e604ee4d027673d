// Communicators on the fake driver: sharing of memory, transports and their fallbacks, failures.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/unit/peers/fake_communicator.hpp"
#include "tests/unit/peers/fake_driver.hpp"

namespace ordo {
namespace {

using namespace peers;
using namespace std::chrono_literals;
using test::Ending;
namespace fake = test::fake;

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

using Body = std::function<Ending(Communicator::Impl&)>;

/// A body for run_threads or run_processes: a communicator, then `body`.
std::function<Ending(int)> with_communicator(int ranks, const CommunicatorOptions& options, const Body& body) {
  return [=, address = test::new_address()](int rank) -> Ending {
    auto made = test::fake_communicator(address, rank, ranks, options);
    return made ? body(**made) : made.error().message;
  };
}

/// Writes its number to every other rank's memory and reads theirs in its own.
Ending exchange_numbers(Communicator::Impl& group) {
  auto memory = group.allocate(256);
  if (!memory) return memory.error().message;
  const int ranks = group.links.ranks(), mine = group.links.rank();
  for (int rank = 0; rank < ranks; ++rank) {
    if (memory->of(rank) == 0) return "no address";
    fake::add_release(memory->of(rank) + 4 * static_cast<std::size_t>(mine), static_cast<std::uint32_t>(mine + 1));
  }
  if (auto all = group.barrier(); !all) return all.error().message;
  Ending ending;
  for (int rank = 0; rank < ranks; ++rank) {
    if (fake::load_acquire(memory->local() + 4 * static_cast<std::size_t>(rank)) != static_cast<std::uint32_t>(rank + 1))
      ending = "wrong number";
  }
  group.release(*std::move(memory));
  return ending;
}

struct Unchanged {
  int descriptors = test::open_descriptors();
  fake::Live live = fake::live();
  ~Unchanged() {
    CHECK(test::open_descriptors() == descriptors);
    CHECK(fake::live() == live);
    fake::reset();
  }
};

}  // namespace

TEST_CASE("peers: memory is shared between threads and between processes, by every transport, and given back") {
  for (const PeerTransport transport : {PeerTransport::automatic, PeerTransport::vmm, PeerTransport::ipc}) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      CAPTURE(to_string(transport));
      CAPTURE(ranks);
      const Unchanged unchanged;
      CommunicatorOptions options;
      options.transport = transport;
      const auto check = [&](Communicator::Impl& group) -> Ending {
        const PeerTransport wanted = transport == PeerTransport::automatic ? PeerTransport::vmm : transport;
        if (group.transport != wanted) return "transport " + std::string(to_string(group.transport)) + ": " + group.reason;
        return exchange_numbers(group);
      };
      for (const Ending& ending : test::run_threads(ranks, with_communicator(ranks, options, check))) CHECK(ending == "");
      for (const Ending& ending : test::run_processes(
               ranks, with_communicator(ranks, options, [&](Communicator::Impl& group) -> Ending { return check(group); }))) {
        CHECK(ending == "");
      }
    }
  }
}

TEST_CASE("peers: a process gives back all it took") {
  for (const PeerTransport transport : {PeerTransport::vmm, PeerTransport::ipc}) {
    CommunicatorOptions options;
    options.transport = transport;
    const std::string address = test::new_address();
    for (const Ending& ending : test::run_processes(2, [&](int rank) -> Ending {
           const int before = test::open_descriptors();
           {
             auto made = test::fake_communicator(address, rank, 2, options);
             if (!made) return made.error().message;
             if (auto ending = exchange_numbers(**made); !ending.empty()) return ending;
           }
           if (fake::live() != fake::Live{}) return "something of the driver's is left";
           return test::open_descriptors() == before ? "" : "descriptors are left";
         })) {
      CHECK(ending == "");
    }
  }
}

TEST_CASE("peers: what fails to work falls back to the next transport, on all ranks, with the reason") {
  const Unchanged unchanged;
  for (const char* call : {"memCreate", "memExportToShareableHandle", "memImportFromShareableHandle", "memMap", "memSetAccess"}) {
    CAPTURE(call);
    fake::reset();
    fake::fail(call, CUDA_ERROR_NOT_PERMITTED, 1);  // on one rank alone
    const auto endings = test::run_threads(3, with_communicator(3, {}, [](Communicator::Impl& group) -> Ending {
                                             if (group.transport != PeerTransport::ipc) return "not ipc";
                                             if (!contains(group.reason, "vmm: rank 1: ")) return group.reason;
                                             return exchange_numbers(group);
                                           }));
    for (const Ending& ending : endings) CHECK(ending == "");
  }
}

TEST_CASE("peers: peer access denied by every transport is an error on every rank") {
  const Unchanged unchanged;
  fake::fail("memSetAccess", CUDA_ERROR_INVALID_DEVICE, 0, 1);  // the own memory is mapped, the peer's is not
  fake::fail("ctxEnablePeerAccess", CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 1);
  for (const Ending& ending : test::run_threads(2, with_communicator(2, {}, [](Communicator::Impl&) { return ""; }))) {
    CAPTURE(ending);
    CHECK(contains(ending, "no transport between the ranks works"));
    CHECK(contains(ending, "memory of rank 1"));
    CHECK(contains(ending, "cuCtxEnablePeerAccess from device 1 to 0"));
    CHECK(contains(ending, "no NCCL here"));
  }
}

TEST_CASE("peers: a transport that loses or damages bytes is not trusted") {
  const Unchanged unchanged;
  fake::fail("streamWriteValue32", CUDA_ERROR_NOT_SUPPORTED, 1);
  for (const Ending& ending : test::run_threads(2, with_communicator(2, {}, [](Communicator::Impl&) { return ""; }))) {
    CHECK(contains(ending, "cuStreamWriteValue32"));
  }
}

TEST_CASE("peers: out of memory on one rank is an error on all, and the communicator goes on") {
  const Unchanged unchanged;
  const auto endings = test::run_threads(
      3, with_communicator(3, {}, [](Communicator::Impl& group) -> Ending {
        if (group.links.rank() == 2) fake::fail("memCreate", CUDA_ERROR_OUT_OF_MEMORY, 2);
        if (auto all = group.barrier(); !all) return all.error().message;
        const auto memory = group.allocate(1 << 20);
        if (memory) return "allocated";
        if (!contains(memory.error().message, "rank 2: cuMemCreate of 1048576 bytes failed: CUDA_ERROR_OUT_OF_MEMORY"))
          return memory.error().message;
        if (auto all = group.barrier(); !all) return all.error().message;
        if (group.links.rank() == 2) fake::reset();
        if (auto all = group.barrier(); !all) return all.error().message;
        return exchange_numbers(group);
      }));
  for (const Ending& ending : endings) CHECK(ending == "");
}

TEST_CASE("peers: a rank without a device is an error on all") {
  const Unchanged unchanged;
  fake::fail("devicePrimaryCtxRetain", CUDA_ERROR_INVALID_DEVICE);
  for (const Ending& ending : test::run_threads(2, with_communicator(2, {}, [](Communicator::Impl&) { return ""; }))) {
    CHECK(contains(ending, "cuDevicePrimaryCtxRetain of device"));
  }
}

TEST_CASE("peers: plan hashes and shapes are compared by all") {
  const Unchanged unchanged;
  const auto endings =
      test::run_threads(3, with_communicator(3, {}, [](Communicator::Impl& group) -> Ending {
                          if (auto same = group.agree("shape", "m=4096"); !same) return same.error().message;
                          const std::string plan = group.links.rank() == 2 ? "plan B" : "plan A";
                          const auto other = group.agree("plan", plan);
                          if (other) return "agreed";
                          if (!contains(other.error().message, "the plan: rank 0 has \"plan A\", rank 2 has \"plan B\"")) {
                            return other.error().message;
                          }
                          // Beyond what is shown.
                          const std::string tail = group.links.rank() == 1 ? "x" : "y";
                          if (group.agree("text", std::string(5000, 'a') + tail)) return "agreed on long texts";
                          return group.barrier() ? "" : "failed";
                        }));
  for (const Ending& ending : endings) CHECK(ending == "");
}

TEST_CASE("peers: different options are an error on all") {
  const Unchanged unchanged;
  const std::string address = test::new_address();
  const auto endings = test::run_threads(2, [&](int rank) -> Ending {
    CommunicatorOptions options;
    options.transport = rank == 0 ? PeerTransport::vmm : PeerTransport::ipc;
    auto made = test::fake_communicator(address, rank, 2, options);
    return made ? "" : made.error().message;
  });
  for (const Ending& ending : endings) CHECK(contains(ending, "disagree about the communicator options"));
}

TEST_CASE("peers: a killed rank fails the communicator on all others, at once and without a call") {
  const auto start = std::chrono::steady_clock::now();
  const auto endings = test::run_processes(3, with_communicator(3, {}, [](Communicator::Impl& group) -> Ending {
                                             if (group.links.rank() == 1) ::kill(::getpid(), SIGKILL);
                                             for (int i = 0; i < 500 && group.watchdog->status(); ++i)
                                               std::this_thread::sleep_for(10ms);
                                             const auto status = group.watchdog->status();
                                             if (status) return "still healthy";
                                             if (group.barrier()) return "a barrier works";
                                             return status.error().message;
                                           }));
  CHECK(std::chrono::steady_clock::now() - start < 20s);
  CHECK(endings[1] == "signal 9");
  for (const int rank : {0, 2}) CHECK(contains(endings[static_cast<std::size_t>(rank)], "rank 1 ended without taking leave"));
}

TEST_CASE("peers: a failure that one rank raises is told to all; a rank that goes is none") {
  const Unchanged unchanged;
  const auto endings =
      test::run_threads(3, with_communicator(3, {}, [](Communicator::Impl& group) -> Ending {
                          if (group.links.rank() == 2) group.watchdog->raise({ErrorCode::io, "slice 1 is missing"});
                          for (int i = 0; i < 500 && group.watchdog->status(); ++i) std::this_thread::sleep_for(10ms);
                          const auto word = fake::load_acquire(group.watchdog->abort_word());
                          return word == 1 && !group.watchdog->status() ? group.watchdog->status().error().message : "healthy";
                        }));
  CHECK(endings[0] == "rank 2 failed: slice 1 is missing");
  CHECK(endings[1] == "rank 2 failed: slice 1 is missing");
  CHECK(endings[2] == "slice 1 is missing");
}

namespace {

/// Work whose waits were ended, which all ranks of a test see.
class Released : public Watched {
 public:
  explicit Released(std::atomic<bool>& any) : any_(any) {}
  Result<void> check() override { return {}; }
  void release() override { any_ = true; }

 private:
  std::atomic<bool>& any_;
};

}  // namespace

TEST_CASE("peers: no rank ends its waits before all others can know why") {
  const Unchanged unchanged;
  for (int round = 0; round < 30; ++round) {
    std::atomic<bool> released = false;
    const auto endings = test::run_threads(4, with_communicator(4, {}, [&](Communicator::Impl& group) -> Ending {
                                             Released mine(released);
                                             group.watchdog->add(mine);
                                             Ending ending;
                                             if (auto all = group.barrier(); !all) ending = all.error().message;
                                             if (group.links.rank() == 0) group.watchdog->raise({ErrorCode::io, "late"});
                                             while (!released) std::this_thread::yield();
                                             if (group.watchdog->examine()) ending = "what was copied would be trusted";
                                             group.watchdog->remove(mine);
                                             return ending;
                                           }));
    for (const Ending& ending : endings) CHECK(ending == "");
  }
}

TEST_CASE("peers: a rank that does not come to a barrier is an error on the others in time") {
  const Unchanged unchanged;
  CommunicatorOptions options;
  options.timeout = 2s;
  const auto endings = test::run_threads(3, with_communicator(3, options, [](Communicator::Impl& group) -> Ending {
                                           if (group.links.rank() == 1) {
                                             for (int i = 0; i < 1000 && group.watchdog->status(); ++i)
                                               std::this_thread::sleep_for(10ms);
                                             return group.watchdog->status() ? "healthy" : "";
                                           }
                                           const auto all = group.barrier();
                                           return all ? "a barrier without rank 1" : "";
                                         }));
  for (const Ending& ending : endings) CHECK(ending == "");
}

}  // namespace ordo
