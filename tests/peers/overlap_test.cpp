// Overlapped products on two GPUs: values, bits with late ranks, graphs, methods and transports.
#include <fmt/format.h>

#include "runtime/measure/overlap_check.hpp"
#include "tests/peers/overlap_rank.hpp"
#include "tests/peers/two_gpus.hpp"

namespace ordo {
namespace {

using namespace test;
using namespace std::chrono_literals;

Ending check(OverlapRank& rank, const OverlapGemm& problem, const OverlappedGemmOptions& options, int repeats) {
  const auto checked = measure::check_overlap(rank.with(), problem, options, 3, repeats, true);
  if (!checked) return to_text(problem) + ": " + checked.error().message;
  if (checked->passed()) return "";
  return fmt::format("{}: {} elements beyond the bound (worst {:.3g} of it), {} words differ", to_text(problem),
                     checked->deviation.beyond, checked->deviation.worst, checked->differing);
}

/// A graph of two launches, replayed between plain ones; each result is compared with the first launch's bits.
Ending replay(OverlapRank& rank, const OverlapGemm& problem, const OverlappedGemmOptions& options = {}) {
  auto made = OverlapRank::Product::create(rank, problem, options);
  if (!made) return made.error().message;
  OverlapRank::Product& product = **made;
  const Driver& d = rank.group().driver();
  CUstream stream = rank.stream();
  if (auto ok = product.launch(); !ok) return ok.error().message;
  auto first = product.result();
  if (!first) return first.error().message;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  if (auto ok = d.check(d.streamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture"); !ok)
    return ok.error().message;
  for (int i = 0; i < 2; ++i) {
    if (auto ok = product.launch(); !ok) return ok.error().message;
  }
  if (auto ok = d.check(d.streamEndCapture(stream, &graph), "cuStreamEndCapture"); !ok) return ok.error().message;
  if (auto ok = d.check(d.graphInstantiate(&exec, graph, 0), "cuGraphInstantiateWithFlags"); !ok) return ok.error().message;
  Ending ending;
  for (int round = 0; round < 10 && ending.empty(); ++round) {
    if (auto ok = product.poison(); !ok) return ok.error().message;
    if (round % 3 == 2) {
      if (auto ok = product.launch(); !ok) return ok.error().message;
    } else if (auto ok = d.check(d.graphLaunch(exec, stream), "cuGraphLaunch"); !ok) {
      return ok.error().message;
    }
    const auto again = product.result();
    if (!again) return again.error().message;
    if (*again != *first) ending = fmt::format("{}: round {} gave other bits", to_text(problem), round);
  }
  d.graphExecDestroy(exec);
  d.graphDestroy(graph);
  return ending;
}

constexpr OverlapOp kOps[] = {OverlapOp::all_gather_gemm, OverlapOp::all_to_all_gemm, OverlapOp::gemm_reduce_scatter,
                              OverlapOp::gemm_all_reduce, OverlapOp::gemm_all_to_all};

OverlapGemm product(OverlapOp op, std::int64_t m = 2048, std::int64_t n = 2048, std::int64_t k = 1024) {
  return {.op = op, .m = m, .n = n, .k = k, .ranks = 2};
}

}  // namespace

TEST_CASE("two GPUs: overlapped products are right and give the same bits, as threads and as processes") {
  ORDO_NEED_TWO_GPUS();
  for (const Ranks kind : {Ranks::threads, Ranks::processes}) {
    check_all(on_two_gpus(kind, {}, on_rank([](OverlapRank& rank) -> Ending {
                            for (const OverlapOp op : kOps) {
                              // Column slices of 504 and 503: the bias of one begins at 16 bytes, as columns of b would.
                              OverlapGemm ragged = product(op, 1001, 1007, 77), small = product(op, 3, 2, 3);
                              ragged.bias = true;
                              ragged.activation = Activation::gelu;
                              if (op == OverlapOp::all_to_all_gemm) ragged.b = small.b = Storage::row;
                              if (auto ending = check(rank, product(op), {}, 20); !ending.empty()) return ending;
                              if (auto ending = check(rank, ragged, {}, 20); !ending.empty()) return ending;
                              if (auto ending = check(rank, small, {}, 5); !ending.empty()) return ending;
                            }
                            return "";
                          })));
  }
}

TEST_CASE("two GPUs: weight gradients in fp32, fp32 partial sums, and stores straight into the peer's memory") {
  ORDO_NEED_TWO_GPUS();
  check_all(on_two_gpus(Ranks::processes, {}, on_rank([](OverlapRank& rank) -> Ending {
                          OverlapGemm gradient = product(OverlapOp::gemm_reduce_scatter, 2048, 1032, 1000);
                          gradient.a = Storage::column;
                          gradient.b = Storage::row;
                          gradient.out = OutputType::fp32;
                          for (const OverlapGemm& problem : {gradient, product(OverlapOp::gemm_all_to_all),
                                                             product(OverlapOp::gemm_reduce_scatter, 1500, 520, 200)}) {
                            OverlappedGemmOptions options;
                            options.plan = make_overlap_plan(problem, rank.with().engine.target())->plan;
                            options.plan->transport = Transport::direct;
                            if (auto ending = check(rank, problem, options, 20); !ending.empty()) return "direct: " + ending;
                            if (problem.op == OverlapOp::gemm_all_to_all) continue;
                            options.plan->transport = Transport::copy_engine;
                            options.plan->partial = OutputType::fp32;
                            if (auto ending = check(rank, problem, options, 20); !ending.empty()) return "fp32: " + ending;
                          }
                          return "";
                        })));
}

TEST_CASE("two GPUs: exchange and product one after the other give the same as overlapped") {
  ORDO_NEED_TWO_GPUS();
  check_all(on_two_gpus(Ranks::processes, {}, on_rank([](OverlapRank& rank) -> Ending {
                          OverlappedGemmOptions apart;
                          apart.overlap = false;
                          for (const OverlapOp op : kOps) {
                            if (auto ending = check(rank, product(op, 1500, 1000, 208), apart, 10); !ending.empty())
                              return ending;
                          }
                          return "";
                        })));
}

TEST_CASE("two GPUs: over NCCL, as without peer access") {
  ORDO_NEED_TWO_GPUS();
  CommunicatorOptions options;
  options.transport = PeerTransport::nccl;
  const auto endings = on_two_gpus(Ranks::processes, options, on_rank([](OverlapRank& rank) -> Ending {
                                     for (const OverlapOp op : kOps) {
                                       if (auto ending = check(rank, product(op, 1500, 1000, 208), {}, 5); !ending.empty())
                                         return ending;
                                     }
                                     return "";
                                   }));
  if (endings[0].find("NCCL cannot be used") != std::string::npos) {
    MESSAGE("skipped: " << endings[0]);
    return;
  }
  check_all(endings);
}

TEST_CASE("two GPUs: a graph of overlapped launches is replayed and mixed with others") {
  ORDO_NEED_TWO_GPUS();
  check_all(on_two_gpus(Ranks::processes, {}, on_rank([](OverlapRank& rank) -> Ending {
                          for (const OverlapOp op : kOps) {
                            if (auto ending = replay(rank, product(op)); !ending.empty()) return ending;
                          }
                          return "";
                        })));
}

// Two ranks pass nothing on. Four share the GPUs where there are only two.
TEST_CASE("two GPUs: all-gathers round a ring of two, three and four ranks, overlapped, apart, and in graphs") {
  ORDO_NEED_TWO_GPUS();
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    check_all(on_gpus(ranks, Ranks::processes, {}, on_rank([ranks](OverlapRank& rank) -> Ending {
                        for (const auto& [m, n, k] : {std::tuple(2048, 2048, 1024), {1001, 1000, 77}, {3, 2, 3}}) {
                          OverlapGemm problem = product(OverlapOp::all_gather_gemm, m, n, k);
                          problem.ranks = ranks;
                          for (const int subs : {1, 3}) {
                            for (const std::optional<bool> overlap : {std::optional(true), std::optional(false)}) {
                              OverlappedGemmOptions options = by_ring(rank, problem);
                              options.overlap = overlap;
                              options.plan->sub_slices = subs;
                              if (auto ending = check(rank, problem, options, 10); !ending.empty()) return ending;
                            }
                          }
                        }
                        OverlapGemm problem = product(OverlapOp::all_gather_gemm);
                        problem.ranks = ranks;
                        return replay(rank, problem, by_ring(rank, problem));
                      })));
  }
}

}  // namespace ordo
