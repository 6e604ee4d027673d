// Memory that two GPUs share, and what orders copies into it.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/peers/two_gpus.hpp"

namespace ordo {
namespace {

using namespace test;
using namespace std::chrono_literals;

/// A message on standard error, in one piece.
void say(const std::string& text) { fmt::print(stderr, "{}\n", text); }

std::string name_of(Ranks kind) { return kind == Ranks::threads ? "threads" : "processes"; }

/// Copies to the peer at full size, both directions at once, and reports the rate.
Ending measure_copies(Communicator::Impl& group, const std::string& label) {
  constexpr std::size_t kBytes = 256 << 20;
  constexpr int kCopies = 8;
  const Driver& d = group.driver();
  auto memory = group.allocate(2 * kBytes);
  if (!memory) return memory.error().message;
  const int peer = 1 - group.links.rank();
  Ending ending;
  {
    const TestStream stream(d);
    CUevent start = nullptr, end = nullptr;
    d.eventCreate(&start, CU_EVENT_DEFAULT);
    d.eventCreate(&end, CU_EVENT_DEFAULT);
    for (int round = 0; round < 2; ++round) {  // the first warms up
      if (auto all = group.barrier(); !all) return all.error().message;
      d.eventRecord(start, stream.get());
      for (int i = 0; i < kCopies; ++i) d.memcpyDtoDAsync(memory->of(peer) + kBytes, memory->local(), kBytes, stream.get());
      d.eventRecord(end, stream.get());
      if (auto done = peers::wait_for_stream(d, stream.get(), *group.watchdog, group.deadline()); !done)
        ending = done.error().message;
    }
    float ms = 0;
    d.eventElapsedTime(&ms, start, end);
    say(fmt::format("{} rank {}: {:.0f} GB/s to the peer, both at once", label, group.links.rank(),
                    kCopies * static_cast<double>(kBytes) / ms * 1e-6));
    d.eventDestroy(start);
    d.eventDestroy(end);
  }
  group.release(*std::move(memory));
  return ending;
}

/// Rounds in which each rank writes a block and then a value, and the other's stream waits for the value and copies the block on.
Ending ping_pong(Communicator::Impl& group) {
  constexpr std::size_t kBytes = 1 << 20;
  constexpr std::uint32_t kRounds = 300;
  const Driver& d = group.driver();
  // send block, received block, kept block, word.
  auto memory = group.allocate(4 * kBytes);
  if (!memory) return memory.error().message;
  const int peer = 1 - group.links.rank();
  const CUdeviceptr send = memory->local(), received = send + kBytes, kept = received + kBytes, word = kept + kBytes;
  const CUdeviceptr there = memory->of(peer) + kBytes, their_word = memory->of(peer) + 3 * kBytes;
  const TestStream stream(d);
  Ending ending;
  std::vector<std::uint32_t> seen(kBytes / 4);
  for (std::uint32_t round = 1; round <= kRounds && ending.empty(); ++round) {
    const std::uint32_t mine = round * 2 + static_cast<std::uint32_t>(group.links.rank());
    d.memsetD32Async(send, mine, kBytes / 4, stream.get());
    d.memcpyDtoDAsync(there, send, kBytes, stream.get());
    d.streamWriteValue32(stream.get(), their_word, round, 0);
    d.streamWaitValue32(stream.get(), word, round, CU_STREAM_WAIT_VALUE_GEQ);
    d.memcpyDtoDAsync(kept, received, kBytes, stream.get());
    if (auto done = peers::wait_for_stream(d, stream.get(), *group.watchdog, group.deadline()); !done)
      ending = done.error().message;
    if (ending.empty() && round % 50 == 0) {
      d.memcpyDtoH(seen.data(), kept, kBytes);
      const std::uint32_t theirs = round * 2 + static_cast<std::uint32_t>(peer);
      for (const std::uint32_t value : seen) {
        if (value != theirs) ending = fmt::format("round {}: {} where {} was due", round, value, theirs);
      }
    }
    // The block is free again once both have copied it.
    if (ending.empty()) {
      if (auto all = group.barrier(); !all) ending = all.error().message;
    }
  }
  group.release(*std::move(memory));
  return ending;
}

}  // namespace

TEST_CASE("two GPUs: memory is shared by descriptors and by cuIpc, between threads and between processes") {
  ORDO_NEED_TWO_GPUS();
  for (const Ranks kind : {Ranks::threads, Ranks::processes}) {
    for (const PeerTransport transport : {PeerTransport::vmm, PeerTransport::ipc}) {
      const std::string label = fmt::format("{} {}", to_string(transport), name_of(kind));
      CAPTURE(label);
      CommunicatorOptions options;
      options.transport = transport;
      options.timeout = 10s;
      check_all(on_two_gpus(kind, options, [&](Communicator& communicator) {
        Communicator::Impl& group = communicator.impl();
        const Ending ending = ping_pong(group);
        return ending.empty() ? measure_copies(group, label) : ending;
      }));
    }
  }
}

TEST_CASE("two GPUs: descriptors are the first choice") {
  ORDO_NEED_TWO_GPUS();
  check_all(on_two_gpus(Ranks::processes, {}, [](Communicator& communicator) -> Ending {
    Communicator::Impl& group = communicator.impl();
    return group.transport == PeerTransport::vmm ? "" : "not vmm: " + group.reason;
  }));
}

TEST_CASE("two GPUs: NCCL over sockets of the loopback, as between hosts") {
  ORDO_NEED_TWO_GPUS();
  CommunicatorOptions options;
  options.transport = PeerTransport::nccl;
  options.timeout = 30s;
  const auto endings = on_two_gpus(Ranks::processes, options, [](Communicator& communicator) -> Ending {
    Communicator::Impl& group = communicator.impl();
    return group.nccl != nullptr ? "" : "no NCCL communicator";
  });
  if (endings[0].find("NCCL cannot be used") != std::string::npos) {
    MESSAGE("skipped: " << endings[0]);
    return;
  }
  check_all(endings);
}

}  // namespace ordo
