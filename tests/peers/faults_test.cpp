// Ranks that die, stay away or disagree: an error on every other rank in time, and nothing hung.
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "tests/peers/two_gpus.hpp"

namespace ordo {
namespace {

using namespace test;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("two GPUs: a rank that is killed fails the other at once") {
  ORDO_NEED_TWO_GPUS();
  CommunicatorOptions options;
  options.timeout = 20s;
  const auto endings = on_two_gpus(Ranks::processes, options, [](Communicator::Impl& group) -> Ending {
    auto memory = group.allocate(64 << 20);
    if (!memory) return memory.error().message;
    if (group.links.rank() == 1) ::kill(::getpid(), SIGKILL);
    const auto start = Clock::now();
    const auto all = group.barrier();
    if (all) return "a barrier with the dead";
    if (Clock::now() - start > 5s) return "late";
    // Its memory is still mapped, and the device still works.
    const Driver& d = group.driver();
    const CUresult copied = d.memcpyDtoDAsync(memory->of(1), memory->local(), 1 << 20, nullptr);
    const CUresult finished = d.streamSynchronize(nullptr);
    if (copied != CUDA_SUCCESS || finished != CUDA_SUCCESS) return "a copy into the memory of the dead fails";
    return group.watchdog->status() ? "healthy" : group.watchdog->status().error().message;
  });
  CHECK(contains(endings[0], "rank 1"));
  CHECK(endings[1] == "signal 9");
}

TEST_CASE("two GPUs: a rank that never comes") {
  ORDO_NEED_TWO_GPUS();
  const auto endings = run_processes(1, [address = new_address()](int) -> Ending {
    const auto world = join_world(address, 0, 2, 1s);
    return world ? "joined" : world.error().message;
  });
  CHECK(contains(endings[0], "rank 1 of 2 did not come within 1000 ms"));
}

TEST_CASE("two GPUs: another plan or shape is an error on both") {
  ORDO_NEED_TWO_GPUS();
  const auto endings = on_two_gpus(Ranks::processes, {}, [](Communicator::Impl& group) -> Ending {
    const auto same = group.agree("shape", group.links.rank() == 0 ? "m=4096" : "m=4097");
    return same ? "agreed" : same.error().message;
  });
  for (const Ending& ending : endings) CHECK(contains(ending, "disagree about the shape"));
}

TEST_CASE("two GPUs: out of memory on one is an error on both, and nothing is lost") {
  ORDO_NEED_TWO_GPUS();
  check_all(on_two_gpus(Ranks::processes, {}, [](Communicator::Impl& group) -> Ending {
    const Driver& d = group.driver();
    std::size_t free = 0, total = 0;
    d.memGetInfo(&free, &total);
    const auto huge = group.allocate(total * 2);
    if (huge) return "allocated twice the memory";
    if (!contains(huge.error().message, "cuMemCreate")) return huge.error().message;
    std::size_t after = 0;
    d.memGetInfo(&after, &total);
    if (free - after > (64u << 20)) return "memory is gone";
    auto small = group.allocate(1 << 20);
    if (!small) return small.error().message;
    group.release(*std::move(small));
    return "";
  }));
}

}  // namespace ordo
