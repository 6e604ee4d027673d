// The plans that problems get: valid for every op and shape, with a tile that fits short products.
#include <doctest/doctest.h>

#include "codegen/overlap/planner.hpp"

namespace ordo {
namespace {

constexpr OverlapOp kOps[] = {OverlapOp::all_gather_gemm, OverlapOp::gemm_reduce_scatter, OverlapOp::gemm_all_reduce,
                              OverlapOp::gemm_all_to_all, OverlapOp::all_to_all_gemm};

OverlapChoice choose(const OverlapGemm& problem, const char* target = "h200", bool peer_access = true) {
  auto made = make_overlap_plan(problem, *parse_target(target), peer_access);
  REQUIRE_MESSAGE(made, made.error().message);
  return *made;
}

}  // namespace

TEST_CASE("overlap plan: fits its problem, whatever op, shape, storage and target") {
  for (const OverlapOp op : kOps) {
    for (const std::int64_t ranks : {1, 2, 3, 8}) {
      for (const std::int64_t size : {3, 500, 4097, 16384}) {
        for (const Storage storage : {Storage::row, Storage::column}) {
          for (const char* target : {"h200", "h20", "sm_90a:1"}) {
            const OverlapGemm problem{.op = op, .m = size, .n = size + 1, .k = size + 2, .ranks = ranks, .b = storage};
            CAPTURE(to_text(problem));
            if (const auto valid = problem.validate(); !valid) {  // slices that begin where nothing can be read from
              const auto refused = make_overlap_plan(problem, *parse_target(target));
              REQUIRE(!refused);
              CHECK(refused.error().message == valid.error().message);
              continue;
            }
            const OverlapChoice choice = choose(problem, target);
            CAPTURE(to_text(choice.plan));
            CHECK(check_fit(problem, choice.plan));
            CHECK(!choice.reason.empty());
            CHECK(choice.predicted_ms > 0);
            CHECK(choice.plan.workers * choice.plan.cluster <= std::max(2, parse_target(target)->sm_count));
          }
        }
      }
    }
  }
}

TEST_CASE("overlap plan: the widest tile for long products, a narrower one where waves would be left half empty") {
  CHECK(choose({.op = OverlapOp::all_gather_gemm, .m = 16384, .n = 14336, .k = 8192, .ranks = 2}).plan.tile_n == 256);
  CHECK(choose({.op = OverlapOp::gemm_reduce_scatter, .m = 512, .n = 4096, .k = 7168, .ranks = 2}).plan.tile_n < 256);
}

TEST_CASE("overlap plan: sub-slices are whole rows of tiles, and groups no taller") {
  for (const OverlapOp op : kOps) {
    const OverlapGemm problem{.op = op, .m = 8192, .n = 4096, .k = 2048, .ranks = 2};
    const OverlapPlan plan = choose(problem).plan;
    const bool rows = op != OverlapOp::gemm_all_to_all && op != OverlapOp::all_to_all_gemm;
    const std::int64_t units = (problem.m / (rows ? 2 : 1) + 255) / 256;
    CHECK(plan.sub_slices <= units);
    CHECK(plan.group_m * plan.sub_slices <= units + plan.sub_slices - 1);
  }
}

TEST_CASE("overlap plan: partial sums come in at least two chunks, for the kernel adds them tile by tile") {
  for (const OverlapOp op : {OverlapOp::gemm_reduce_scatter, OverlapOp::gemm_all_reduce}) {
    CHECK(choose({.op = op, .m = 8192, .n = 4096, .k = 7168, .ranks = 2}).plan.sub_slices >= 2);
    CHECK(choose({.op = op, .m = 100, .n = 4096, .k = 7168, .ranks = 2}).plan.sub_slices == 1);  // a slice is one tile tall
  }
}

TEST_CASE("overlap plan: a ring where it is asked for, and no slower than straight in the model") {
  const OverlapGemm problem{.op = OverlapOp::all_gather_gemm, .m = 8192, .n = 8192, .k = 8192, .ranks = 4};
  CHECK(choose(problem).plan.route == OverlapRoute::direct);
  const auto ring = make_overlap_plan(problem, Target{}, true, OverlapRoute::ring);
  REQUIRE_MESSAGE(ring, ring.error().message);
  CHECK(ring->plan.route == OverlapRoute::ring);
  CHECK(ring->predicted_ms == doctest::Approx(choose(problem).predicted_ms).epsilon(0.05));
  for (const OverlapOp op : kOps) {
    if (op == OverlapOp::all_gather_gemm) continue;
    const auto refused =
        make_overlap_plan({.op = op, .m = 8192, .n = 8192, .k = 8192, .ranks = 2}, Target{}, true, OverlapRoute::ring);
    REQUIRE(!refused);
    CHECK(refused.error().code == ErrorCode::invalid_plan);
    CHECK(refused.error().message.find("use the direct route") != std::string::npos);
  }
}

TEST_CASE("overlap plan: one after the other without peer access or other ranks, and says so") {
  const OverlapGemm problem{.op = OverlapOp::all_gather_gemm, .m = 8192, .n = 8192, .k = 8192, .ranks = 2};
  const OverlapChoice apart = choose(problem, "h200", false);
  CHECK(!apart.overlap);
  CHECK(apart.reason.find("without peer access") != std::string::npos);
  CHECK(apart.predicted_ms == apart.sequential_ms);
  CHECK(choose(problem).overlap);
  CHECK(choose(problem).predicted_ms < apart.predicted_ms);
  CHECK(choose({.op = OverlapOp::gemm, .m = 64, .n = 64, .k = 64}).reason == "op gemm exchanges nothing");
  CHECK(!make_overlap_plan({.op = OverlapOp::gemm, .m = 64, .n = 64, .k = 64, .ranks = 2}, Target{}));
  CHECK(!overlap::exchange_of(OverlapOp::gemm));
}

}  // namespace ordo
