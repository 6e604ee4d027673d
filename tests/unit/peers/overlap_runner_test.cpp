// Whole products of several ranks on the fake driver: every op, exact values, random delays, replays, and launches that fail.
#include "runtime/peers/overlap_runner.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <random>
#include <thread>

#include "runtime/overlap_slices.hpp"
#include "tests/unit/peers/fake_communicator.hpp"
#include "tests/unit/peers/fake_driver.hpp"
#include "tests/unit/peers/fake_gemm.hpp"

namespace ordo {
namespace {

using namespace peers;
using namespace std::chrono_literals;
using test::Ending;
using test::HostMatrix;
namespace fake = test::fake;

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

struct Case {
  OverlapGemm problem;
  OverlapPlan plan;
  bool overlaps = true;
};

Case make_case(OverlapOp op, int ranks, std::int64_t m, std::int64_t n, std::int64_t k, OverlapPlan plan = {}) {
  Case out;
  out.problem = {.op = op, .m = m, .n = n, .k = k, .ranks = ranks, .b = Storage::row, .bias = true};
  out.plan = plan;
  out.plan.op = op;
  out.plan.ranks = ranks;
  out.plan.b = Storage::row;
  out.plan.bias = true;
  out.plan.cluster = 1;
  out.plan.tile_n = 64;
  return out;
}

std::vector<Case> cases(int ranks) {
  const OverlapPlan two{.sub_slices = 2}, fp32{.sub_slices = 2, .partial = OutputType::fp32};
  OverlapPlan direct = two;
  direct.transport = Transport::direct;
  OverlapPlan ring = two;
  ring.route = OverlapRoute::ring;
  std::vector<Case> all{make_case(OverlapOp::all_gather_gemm, ranks, 260 * ranks + 1, 12, 7, two),
                        make_case(OverlapOp::all_to_all_gemm, ranks, 300, 12, 3 * ranks + 1, two),
                        make_case(OverlapOp::gemm_reduce_scatter, ranks, 260 * ranks + 1, 12, 9, two),
                        make_case(OverlapOp::gemm_reduce_scatter, ranks, 130 * ranks + 1, 12, 9, fp32),
                        make_case(OverlapOp::gemm_reduce_scatter, ranks, 260 * ranks + 1, 12, 9, direct),
                        make_case(OverlapOp::gemm_all_reduce, ranks, 260 * ranks + 1, 12, 9, two),
                        make_case(OverlapOp::gemm_all_to_all, ranks, 270, 8 * ranks - 1, 7, two),
                        make_case(OverlapOp::gemm_all_to_all, ranks, 270, 8 * ranks - 1, 7, direct)};
  all.push_back(make_case(OverlapOp::all_gather_gemm, ranks, 260 * ranks + 1, 12, 7, ring));
  for (const std::size_t apart : {0, 1, 6, 8}) {
    all.push_back(all[apart]);
    all.back().overlaps = false;
  }
  for (const OverlapOp op : {OverlapOp::all_gather_gemm, OverlapOp::all_to_all_gemm, OverlapOp::gemm_reduce_scatter,
                             OverlapOp::gemm_all_reduce, OverlapOp::gemm_all_to_all})
    all.push_back(make_case(op, ranks, 3, op == OverlapOp::gemm_all_to_all ? 1 : 2, 3));  // slices of nothing
  all.push_back(make_case(OverlapOp::all_gather_gemm, ranks, 3, 2, 3, ring));
  return all;
}

/// Small whole numbers, which all the sums here hold exactly.
HostMatrix random_matrix(std::int64_t rows, std::int64_t columns, std::uint32_t seed, std::int64_t pitch = 0) {
  HostMatrix out = HostMatrix::poisoned(rows, columns, false, pitch);
  std::minstd_rand random(seed * 2 + 1);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      test::store(out.view(), false, i, j, static_cast<float>(static_cast<int>(random() >> 8) % 3 - 1));
  return out;
}

/// What one rank has in one launch: the same on whoever asks.
struct Inputs {
  HostMatrix a, b, bias;

  static Inputs of(const OverlapGemm& p, int rank, int launch) {
    const auto seed = static_cast<std::uint32_t>(launch * 1000 + rank * 10);
    const OverlapBuffers buffers = overlap_buffers(p, {.op = p.op, .ranks = static_cast<int>(p.ranks), .b = p.b, .bias = p.bias});
    const auto own = [&](std::int64_t size) { return slice_range(size, p.ranks, rank).size; };
    const bool arrives = p.op == OverlapOp::all_gather_gemm || p.op == OverlapOp::all_to_all_gemm;
    const std::int64_t rows = p.op == OverlapOp::all_gather_gemm   ? own(p.m)
                              : p.op == OverlapOp::all_to_all_gemm ? p.ranks * p.m
                                                                   : p.m;
    return {random_matrix(rows, p.op == OverlapOp::all_to_all_gemm ? own(p.k) : p.k, seed, arrives ? buffers.receive_pitch : 0),
            random_matrix(p.k, p.n, seed + 1), random_matrix(1, p.n, static_cast<std::uint32_t>(launch))};
  }
};

/// Element (row, column) of the D of `rank`, by the definition of the op.
class Expected {
 public:
  Expected(const OverlapGemm& problem, int rank, int launch) : p_(problem), rank_(rank) {
    for (int q = 0; q < p_.ranks; ++q) all_.push_back(Inputs::of(p_, q, launch));
  }
  [[nodiscard]] std::int64_t rows() const {
    return p_.op == OverlapOp::gemm_reduce_scatter ? own(p_.m).size
           : p_.op == OverlapOp::gemm_all_to_all   ? p_.ranks * p_.m
                                                   : p_.m;
  }
  [[nodiscard]] std::int64_t columns() const { return p_.op == OverlapOp::gemm_all_to_all ? own(p_.n).size : p_.n; }

  float at(std::int64_t row, std::int64_t column) {
    float sum = 0;
    switch (p_.op) {
      case OverlapOp::all_gather_gemm: {
        int source = 0;
        while (row >= slice_range(p_.m, p_.ranks, source + 1).begin && source + 1 < p_.ranks) ++source;
        sum = dot(source, row - slice_range(p_.m, p_.ranks, source).begin, rank_, column, 0, p_.k);
        break;
      }
      case OverlapOp::all_to_all_gemm:
        for (int q = 0; q < p_.ranks; ++q) {
          const SliceRange depth = slice_range(p_.k, p_.ranks, q);
          sum += dot(q, rank_ * p_.m + row, rank_, column, depth.begin, depth.size);
        }
        break;
      case OverlapOp::gemm_all_to_all: {
        const auto source = static_cast<int>(row / p_.m);
        column += own(p_.n).begin;
        sum = dot(source, row % p_.m, source, column, 0, p_.k);
        break;
      }
      default:
        if (p_.op == OverlapOp::gemm_reduce_scatter) row += own(p_.m).begin;
        for (int q = 0; q < p_.ranks; ++q) sum += dot(q, row, q, column, 0, p_.k);
    }
    return sum + test::load(all_[0].bias.view(), false, 0, column);
  }

 private:
  [[nodiscard]] SliceRange own(std::int64_t size) const { return slice_range(size, p_.ranks, rank_); }
  float dot(int a, std::int64_t row, int b, std::int64_t column, std::int64_t from, std::int64_t k) {
    float sum = 0;
    const MatrixView left = all_[static_cast<std::size_t>(a)].a.view(), right = all_[static_cast<std::size_t>(b)].b.view();
    for (std::int64_t i = 0; i < k; ++i) sum += test::load(left, false, row, i) * test::load(right, false, from + i, column);
    return sum;
  }

  OverlapGemm p_;
  int rank_;
  std::vector<Inputs> all_;
};

/// One rank: its runner, whose kernel is fake_gemm, and a stream.
class Rank {
 public:
  static Result<std::unique_ptr<Rank>> create(Communicator::Impl& group, const Case& of) {
    std::unique_ptr<Rank> out(new Rank(group, of));
    auto runner = OverlapRunner::create(
        group, of.problem, of.plan, of.overlaps,
        [rank = out.get()](const OverlapGemmTensors& tensors, const OverlapExchange& exchange, CUstream stream) -> Result<void> {
          if (rank->kernel_fails) return Error{ErrorCode::driver, "the kernel does not start"};
          fake::launch(stream,
                       [rank, tensors, exchange] { test::fake_gemm(rank->case_.problem, rank->case_.plan, tensors, exchange); });
          return {};
        });
    if (!runner) return runner.error();
    out->runner_ = *std::move(runner);
    return out;
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() {
    drain();  // what was enqueued writes to the runner's memory
    runner_.reset();
    group_.driver().streamDestroy(stream_);
  }

  Result<void> launch(int number) {
    launched_ = number;
    inputs_ = Inputs::of(case_.problem, group_.links.rank(), number);
    const Expected shape(case_.problem, group_.links.rank(), number);
    const bool shared = runner_->output().data != nullptr;
    d_ = HostMatrix::poisoned(shape.rows(), shape.columns(), case_.problem.out == OutputType::fp32);
    // A caller may write to a D that other ranks reach until its launch: theirs must come after that, in the first launch too.
    if (shared) fake::launch(stream_, [this] { poison(runner_->output()); });
    return runner_->launch(tensors(shared), stream_);
  }
  [[nodiscard]] OverlapGemmTensors tensors(bool shared) {
    return {inputs_.a.view(), inputs_.b.view(), shared ? MatrixView{} : d_.view(), inputs_.bias.bytes.data()};
  }

  Ending finish() {
    if (auto done = wait_for_stream(group_.driver(), stream_, *group_.watchdog, group_.deadline()); !done)
      return done.error().message;
    if (auto healthy = group_.watchdog->examine(); !healthy) return healthy.error().message;
    Expected expected(case_.problem, group_.links.rank(), launched_);
    const MatrixView d = runner_->output().data != nullptr ? runner_->output() : d_.view();
    for (std::int64_t i = 0; i < expected.rows(); ++i) {
      for (std::int64_t j = 0; j < expected.columns(); ++j) {
        const float got = test::load(d, d_.fp32, i, j), want = expected.at(i, j);
        if (got != want)
          return "D(" + std::to_string(i) + ", " + std::to_string(j) + ") is " + std::to_string(got) + ", not " +
                 std::to_string(want);
      }
    }
    return "";
  }
  void drain() { group_.driver().streamSynchronize(stream_); }
  OverlapRunner& runner() { return *runner_; }
  CUstream stream() { return stream_; }
  bool kernel_fails = false;

 private:
  Rank(Communicator::Impl& group, const Case& of) : group_(group), case_(of) { group_.driver().streamCreate(&stream_, 0); }

  void poison(const MatrixView& d) {
    const Expected shape(case_.problem, group_.links.rank(), launched_);
    for (std::int64_t i = 0; i < shape.rows(); ++i)
      for (std::int64_t j = 0; j < shape.columns(); ++j) test::store(d, d_.fp32, i, j, 1000);
  }

  Communicator::Impl& group_;
  Case case_;
  CUstream stream_ = nullptr;
  std::unique_ptr<OverlapRunner> runner_;
  Inputs inputs_;
  HostMatrix d_;
  int launched_ = 0;
};

CommunicatorOptions with_timeout(Milliseconds timeout) {
  CommunicatorOptions options;
  options.transport = PeerTransport::ipc;
  options.timeout = timeout;
  return options;
}

using Body = std::function<Ending(Communicator::Impl&, Rank&)>;

/// `body` on every rank of `of`.
std::vector<Ending> on_ranks(const Case& of, Milliseconds timeout, const Body& body) {
  const auto ranks = static_cast<int>(of.problem.ranks);
  return test::run_threads(ranks, [&, address = test::new_address()](int rank) -> Ending {
    auto group = test::fake_communicator(address, rank, ranks, with_timeout(timeout));
    if (!group) return group.error().message;
    auto made = Rank::create(**group, of);
    if (!made) return made.error().message;
    return body(**group, **made);
  });
}

Case small_case(OverlapOp op, int ranks, OverlapRoute route = OverlapRoute::direct) {
  return make_case(op, ranks, 140 * ranks, 48, 16, {.sub_slices = 2, .route = route});
}

/// Every op, and every route of it.
std::vector<Case> small_cases(int ranks) {
  std::vector<Case> out{small_case(OverlapOp::all_gather_gemm, ranks, OverlapRoute::ring)};
  for (const OverlapOp op : {OverlapOp::all_gather_gemm, OverlapOp::all_to_all_gemm, OverlapOp::gemm_reduce_scatter,
                             OverlapOp::gemm_all_reduce, OverlapOp::gemm_all_to_all})
    out.push_back(small_case(op, ranks));
  return out;
}

}  // namespace

TEST_CASE("overlap runner: every op gives exact products on 1 to 8 ranks with random delays") {
  const fake::Live before = fake::live();
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const Case& of : cases(ranks)) {
      const std::string what = to_text(of.problem) + " " + to_text(of.plan);
      CAPTURE(what);
      CAPTURE(of.overlaps);
      REQUIRE(check_fit(of.problem, of.plan));
      fake::delay(static_cast<std::uint32_t>(ranks), 100);
      for (const Ending& ending : on_ranks(of, 60s, [&](Communicator::Impl& group, Rank& rank) -> Ending {
             std::minstd_rand random(static_cast<unsigned>(group.links.rank() + 7));
             for (int launch = 1; launch <= 2; ++launch) {
               std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
               if (auto enqueued = rank.launch(launch); !enqueued) return enqueued.error().message;
               if (auto ending = rank.finish(); !ending.empty()) return "launch " + std::to_string(launch) + ": " + ending;
             }
             return "";
           })) {
        CHECK(ending == "");
      }
    }
  }
  fake::reset();
  CHECK(fake::live() == before);
}

TEST_CASE("overlap runner: captured launches keep their numbers and go on") {
  std::vector<Case> all = small_cases(3);
  // Kernels that store at their peers', and ranks that own no column: nothing is told that nobody waits for.
  for (const std::int64_t n : {1, 20})
    all.push_back(make_case(OverlapOp::gemm_all_to_all, 3, 300, n, 16, {.sub_slices = 2, .transport = Transport::direct}));
  for (const Case& of : all) {
    const std::string what = to_text(of.plan);
    CAPTURE(what);
    fake::delay(3, 40);
    for (const Ending& ending : on_ranks(of, 60s, [&](Communicator::Impl&, Rank& rank) -> Ending {
           for (int launch = 1; launch <= 6; ++launch) {
             fake::capture(launch == 2 || launch == 3);
             const auto enqueued = rank.launch(launch);
             fake::capture(false);
             if (!enqueued) return enqueued.error().message;
             if (auto ending = rank.finish(); !ending.empty()) return "launch " + std::to_string(launch) + ": " + ending;
           }
           return "";
         })) {
      CHECK(ending == "");
    }
  }
  fake::reset();
}

TEST_CASE("overlap runner: tensors that do not fit are refused before anything is enqueued") {
  for (const Ending& ending :
       on_ranks(small_case(OverlapOp::all_gather_gemm, 2), 20s, [](Communicator::Impl& group, Rank& rank) -> Ending {
         if (auto first = rank.launch(1); !first) return first.error().message;
         if (auto ending = rank.finish(); !ending.empty()) return ending;
         OverlapGemmTensors wide = rank.tensors(false);
         wide.a.stride += 8;
         const auto refused = rank.runner().launch(wide, rank.stream());
         if (refused) return "a stride that is not copied was taken";
         if (refused.error().code != ErrorCode::invalid_argument || !contains(refused.error().message, "16 elements apart"))
           return refused.error().message;
         wide = rank.tensors(false);
         wide.b.data = nullptr;
         if (rank.runner().launch(wide, rank.stream())) return "no B was taken";
         if (!group.watchdog->status()) return "the communicator failed";
         if (auto again = rank.launch(2); !again) return again.error().message;
         return rank.finish();
       })) {
    CHECK(ending == "");
  }
  for (const Ending& ending :
       on_ranks(small_case(OverlapOp::gemm_all_reduce, 2), 20s, [](Communicator::Impl&, Rank& rank) -> Ending {
         if (auto first = rank.launch(1); !first) return first.error().message;
         if (auto ending = rank.finish(); !ending.empty()) return ending;
         const auto refused = rank.runner().launch(rank.tensors(false), rank.stream());
         if (refused) return "a D was taken that nobody writes to";
         return contains(refused.error().message, "output()") ? "" : refused.error().message;
       })) {
    CHECK(ending == "");
  }
}

TEST_CASE("overlap runner: a kernel that cannot start fails every rank in time") {
  fake::undefined_copies(true);
  for (const Case& of : small_cases(3)) {
    const std::string what = to_text(of.plan);
    CAPTURE(what);
    const auto start = std::chrono::steady_clock::now();
    const auto endings = on_ranks(of, 20s, [](Communicator::Impl& group, Rank& rank) -> Ending {
      rank.kernel_fails = group.links.rank() == 1;
      const auto launched = rank.launch(1);
      const Ending ending = launched ? rank.finish() : launched.error().message;
      rank.drain();  // must not hang
      for (int i = 0; i < 800 && group.watchdog->status(); ++i) std::this_thread::sleep_for(10ms);
      return rank.launch(2) ? "launches go on" : ending;
    });
    CHECK(std::chrono::steady_clock::now() - start < 10s);
    for (std::size_t r = 0; r < endings.size(); ++r) {
      CAPTURE(endings[r]);
      // Another rank may have had all it needed before it heard: then its product is right.
      CHECK((contains(endings[r], "the kernel does not start") || (r != 1 && endings[r].empty())));
    }
  }
  fake::undefined_copies(false);
}

TEST_CASE("overlap runner: a rank that stays away is named with its slice within the timeout") {
  fake::undefined_copies(true);
  for (const Case& of : {small_case(OverlapOp::all_gather_gemm, 2), small_case(OverlapOp::all_gather_gemm, 2, OverlapRoute::ring),
                         small_case(OverlapOp::gemm_reduce_scatter, 2)}) {
    const std::string what = to_text(of.plan);
    CAPTURE(what);
    const auto endings = on_ranks(of, 1s, [](Communicator::Impl& group, Rank& rank) -> Ending {
      if (group.links.rank() == 1) {
        for (int i = 0; i < 800 && group.watchdog->status(); ++i) std::this_thread::sleep_for(10ms);
      } else if (auto launched = rank.launch(1); !launched) {
        return launched.error().message;
      }
      rank.drain();
      const auto status = group.watchdog->examine();
      return status ? "healthy" : status.error().message;
    });
    for (const Ending& ending : endings) CHECK(contains(ending, "rank 0 waited 1000 ms for slice 1, chunk 0: expected 1, saw 0"));
  }
  fake::undefined_copies(false);
}

TEST_CASE("overlap runner: another shape, plan or method on one rank is an error on all") {
  for (const int difference : {0, 1, 2, 3}) {
    const auto endings = test::run_threads(2, [&, address = test::new_address()](int rank) -> Ending {
      auto group = test::fake_communicator(address, rank, 2, with_timeout(20s));
      if (!group) return group.error().message;
      Case of = small_case(difference == 3 ? OverlapOp::all_gather_gemm : OverlapOp::gemm_all_to_all, 2);
      if (rank == 1 && difference == 0) of.problem.m += 1;
      if (rank == 1 && difference == 1) of.plan.sub_slices = 1;
      if (rank == 1 && difference == 2) of.overlaps = false;
      if (rank == 1 && difference == 3) of.plan.route = OverlapRoute::ring;
      auto made = Rank::create(**group, of);
      return made ? "made" : made.error().message;
    });
    for (const Ending& ending : endings) CHECK(contains(ending, "disagree about the problem and plan"));
  }
}

TEST_CASE("overlap runner: op gemm has nothing to exchange") {
  const auto request = exchange_request({}, {}, true);
  REQUIRE(!request);
  CHECK(contains(request.error().message, "op gemm exchanges nothing"));
}

}  // namespace ordo
