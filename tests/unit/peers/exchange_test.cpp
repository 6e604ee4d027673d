// Whole launches on the fake driver: the words, copies and waits of the real exchange, with threads for ranks and streams,
// kernels that are host functions, and random pauses before everything. ThreadSanitizer sees the same addresses from all ranks
// under PeerTransport::ipc, where ranks are threads of one process.
#include "runtime/peers/exchange.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "tests/unit/peers/fake_communicator.hpp"
#include "tests/unit/peers/fake_driver.hpp"

namespace ordo {
namespace {

using namespace peers;
using namespace std::chrono_literals;
using overlap::Exchange;
using overlap::Route;
using overlap::Step;
using overlap::StepSchedule;
using overlap::Transfer;
using test::Ending;
namespace fake = test::fake;

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

constexpr std::size_t kChunk = 96;     ///< numbers a chunk
constexpr std::uint32_t kSignals = 3;  ///< the kernel adds to done[] in so many parts

/// What rank `rank` has for a chunk in launch `launch`: its own slice (gather), or its partial sum of a slice.
std::uint64_t value(int launch, int rank, int slice, int sub, std::size_t i) {
  std::uint64_t x = static_cast<std::uint64_t>(launch) * 1000003 + static_cast<std::uint64_t>(rank) * 10007 +
                    static_cast<std::uint64_t>(slice) * 101 + static_cast<std::uint64_t>(sub) * 11 + i;
  x ^= x >> 7;
  return x * 0x9e3779b97f4a7c15u;
}

/// An exchange, and how its slices travel.
struct Way {
  Exchange exchange;
  Route route = Route::direct;
};

ExchangeRequest request(Way way, int ranks, int subs, const std::string& description = "plan") {
  constexpr std::size_t kBytes = kChunk * sizeof(std::uint64_t);
  const Exchange exchange = way.exchange;
  ExchangeRequest out;
  out.schedule = *overlap::make_steps({exchange, way.route, ranks, subs, {}});
  const bool gather = overlap::pattern_of(exchange) == overlap::Pattern::gather;
  const auto chunks = static_cast<std::size_t>(ranks * subs);
  for (const Transfer& t : out.schedule.transfers) {
    const bool closing = exchange == Exchange::all_reduce && t.needed_by == overlap::kAtEnd;
    ChunkPlace place;
    place.bytes = kBytes;
    place.from_offset = kBytes * static_cast<std::size_t>(gather ? t.sub : t.slice * subs + t.sub);
    // A slot for each source; behind them, for a closing gather, the finished slices.
    place.to_offset = kBytes * (static_cast<std::size_t>((gather ? t.slice : t.from) * subs + t.sub) + (closing ? chunks : 0));
    if (gather && t.slice != t.from) {  // passed on
      place.from_received = true;
      place.from_offset = place.to_offset;
    }
    place.signals = gather ? 0 : kSignals;
    out.places.push_back(place);
  }
  out.receive_bytes = 2 * chunks * kBytes;
  out.send_bytes = chunks * kBytes;
  out.description = description;
  return out;
}

/// One rank of an operation: its stream, its "kernel", and what came out.
class Rank {
 public:
  Rank(Communicator::Impl& group, SliceExchange& exchange, const StepSchedule& schedule)
      : group_(group),
        exchange_(exchange),
        s_(schedule),
        rank_(group.links.rank()),
        own_(static_cast<std::size_t>(s_.sub_slices) * kChunk) {
    group.driver().streamCreate(&stream_, 0);
    group.driver().memAlloc(&source_, own_.size() * 8);
  }
  ~Rank() {
    group_.driver().streamDestroy(stream_);
    group_.driver().memFree(source_);
  }

  Result<void> launch(int number, bool die = false) {
    const bool gather = overlap::pattern_of(s_.exchange) == overlap::Pattern::gather;
    launched_ = number;
    if (gather) {
      fake::launch(stream_, [this, number] { fill_source(number); });  // the caller's earlier work
    }
    auto words = exchange_.begin(stream_, gather ? source_ : 0);
    if (!words) return words.error();
    if (die) ::kill(::getpid(), SIGKILL);
    fake::launch(stream_, [this, number, words = *words] { kernel(number, words); });
    return exchange_.end(stream_);
  }

  /// Waits for the stream and compares what the last launch gave.
  Ending finish() {
    if (auto done = wait_for_stream(group_.driver(), stream_, *group_.watchdog, group_.deadline()); !done)
      return done.error().message;
    if (auto healthy = group_.watchdog->examine(); !healthy) return healthy.error().message;
    return compare();
  }
  bool done() { return group_.driver().streamQuery(stream_) != CUDA_ERROR_NOT_READY; }
  void drain() { group_.driver().streamSynchronize(stream_); }
  std::string wrong;  ///< what the kernel saw that it should not have

 private:
  std::uint64_t* numbers(CUdeviceptr base, std::size_t chunk) { return reinterpret_cast<std::uint64_t*>(base) + chunk * kChunk; }

  void fill_source(int number) {
    for (int sub = 0; sub < s_.sub_slices; ++sub) {
      std::uint64_t* to = numbers(source_, static_cast<std::size_t>(sub));
      for (std::size_t i = 0; i < kChunk; ++i) to[i] = value(number, rank_, rank_, sub, i);
    }
  }

  // Waits as the device does: not for ever, and not after an abort.
  bool wait_ready(const LaunchWords& words, int source, int sub) {
    const CUdeviceptr word = words.ready + 4 * static_cast<std::size_t>(source * s_.sub_slices + sub);
    const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(words.timeout_ns);
    for (;;) {
      const std::uint32_t seen = fake::load_acquire(word);
      if (static_cast<std::int32_t>(seen - words.expected) >= 0) return true;
      if (fake::load_acquire(words.abort) != 0) return false;
      if (std::chrono::steady_clock::now() > end) {
        fake::report({1, rank_, source, sub, words.expected, seen}, *reinterpret_cast<KernelFailure*>(words.failure));
        return false;
      }
      std::this_thread::sleep_for(5us);
    }
  }

  void kernel(int number, const LaunchWords& words) {
    for (const Step& step : s_.steps_of(rank_)) {
      if (!run_step(number, words, step)) return;  // nothing that depends on what is missing is stored or signalled
    }
  }

  bool run_step(int number, const LaunchWords& words, const Step& step) {
    const auto chunk = static_cast<std::size_t>(step.slice * s_.sub_slices + step.sub);
    switch (overlap::pattern_of(s_.exchange)) {
      case overlap::Pattern::gather: {
        if (step.slice != rank_ && !wait_ready(words, step.slice, step.sub)) return false;
        const std::uint64_t* from =
            step.slice == rank_ ? numbers(source_, static_cast<std::size_t>(step.sub)) : numbers(words.received, chunk);
        for (std::size_t i = 0; i < kChunk; ++i) {
          if (from[i] != value(number, step.slice, step.slice, step.sub, i)) wrong = "a slice of another launch";
        }
        return true;
      }
      case overlap::Pattern::scatter:
      case overlap::Pattern::reduce: {
        std::uint64_t* out =
            step.slice == rank_ ? own_.data() + static_cast<std::size_t>(step.sub) * kChunk : numbers(words.sent, chunk);
        for (std::size_t i = 0; i < kChunk; ++i) out[i] = value(number, rank_, step.slice, step.sub, i);
        if (step.slice == rank_ && overlap::pattern_of(s_.exchange) == overlap::Pattern::reduce && !add(words, step.sub, out))
          return false;
        if (step.slice == rank_ && s_.exchange == Exchange::all_reduce) std::memcpy(numbers(words.sent, chunk), out, kChunk * 8);
        if (step.slice == rank_ && s_.exchange != Exchange::all_reduce) return true;  // nobody waits for it
        for (std::uint32_t part = 0; part < kSignals; ++part) fake::add_release(words.done + 4 * chunk, 1);
        return true;
      }
    }
    return false;
  }

  // In one fixed order: a wrapping sum shows a missing or a doubled part, whatever its order.
  bool add(const LaunchWords& words, int sub, std::uint64_t* out) {
    for (int source = 0; source < s_.ranks; ++source) {
      if (source == rank_) continue;
      if (!wait_ready(words, source, sub)) return false;
      const std::uint64_t* from = numbers(words.received, static_cast<std::size_t>(source * s_.sub_slices + sub));
      for (std::size_t i = 0; i < kChunk; ++i) out[i] += from[i];
    }
    return true;
  }

  [[nodiscard]] std::uint64_t sum(int slice, int sub, std::size_t i) const {
    std::uint64_t out = 0;
    for (int rank = 0; rank < s_.ranks; ++rank) out += value(launched_, rank, slice, sub, i);
    return out;
  }

  Ending compare() {
    if (!wrong.empty()) return wrong;
    const bool reduce = overlap::pattern_of(s_.exchange) == overlap::Pattern::reduce;
    for (int sub = 0; sub < s_.sub_slices; ++sub) {
      for (std::size_t i = 0; i < kChunk && reduce; ++i) {
        if (own_[static_cast<std::size_t>(sub) * kChunk + i] != sum(rank_, sub, i)) return "a wrong sum";
      }
      for (int source = 0; source < s_.ranks; ++source) {
        if (source == rank_) continue;
        const auto slot = static_cast<std::size_t>(source * s_.sub_slices + sub);
        const auto all = static_cast<std::size_t>(s_.ranks * s_.sub_slices);
        for (std::size_t i = 0; i < kChunk; ++i) {
          if (s_.exchange == Exchange::all_reduce && numbers(exchange_.received_at(rank_), all + slot)[i] != sum(source, sub, i))
            return "a wrong slice";
          if (s_.exchange == Exchange::to_all &&
              numbers(exchange_.received_at(rank_), slot)[i] != value(launched_, source, rank_, sub, i))
            return "a wrong block";
        }
      }
    }
    return "";
  }

  Communicator::Impl& group_;
  SliceExchange& exchange_;
  const StepSchedule& s_;
  int rank_;
  int launched_ = 0;
  std::vector<std::uint64_t> own_;
  CUstream stream_ = nullptr;
  CUdeviceptr source_ = 0;
};

constexpr Way kWays[] = {{Exchange::all_gather}, {Exchange::all_gather, Route::ring},
                         {Exchange::all_to_all}, {Exchange::reduce_scatter},
                         {Exchange::all_reduce}, {Exchange::to_all}};

CommunicatorOptions with_transport(PeerTransport transport, Milliseconds timeout = 20s) {
  CommunicatorOptions options;
  options.transport = transport;
  options.timeout = timeout;
  return options;
}

/// `launches` launches by one rank; compares after every `every`-th (an all-to-all's output is only safe until the next).
Ending run_rank(Communicator::Impl& group, Way way, int subs, int launches, int every) {
  const ExchangeRequest asked = request(way, group.links.ranks(), subs);
  auto made = SliceExchange::create(group, asked);
  if (!made) return made.error().message;
  Rank rank(group, **made, asked.schedule);
  for (int launch = 1; launch <= launches; ++launch) {
    if (auto enqueued = rank.launch(launch); !enqueued) return enqueued.error().message;
    if (launch % every != 0 && launch != launches) continue;
    if (auto ending = rank.finish(); !ending.empty()) return "launch " + std::to_string(launch) + ": " + ending;
  }
  return "";
}

}  // namespace

TEST_CASE("exchange: every operation gives the right values over many launches, with random delays, for 1 to 8 ranks") {
  const int descriptors = test::open_descriptors();
  const fake::Live before = fake::live();
  for (const Way way : kWays) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      for (const int subs : {1, 3}) {
        CAPTURE(to_string(way.exchange));
        CAPTURE(to_string(way.route));
        CAPTURE(ranks);
        CAPTURE(subs);
        fake::delay(static_cast<std::uint32_t>(ranks * 10 + subs), 60);
        const std::string address = test::new_address();
        for (const Ending& ending : test::run_threads(ranks, [&](int rank) -> Ending {
               auto group = test::fake_communicator(address, rank, ranks, with_transport(PeerTransport::ipc));
               if (!group) return group.error().message;
               std::minstd_rand random(static_cast<unsigned>(rank + 1));
               std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
               return run_rank(**group, way, subs, ranks == 8 ? 5 : 12, 4);
             })) {
          CHECK(ending == "");
        }
      }
    }
  }
  fake::reset();
  CHECK(test::open_descriptors() == descriptors);
  CHECK(fake::live() == before);
}

TEST_CASE("exchange: between processes, by descriptors and by cuIpc") {
  for (const PeerTransport transport : {PeerTransport::vmm, PeerTransport::ipc}) {
    for (const Way way : {Way{Exchange::all_gather}, Way{Exchange::all_gather, Route::ring}, Way{Exchange::reduce_scatter},
                          Way{Exchange::all_reduce}}) {
      CAPTURE(to_string(transport));
      CAPTURE(to_string(way.exchange));
      CAPTURE(to_string(way.route));
      const std::string address = test::new_address();
      for (const Ending& ending : test::run_processes(3, [&](int rank) -> Ending {
             fake::delay(5, 40);
             {
               auto group = test::fake_communicator(address, rank, 3, with_transport(transport));
               if (!group) return group.error().message;
               if (auto ending = run_rank(**group, way, 2, 8, 3); !ending.empty()) return ending;
             }
             return fake::live() == fake::Live{} ? "" : "something of the driver's is left";
           })) {
        CHECK(ending == "");
      }
    }
  }
}

TEST_CASE("exchange: launches that are captured can be replayed, and mixed with others") {
  for (const Way way : kWays) {
    CAPTURE(to_string(way.exchange));
    CAPTURE(to_string(way.route));
    fake::delay(11, 40);
    const std::string address = test::new_address();
    for (const Ending& ending : test::run_threads(3, [&](int rank) -> Ending {
           auto group = test::fake_communicator(address, rank, 3, with_transport(PeerTransport::ipc));
           if (!group) return group.error().message;
           const ExchangeRequest asked = request(way, 3, 2);
           auto made = SliceExchange::create(**group, asked);
           if (!made) return made.error().message;
           Rank of(**group, **made, asked.schedule);
           for (int launch = 1; launch <= 9; ++launch) {
             // From the fourth on the constants stay, which is what a replay means; later ones are not captured again.
             fake::capture(launch >= 4 && launch < 7);
             if (auto enqueued = of.launch(launch); !enqueued) return enqueued.error().message;
             if (auto ended = of.finish(); !ended.empty()) return "launch " + std::to_string(launch) + ": " + ended;
           }
           fake::capture(false);
           return "";
         })) {
      CHECK(ending == "");
    }
  }
  fake::reset();
}

TEST_CASE("exchange: another plan or shape on one rank is an error on all, at creation") {
  const std::string address = test::new_address();
  for (const Ending& ending : test::run_threads(3, [&](int rank) -> Ending {
         auto group = test::fake_communicator(address, rank, 3);
         if (!group) return group.error().message;
         auto made = SliceExchange::create(**group, request({Exchange::all_gather}, 3, 1, rank == 1 ? "m=4097" : "m=4096"));
         if (made) return "made";
         return made.error().message;
       })) {
    CHECK(contains(ending, "disagree about the problem and plan: rank 0 has \"m=4096\", rank 1 has \"m=4097\""));
  }
}

TEST_CASE("exchange: out of memory on one rank is an error on all, at creation, and leaves nothing") {
  const fake::Live before = fake::live();
  for (const char* call : {"memAlloc", "streamCreate", "eventCreate", "memHostAlloc"}) {
    CAPTURE(call);
    const std::string address = test::new_address();
    for (const Ending& ending : test::run_threads(2, [&](int rank) -> Ending {
           auto group = test::fake_communicator(address, rank, 2, with_transport(PeerTransport::vmm));
           if (!group) return group.error().message;
           if (auto all = (*group)->barrier(); !all) return all.error().message;
           if (rank == 1) fake::fail(call, CUDA_ERROR_OUT_OF_MEMORY, 1);
           if (auto all = (*group)->barrier(); !all) return all.error().message;
           auto made = SliceExchange::create(**group, request({Exchange::reduce_scatter}, 2, 1));
           if (made) return "made";
           return contains(made.error().message, "rank 1: ") && (*group)->watchdog->status() ? "" : made.error().message;
         })) {
      CHECK(ending == "");
    }
    fake::reset();
  }
  CHECK(fake::live() == before);
}

TEST_CASE("exchange: a rank that stops launching is named by the others within the timeout") {
  fake::undefined_copies(true);
  for (const Way way : kWays) {
    CAPTURE(to_string(way.exchange));
    CAPTURE(to_string(way.route));
    const auto start = std::chrono::steady_clock::now();
    const std::string address = test::new_address();
    const auto endings = test::run_threads(3, [&](int rank) -> Ending {
      auto group = test::fake_communicator(address, rank, 3, with_transport(PeerTransport::ipc, 1500ms));
      if (!group) return group.error().message;
      const ExchangeRequest asked = request(way, 3, 2);
      auto made = SliceExchange::create(**group, asked);
      if (!made) return made.error().message;
      Rank of(**group, **made, asked.schedule);
      for (int launch = 1; launch <= 3; ++launch) {
        if (rank == 1 && launch == 3) break;
        if (auto enqueued = of.launch(launch); !enqueued) return enqueued.error().message;
      }
      if (rank == 1) {
        for (int i = 0; i < 800 && (*group)->watchdog->status(); ++i) std::this_thread::sleep_for(10ms);
      }
      of.drain();  // must not hang: whatever waited was released
      const auto status = (*group)->watchdog->examine();
      if (!status && of.launch(9)) return "launches go on";
      return status ? "healthy" : status.error().message;
    });
    CHECK(std::chrono::steady_clock::now() - start < 12s);
    for (const Ending& ending : endings) {
      CAPTURE(ending);
      CHECK(contains(ending, "expected 3, saw 2"));
      CHECK(contains(ending, "slice"));
    }
  }
  fake::undefined_copies(false);
}

TEST_CASE("exchange: a rank that is killed between begin and end fails the others at once") {
  fake::undefined_copies(true);
  for (const Way way : {Way{Exchange::all_gather}, Way{Exchange::all_gather, Route::ring}, Way{Exchange::reduce_scatter},
                        Way{Exchange::to_all}}) {
    CAPTURE(to_string(way.exchange));
    CAPTURE(to_string(way.route));
    const auto start = std::chrono::steady_clock::now();
    const std::string address = test::new_address();
    const auto endings = test::run_processes(3, [&](int rank) -> Ending {
      auto group = test::fake_communicator(address, rank, 3, with_transport(PeerTransport::vmm, 30s));
      if (!group) return group.error().message;
      const ExchangeRequest asked = request(way, 3, 1);
      auto made = SliceExchange::create(**group, asked);
      if (!made) return made.error().message;
      Rank of(**group, **made, asked.schedule);
      for (int launch = 1; launch <= 3; ++launch) {
        if (auto enqueued = of.launch(launch, rank == 2 && launch == 3); !enqueued) return enqueued.error().message;
      }
      // What it had begun to send may have come whole; that it is gone is learned all the same.
      for (int i = 0; i < 10000 && (*group)->watchdog->status(); ++i) std::this_thread::sleep_for(1ms);
      const Ending ending = of.finish();
      of.drain();
      return ending;
    });
    CHECK(std::chrono::steady_clock::now() - start < 15s);
    CHECK(endings[2] == "signal 9");
    for (const int rank : {0, 1}) {
      const Ending& ending = endings[static_cast<std::size_t>(rank)];
      CAPTURE(ending);
      CHECK(contains(ending, "rank 2 ended without taking leave"));
    }
  }
  fake::undefined_copies(false);
}

// What the dead rank should have passed on is missing to all but those before it.
TEST_CASE("exchange: on a ring a rank that is killed, or stays away, fails all others in time, for 2 to 8 ranks") {
  fake::undefined_copies(true);
  for (const int ranks : {2, 3, 4, 8}) {
    for (const bool killed : {true, false}) {
      CAPTURE(ranks);
      CAPTURE(killed);
      const auto start = std::chrono::steady_clock::now();
      const std::string address = test::new_address();
      const auto endings = test::run_processes(ranks, [&](int rank) -> Ending {
        fake::delay(7, 30);
        auto group = test::fake_communicator(address, rank, ranks,
                                             with_transport(PeerTransport::vmm, killed ? Milliseconds(30s) : 1000ms));
        if (!group) return group.error().message;
        const ExchangeRequest asked = request({Exchange::all_gather, Route::ring}, ranks, 2);
        auto made = SliceExchange::create(**group, asked);
        if (!made) return made.error().message;
        Rank of(**group, **made, asked.schedule);
        const bool lost = rank == 1;
        for (int launch = 1; launch <= 3; ++launch) {
          if (lost && launch == 3) break;
          if (auto enqueued = of.launch(launch); !enqueued) return enqueued.error().message;
        }
        if (lost && killed) {
          if (auto ending = of.finish(); !ending.empty()) return ending;
          ::kill(::getpid(), SIGKILL);
        }
        for (int i = 0; i < 15000 && (*group)->watchdog->status() && (lost || !of.done()); ++i) std::this_thread::sleep_for(1ms);
        const Ending ending = of.finish();  // never another slice in place of the one that is missing
        of.drain();                         // must not hang: whatever waited was released
        return ending.empty() ? "healthy" : ending;
      });
      CHECK(std::chrono::steady_clock::now() - start < 15s);
      for (int rank = 0; rank < ranks; ++rank) {
        const Ending& ending = endings[static_cast<std::size_t>(rank)];
        CAPTURE(rank);
        CAPTURE(ending);
        if (killed)
          CHECK((rank == 1 ? ending == "signal 9" : contains(ending, "rank 1 ended without taking leave")));
        else
          CHECK(contains(ending, "expected 3, saw 2"));
      }
    }
  }
  fake::undefined_copies(false);
}

TEST_CASE("exchange: partial sums do not go round a ring") {
  const std::string address = test::new_address();
  for (const Ending& ending : test::run_threads(3, [&](int rank) -> Ending {
         auto group = test::fake_communicator(address, rank, 3);
         if (!group) return group.error().message;
         auto made = SliceExchange::create(**group, request({Exchange::reduce_scatter, Route::ring}, 3, 1));
         if (made) return "made";
         return made.error().code == ErrorCode::invalid_plan ? made.error().message : "another error";
       })) {
    CHECK(contains(ending, "the running sum of a ring takes them in another order"));
  }
}

TEST_CASE("exchange: a driver call that fails in a launch fails the launch, and the others learn of it") {
  const std::string address = test::new_address();
  const auto endings = test::run_threads(2, [&](int rank) -> Ending {
    auto group = test::fake_communicator(address, rank, 2, with_transport(PeerTransport::ipc, 1s));
    if (!group) return group.error().message;
    const ExchangeRequest asked = request({Exchange::all_gather}, 2, 1);
    auto made = SliceExchange::create(**group, asked);
    if (!made) return made.error().message;
    Rank of(**group, **made, asked.schedule);
    if (auto all = (*group)->barrier(); !all) return all.error().message;
    if (rank == 1) fake::fail("memcpyDtoDAsync", CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    const auto launched = of.launch(1);
    const Ending ending = launched ? of.finish() : launched.error().message;
    of.drain();
    return ending;
  });
  fake::reset();
  CHECK(contains(endings[1], "a copy of slice 1.0 to rank 0 failed"));
  CHECK(contains(endings[0], "rank 1"));
}

}  // namespace ordo
