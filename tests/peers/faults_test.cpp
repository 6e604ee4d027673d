// Ranks that die, stay away or disagree: an error on every other rank in time, and nothing hung.
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "tests/peers/overlap_rank.hpp"
#include "tests/peers/two_gpus.hpp"

namespace ordo {
namespace {

using namespace test;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

OverlapGemm of_two_ranks(OverlapOp op) { return {.op = op, .m = 4096, .n = 2048, .k = 2048, .ranks = 2}; }

}  // namespace

TEST_CASE("two GPUs: a rank that is killed fails the other at once") {
  ORDO_NEED_TWO_GPUS();
  CommunicatorOptions options;
  options.timeout = 20s;
  const auto endings = on_two_gpus(Ranks::processes, options, [](Communicator& communicator) -> Ending {
    Communicator::Impl& group = communicator.impl();
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
  const auto endings = on_two_gpus(Ranks::processes, {}, [](Communicator& communicator) -> Ending {
    Communicator::Impl& group = communicator.impl();
    const auto same = group.agree("shape", group.links.rank() == 0 ? "m=4096" : "m=4097");
    return same ? "agreed" : same.error().message;
  });
  for (const Ending& ending : endings) CHECK(contains(ending, "disagree about the shape"));
}

TEST_CASE("two GPUs: out of memory on one is an error on both, and nothing is lost") {
  ORDO_NEED_TWO_GPUS();
  check_all(on_two_gpus(Ranks::processes, {}, [](Communicator& communicator) -> Ending {
    Communicator::Impl& group = communicator.impl();
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

TEST_CASE("two GPUs: a rank that stops launching is named, with its slice, within the timeout") {
  ORDO_NEED_TWO_GPUS();
  CommunicatorOptions options;
  options.timeout = 5s;
  for (const OverlapOp op : {OverlapOp::all_gather_gemm, OverlapOp::gemm_reduce_scatter, OverlapOp::gemm_all_to_all}) {
    CAPTURE(to_string(op));
    const auto endings = on_two_gpus(Ranks::processes, options, on_rank([op](OverlapRank& rank) -> Ending {
                                       auto product = OverlapRank::Product::create(rank, of_two_ranks(op));
                                       if (!product) return product.error().message;
                                       for (int launch = 1; launch <= 3; ++launch) {
                                         if (rank.group().links.rank() == 1 && launch == 3) {
                                           // The other one fails both; this one has nothing in flight.
                                           for (int i = 0; i < 2000 && rank.group().watchdog->status(); ++i)
                                             std::this_thread::sleep_for(10ms);
                                           const auto status = rank.group().watchdog->status();
                                           return status ? "healthy" : status.error().message;
                                         }
                                         if (auto ok = (*product)->launch(); !ok) return ok.error().message;
                                         if (launch == 2) {
                                           if (auto good = (*product)->result(); !good) return good.error().message;
                                         }
                                       }
                                       const auto start = Clock::now();
                                       const auto result = (*product)->result();
                                       if (result) return "a result";
                                       if (Clock::now() - start > 9s) return "late";
                                       if ((*product)->launch()) return "launches go on";
                                       // The device works: nothing hangs on it.
                                       const CUresult ended = rank.group().driver().streamSynchronize(rank.stream());
                                       return ended == CUDA_SUCCESS ? result.error().message : "the stream is broken";
                                     }));
    for (const Ending& ending : endings) {
      CAPTURE(ending);
      CHECK(contains(ending, "rank 0"));
      CHECK(contains(ending, "expected 3, saw 2"));
      CHECK(contains(ending, "slice"));
    }
  }
}

namespace {

/// How rank's launches of `problem` end when rank 1 is killed among them.
Ending killed_while_launching(OverlapRank& rank, const OverlapGemm& problem, const OverlappedGemmOptions& how = {}) {
  auto product = OverlapRank::Product::create(rank, problem, how);
  if (!product) return product.error().message;
  for (int launch = 1; launch <= 40; ++launch) {
    if (rank.group().links.rank() == 1 && launch == 20) ::kill(::getpid(), SIGKILL);
    if (auto ok = (*product)->launch(); !ok) return ok.error().message;
  }
  const auto start = Clock::now();
  const auto result = (*product)->result();
  if (result) return "a result";
  return Clock::now() - start > 10s ? "late" : result.error().message;
}

}  // namespace

TEST_CASE("two GPUs: a rank that is killed in the middle of launches fails the other at once") {
  ORDO_NEED_TWO_GPUS();
  CommunicatorOptions options;
  options.timeout = 20s;
  for (const OverlapOp op : {OverlapOp::all_gather_gemm, OverlapOp::gemm_reduce_scatter}) {
    CAPTURE(to_string(op));
    const auto endings = on_two_gpus(Ranks::processes, options,
                                     on_rank([op](OverlapRank& rank) { return killed_while_launching(rank, of_two_ranks(op)); }));
    CHECK(contains(endings[0], "rank 1"));
    CHECK(endings[1] == "signal 9");
  }
}

TEST_CASE("two GPUs: on a ring of three, a rank that is killed fails the one behind it and the one that it would have reached") {
  ORDO_NEED_TWO_GPUS();
  CommunicatorOptions options;
  options.timeout = 20s;
  const auto endings = on_gpus(3, Ranks::processes, options, on_rank([](OverlapRank& rank) {
                                 OverlapGemm problem = of_two_ranks(OverlapOp::all_gather_gemm);
                                 problem.ranks = 3;
                                 return killed_while_launching(rank, problem, by_ring(rank, problem));
                               }));
  CHECK(contains(endings[0], "rank 1"));
  CHECK(endings[1] == "signal 9");
  CHECK(contains(endings[2], "rank 1"));
}

TEST_CASE("two GPUs: overlapped products of another shape or plan are an error on both, and the ranks go on") {
  ORDO_NEED_TWO_GPUS();
  check_all(on_two_gpus(Ranks::processes, {}, on_rank([](OverlapRank& rank) -> Ending {
                          OverlapGemm other = of_two_ranks(OverlapOp::all_gather_gemm);
                          other.m += rank.group().links.rank();
                          auto wrong = OverlapRank::Product::create(rank, other);
                          if (wrong) return "made";
                          if (!contains(wrong.error().message, "disagree about the problem and plan"))
                            return wrong.error().message;
                          auto right = OverlapRank::Product::create(rank, of_two_ranks(OverlapOp::all_gather_gemm));
                          if (!right) return right.error().message;
                          if (auto ok = (*right)->launch(); !ok) return ok.error().message;
                          const auto result = (*right)->result();
                          return result ? "" : result.error().message;
                        })));
}

TEST_CASE("two GPUs: no memory for an overlapped product's buffers is an error on both, and the ranks go on") {
  ORDO_NEED_TWO_GPUS();
  check_all(on_two_gpus(Ranks::processes, {}, on_rank([](OverlapRank& rank) -> Ending {
                          // Its D alone takes 4 TiB.
                          const OverlapGemm huge{
                              .op = OverlapOp::gemm_all_reduce, .m = 1 << 21, .n = 1 << 20, .k = 64, .ranks = 2};
                          auto wrong = OverlapRank::Product::create(rank, huge);
                          if (wrong) return "made";
                          if (!contains(wrong.error().message, "rank 0: ")) return wrong.error().message;
                          auto right = OverlapRank::Product::create(rank, of_two_ranks(OverlapOp::gemm_all_reduce));
                          if (!right) return right.error().message;
                          if (auto ok = (*right)->launch(); !ok) return ok.error().message;
                          const auto result = (*right)->result();
                          return result ? "" : result.error().message;
                        })));
}

}  // namespace ordo
