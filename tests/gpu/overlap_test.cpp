// Every op that exchanges slices, with 2 to 4 ranks on one device: values, bits over delays, and waits that fail.
#include <fmt/format.h>

#include "tests/gpu/overlap_ranks.hpp"

namespace ordo::test {
namespace {

struct Case {
  OverlapGemm problem;
  OverlapPlan plan;
};

/// Half of the device for all ranks together.
Case make_case(OverlapOp op, int ranks, std::int64_t m, std::int64_t n, std::int64_t k, const OverlapPlan& how,
               OverlapGemm what = {}) {
  what.op = op;
  what.ranks = ranks;
  what.m = m;
  what.n = n;
  what.k = k;
  OverlapPlan plan = how;
  plan.op = op;
  plan.ranks = ranks;
  plan.dtype = what.dtype;
  plan.a = what.a;
  plan.b = what.b;
  plan.out = what.out;
  plan.bias = what.bias;
  plan.activation = what.activation;
  plan.workers = 66 / (ranks * plan.cluster);
  return {what, plan};
}

std::vector<Case> cases() {
  const OverlapPlan small{.tile_n = 128, .cluster = 1, .group_m = 2, .sub_slices = 3};
  const OverlapPlan wide{.sub_slices = 2};
  const OverlapPlan odd{.tile_n = 192, .cluster = 2, .group_m = 1};
  OverlapPlan fp32 = wide;
  fp32.partial = OutputType::fp32;
  OverlapPlan direct = small;
  direct.transport = Transport::direct;
  OverlapPlan direct_fp32 = fp32;
  direct_fp32.transport = Transport::direct;
  const OverlapGemm gelu{.dtype = DType::fp16, .bias = true, .activation = Activation::gelu};
  const OverlapGemm gelu_rows{.dtype = DType::fp16, .b = Storage::row, .bias = true, .activation = Activation::gelu};
  const OverlapGemm rows{.b = Storage::row};
  const OverlapGemm gradient{.a = Storage::column, .b = Storage::row, .out = OutputType::fp32};
  std::vector<Case> all;
  // Slices begin anywhere, but at multiples of 8 where an operand is contiguous along what is cut: 96 x - 1 has those for all
  // ranks.
  for (const int ranks : {1, 2, 3, 4}) {
    all.push_back(make_case(OverlapOp::all_gather_gemm, ranks, 1500, 520, 200, wide));
    all.push_back(make_case(OverlapOp::all_gather_gemm, ranks, 1001, 1000, 77, small, gelu));
    all.push_back(make_case(OverlapOp::gemm_reduce_scatter, ranks, 1500, 520, 200, wide));
    all.push_back(make_case(OverlapOp::gemm_reduce_scatter, ranks, 1001, 1000, 77, fp32, gelu));
    all.push_back(make_case(OverlapOp::gemm_reduce_scatter, ranks, 600, 800, 300, odd, gelu));
    all.push_back(make_case(OverlapOp::gemm_reduce_scatter, ranks, 1247, 776, 130, small, gradient));
    all.push_back(make_case(OverlapOp::gemm_reduce_scatter, ranks, 1201, 776, 130, direct, gelu));
    all.push_back(make_case(OverlapOp::gemm_reduce_scatter, ranks, 1248, 1032, 130, direct_fp32, gradient));
    all.push_back(make_case(OverlapOp::gemm_all_reduce, ranks, 1500, 520, 200, wide));
    all.push_back(make_case(OverlapOp::gemm_all_reduce, ranks, 701, 600, 77, small, gelu));
    all.push_back(make_case(OverlapOp::gemm_all_to_all, ranks, 700, 1536, 200, wide));
    all.push_back(make_case(OverlapOp::gemm_all_to_all, ranks, 301, 1055, 77, small, gelu));
    all.push_back(make_case(OverlapOp::gemm_all_to_all, ranks, 513, 1032, 100, direct));
    all.push_back(make_case(OverlapOp::all_to_all_gemm, ranks, 900, 520, 575, wide));
    all.push_back(make_case(OverlapOp::all_to_all_gemm, ranks, 301, 1000, 451, small, gelu_rows));
  }
  for (const OverlapOp op :
       {OverlapOp::all_gather_gemm, OverlapOp::gemm_reduce_scatter, OverlapOp::gemm_all_to_all, OverlapOp::all_to_all_gemm})
    all.push_back(
        make_case(op, 4, 3, 2, 3, small, op == OverlapOp::all_to_all_gemm ? rows : OverlapGemm{}));  // slices of nothing
  return all;
}

}  // namespace

TEST_SUITE("overlap") {
  TEST_CASE("overlap: every op with 1 .. 4 ranks on one device against fp64, the same bits over delays") {
    Gpu* device = gpu();
    if (device == nullptr) return;
    const Deadline deadline("simulated ranks", 300);
    const HelperKernels kernels = must(compile_helpers());
    const std::vector<Case> all = cases();
    std::vector<OverlapPlan> plans;
    for (const Case& c : all) plans.push_back(c.plan);
    int failures = 0;
    const auto prepared = prepare_overlap(device->engine, plans, failures);
    CHECK(failures == 0);
    double worst = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Case& c = all[i];
      const std::string what = to_text(c.problem) + " | " + to_text(c.plan);
      INFO(what);
      if (!prepared[i]) continue;
      SimulatedRanks ranks = must(SimulatedRanks::create(*device, kernels, c.problem, *prepared[i], i + 1));
      must(ranks.run(0));
      CHECK(must(ranks.check(worst)) == "");
      const std::vector<unsigned char> first = must(ranks.outputs());
      for (std::uint64_t delays = 1; delays <= 8; ++delays) {
        must(ranks.run(delays * 0x9E3779B97F4A7C15ull));
        CHECK(must(ranks.outputs()) == first);
      }
      check_context(*device, what);
    }
    fmt::print("overlap: {} cases, worst error {:.3f} of the bound\n", all.size(), worst);
  }

  TEST_CASE("overlap: a wait that fails says where, ends the kernel, and stores nothing that depends on it") {
    Gpu* device = gpu();
    if (device == nullptr) return;
    const Deadline deadline("failing waits", 60);
    const HelperKernels kernels = must(compile_helpers());
    for (const OverlapOp op : {OverlapOp::all_gather_gemm, OverlapOp::gemm_reduce_scatter}) {
      const Case c = make_case(op, 2, 1024, 512, 256, OverlapPlan{});
      const OverlapGemmKernel kernel = must(device->engine.prepare(c.plan));
      SimulatedRanks ranks = must(SimulatedRanks::create(*device, kernels, c.problem, kernel, 5));
      must(ranks.run(0));
      const std::vector<unsigned char> good = must(ranks.outputs());
      for (const bool aborted : {false, true}) {
        const Stopwatch watch;
        const OverlapFailure failure = must(ranks.run_alone(0, 50'000'000, aborted));
        CHECK(watch.seconds() < 2);
        CHECK(failure.state == (aborted ? 0u : 2u));
        if (!aborted) {
          CHECK(failure.rank == 0);
          CHECK(failure.slice == 1);
          CHECK(failure.chunk == 0);
          CHECK(failure.expected == 1);
          CHECK(failure.seen == 0);
        }
        // What came from this rank alone is right, the rest untouched: the gathered product has its own rows, the sum has none.
        const std::vector<unsigned char> bytes = must(ranks.outputs());
        const std::size_t own = op == OverlapOp::all_gather_gemm ? std::size_t{512} * 512 * 2 : 0;
        const std::size_t end = op == OverlapOp::all_gather_gemm ? 2 * own : std::size_t{512} * 512 * 2;
        CHECK(std::equal(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(own), good.begin()));
        CHECK(std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(own), bytes.begin() + static_cast<std::ptrdiff_t>(end),
                          [](unsigned char byte) { return byte == 0xff; }));
      }
    }
  }
}

}  // namespace ordo::test
