// What the planner says about the shapes that were measured on two H200s, and about those where overlap does not pay.
#include "codegen/overlap/planner.hpp"

#include <doctest/doctest.h>

namespace ordo::overlap {
namespace {

Target target(const char* name) { return *parse_target(name); }

Advice advice(Exchange exchange, int ranks, std::int64_t m, std::int64_t n, std::int64_t k, const char* name = "h200") {
  auto made = advise({.exchange = exchange, .ranks = ranks, .m = m, .n = n, .k = k}, target(name));
  REQUIRE_MESSAGE(made, made.error().message);
  return *made;
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("overlap planner: the measured shapes, within 8 % of the sustained figures") {
  struct Row {
    Exchange exchange;
    std::int64_t m, n, k;
    double alone, overlapped, sequential;  // ms
  };
  for (const Row& row : {Row{Exchange::all_gather, 8192, 7168, 4096, 0.732, 0.760, 0.852},
                         {Exchange::reduce_scatter, 8192, 4096, 7168, 0.723, 0.746, 0.856},
                         {Exchange::all_gather, 8192, 14336, 8192, 2.92, 2.952, 3.117},
                         {Exchange::reduce_scatter, 8192, 8192, 14336, 2.914, 2.936, 3.186}}) {
    CAPTURE(to_string(row.exchange));
    CAPTURE(row.n);
    const Advice made = advice(row.exchange, 2, row.m, row.n, row.k);
    CHECK(made.overlap);
    CHECK(made.hides);
    CHECK(made.compute * 1e3 == doctest::Approx(row.alone).epsilon(0.08));
    CHECK(made.overlapped * 1e3 == doctest::Approx(row.overlapped).epsilon(0.08));
    CHECK(made.sequential * 1e3 == doctest::Approx(row.sequential).epsilon(0.08));
    CHECK(made.exposed < 0.3 * made.communication);
  }
}

TEST_CASE("overlap planner: whether a slice hides depends on n or k alone, at the rate of the GEMM over that of the link") {
  const double threshold = advice(Exchange::all_gather, 2, 8192, 8192, 8192).threshold;
  CHECK(threshold > 1500);
  CHECK(threshold < 2300);
  for (const int ranks : {2, 4, 8}) {
    for (const std::int64_t m : {8192, 65536}) {
      for (const std::int64_t other : {4096, 8192}) {
        CHECK(advice(Exchange::all_gather, ranks, m, 4096, other).hides);
        CHECK_FALSE(advice(Exchange::all_gather, ranks, m, 1024, other).hides);
        CHECK(advice(Exchange::reduce_scatter, ranks, m, other, 4096).hides);
        CHECK_FALSE(advice(Exchange::reduce_scatter, ranks, m, other, 1024).hides);
      }
    }
  }
  // A slower GEMM hides more, a slower link less.
  CHECK(advice(Exchange::all_gather, 2, 8192, 1024, 4096, "h20").hides);
  CHECK_FALSE(advice(Exchange::all_gather, 2, 8192, 4096, 4096, "h800").hides);
  CHECK(constants_of(target("h200")).measured);
  CHECK_FALSE(constants_of(target("sm_90a:66")).measured);
  CHECK(constants_of(target("sm_90a:66")).gemm_flops == doctest::Approx(constants_of(target("h200")).gemm_flops / 2));
}

TEST_CASE("overlap planner: all-to-all comes in pieces, for a tile has only its own rank's part to compute before it waits") {
  const Advice made = advice(Exchange::all_to_all, 2, 4096, 4096, 8192);
  CHECK(made.overlap);
  CHECK(made.sub_slices >= 2);
  CHECK(made.exposed < 5e-6);
  CHECK(made.choices.front().overlapped * 1e3 == doctest::Approx(0.466).epsilon(0.1));  // measured, in one piece
}

TEST_CASE("overlap planner: falls back by itself, and says why") {
  const Advice alone = advice(Exchange::all_gather, 1, 4096, 4096, 4096);
  CHECK_FALSE(alone.overlap);
  CHECK(contains(alone.reason, "one rank"));
  auto far = advise({.exchange = Exchange::all_gather, .ranks = 2, .m = 8192, .n = 8192, .k = 8192, .peer_access = false},
                    target("h200"));
  REQUIRE(far);
  CHECK_FALSE(far->overlap);
  CHECK(far->sub_slices == 1);
  CHECK(contains(far->reason, "NCCL"));
  for (const Exchange exchange :
       {Exchange::all_gather, Exchange::all_to_all, Exchange::reduce_scatter, Exchange::all_reduce, Exchange::to_all}) {
    for (const int ranks : {2, 3, 8}) {
      for (const std::int64_t size : {64, 1000, 4096, 16384}) {
        const Advice made = advice(exchange, ranks, size, size, size);
        CHECK(made.overlap == (made.overlapped < made.sequential));
        CHECK(made.exposed >= 0);
        CHECK_FALSE(made.reason.empty());
        for (const Choice& choice : made.choices) CHECK(choice.overlapped >= made.overlapped * 0.996);
      }
    }
  }
  CHECK_FALSE(advise({.exchange = Exchange::all_gather, .ranks = 2, .m = 0, .n = 1, .k = 1}, target("h200")));
  CHECK_FALSE(advise({.exchange = Exchange::all_gather, .ranks = 99, .m = 1, .n = 1, .k = 1}, target("h200")));
}

TEST_CASE("overlap planner: a marginal shape takes sub-slices") {
  // A slice moves a little longer than it computes.
  const Advice made = advice(Exchange::reduce_scatter, 2, 8192, 4096, 1536);
  CHECK_FALSE(made.hides);
  CHECK(made.overlap);
  CHECK(made.sub_slices > 1);
  CHECK(made.overlapped < made.sequential);
  CHECK(made.choices.front().exposed > made.exposed);
}

}  // namespace ordo::overlap
