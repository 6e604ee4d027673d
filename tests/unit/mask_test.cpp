// Masks by expression: text, problem rules, tiles, and gradients against formulas.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "codegen/expression/mask.hpp"
#include "codegen/expression/mask_tiles.hpp"
#include "codegen/schedule/proof.hpp"
#include "codegen/schedule/visit_table.hpp"
#include "ordo/plan.hpp"
#include "ordo/problem.hpp"
#include "runtime/reference/visibility.hpp"
#include "tests/unit/naive.hpp"

using namespace ordo;
using namespace ordo::testing;
using namespace ordo::reference;
using expression::MaskTiles;
using expression::Visible;

namespace {

Mask mask(const std::string& text) {
  auto out = parse_mask(text);
  REQUIRE_MESSAGE(out.ok(), (out.ok() ? std::string() : out.error().message));
  return *std::move(out);
}

/// A mask as its text, and as the test's own C++.
struct Case {
  std::string text;
  Sees sees;
};

/// For a problem of seqlen_k - seqlen_q = `shift`.
std::vector<Case> cases(std::int64_t shift) {
  using I = std::int64_t;
  return {
      {"expr:k <= q && q - k < 100", [](I q, I k, I, I) { return k <= q && q - k < 100; }},
      {"expr:w = 70; abs(q + (seqlen_k - seqlen_q) - k) <= w", [=](I q, I k, I, I) { return std::abs(q + shift - k) <= 70; }},
      {"expr:q / 96 == k / 96 && k <= q", [](I q, I k, I, I) { return q / 96 == k / 96 && k <= q; }},
      {"expr:(q - k) % 3 == 0", [](I q, I k, I, I) { return (q - k) % 3 == 0; }},
      {"expr:k < 5 || k <= q && q - k < 32", [](I q, I k, I, I) { return k < 5 || (k <= q && q - k < 32); }},
      {"expr:k < 150 && (head % 2 == 0 || k <= q) && q + batch > 3",
       [](I q, I k, I h, I b) { return k < 150 && (h % 2 == 0 || k <= q) && q + b > 3; }},
      {"expr:q >= 40 && q < 90", [](I q, I, I, I) { return q >= 40 && q < 90; }},
      {"expr:false", [](I, I, I, I) { return false; }},
      {"expr:k + q < 200", [](I q, I k, I, I) { return k + q < 200; }},
  };
}

Plan plan_of(const AttentionBackward& p, Schedule schedule, Accumulate accumulate) {
  auto target = parse_target("sm_90a:16");
  REQUIRE(target.ok());
  auto choice = make_plan(p, *target, {.schedule = schedule, .accumulate = accumulate});
  REQUIRE_MESSAGE(choice.ok(), (choice.ok() ? std::string() : choice.error().message));
  return choice->plan;
}

}  // namespace

TEST_CASE("mask: a value with a text") {
  CHECK(Mask() == Mask::full);
  CHECK(Mask::full != Mask::causal);
  const Mask window = mask("expr:k <= q && q - k < 1024");
  CHECK(window.kind() == Mask::Kind::expression);
  CHECK(to_string(window) == "expr:k<=q&&q-k<1024");
  CHECK(window == mask("expr:(k<=q) && q-k < 1024"));
  CHECK(window != mask("expr:k <= q && q - k < 1023"));
  CHECK(window != Mask::causal);
  CHECK(mask("expr:w=1024;k<=q&&q-k<w") != window);  // equal texts, not equal meanings
  CHECK(Mask::full.expression() == nullptr);
  const auto wrong = parse_mask("expr:k <= q &&");
  REQUIRE_FALSE(wrong.ok());
  CHECK(wrong.error().message.find("mask \"expr:k <= q &&\": column 10: found the end of the text") == 0);
  CHECK(parse_mask("window").error().message.find("full, causal, expr:EXPRESSION") != std::string::npos);
}

TEST_CASE("mask: problems and plans carry it in their texts") {
  AttentionBackward p = problem_of(1, 1000, 2000, 4, 2, 128, mask("expr:w = 256; k <= q && q - k < w"));
  CHECK(to_text(p).find(" mask=expr:w=256;k<=q&&q-k<w ") != std::string::npos);
  const auto read = parse_problem(to_text(p));
  REQUIRE(read.ok());
  CHECK(*read == p);
  const Plan plan = plan_of(p, Schedule::descending, Accumulate::ordered);
  const auto again = parse_plan(to_text(plan));
  REQUIRE(again.ok());
  CHECK(*again == plan);
  CHECK(check_fit(p, plan).ok());
  AttentionBackward other = p;
  other.mask = mask("expr:w = 257; k <= q && q - k < w");
  const auto unfit = check_fit(other, plan);
  REQUIRE_FALSE(unfit.ok());
  CHECK(unfit.error().message.find("mask expr:w=256;k<=q&&q-k<w (asked: expr:w=257;k<=q&&q-k<w)") != std::string::npos);
  p.mask = mask("expr:q / k < 3");
  const auto refused = p.validate();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::invalid_problem);
  CHECK(refused.error().message.find("q/k may divide by 0: k is within 0 .. 2047") != std::string::npos);
  CHECK_FALSE(make_plan(p, *parse_target("h200")).ok());
  Plan shifted = plan;
  shifted.schedule = Schedule::alternate;
  CHECK_FALSE(shifted.validate().ok());
}

TEST_CASE("mask: flops count what is visible") {
  const AttentionBackward full = problem_of(2, 500, 700, 4, 2, 128, Mask::full);
  const auto share = [&](const std::string& text) {
    AttentionBackward p = full;
    p.mask = mask(text);
    return p.flops() / full.flops();
  };
  CHECK(share("expr:true") == 1);
  CHECK(share("expr:false") == 0);
  CHECK(share("expr:k < 70") == doctest::Approx(0.1));
  CHECK(share("expr:q < 250 && k < 350") == doctest::Approx(0.25));
  CHECK(share("expr:k <= q") == doctest::Approx(500 * 501 / 2 / 350000.0));
  CHECK(share("expr:head % 2 == 0") == doctest::Approx(0.5).epsilon(0.05));
  AttentionBackward large = problem_of(1, 65536, 65536, 1, 1, 128, mask("expr:k <= q && q - k < 4096"));
  const double window = large.flops();
  large.mask = Mask::full;
  CHECK(window / large.flops() == doctest::Approx((4096.0 * 65536 - 4096.0 * 4095 / 2) / (65536.0 * 65536)).epsilon(0.002));
  large.mask = mask("expr:(q - k) % 64 == 0");
  CHECK(large.flops() / window ==
        doctest::Approx(1 / 64.0 / ((4096.0 * 65536 - 4096.0 * 4095 / 2) / (65536.0 * 65536))).epsilon(0.05));
}

TEST_CASE("mask: tiles that are called empty or whole are") {
  for (const auto& [sq, sk] : {std::pair<int, int>{300, 300}, {200, 500}, {333, 129}, {1, 70}}) {
    for (const Case& c : cases(sk - sq)) {
      const AttentionBackward p = problem_of(2, sq, sk, 2, 1, 64, mask(c.text));
      CAPTURE(to_text(p));
      const MaskTiles tiles(p, 64);
      for (int slice = 0; slice < tiles.slices(); ++slice) {
        for (int q = 0; q < tiles.q_tiles(); ++q) {
          bool any = false, all = (slice + 1) * 64 <= sk;
          for (int h = 0; h < 2; ++h)
            for (int b = 0; b < 2; ++b)
              for (int i = q * 64; i < std::min(q * 64 + 64, sq); ++i)
                for (int j = slice * 64; j < std::min(slice * 64 + 64, sk); ++j) (c.sees(i, j, h, b) ? any = true : all = false);
          const Visible found = tiles.at(slice, q);
          if ((found == Visible::none && any) || (found == Visible::all && !all)) FAIL_CHECK("slice ", slice, " Q tile ", q);
        }
      }
    }
  }
}

TEST_CASE("mask: of windows, intervals see exactly the tiles that matter") {
  const AttentionBackward p = problem_of(1, 4096, 4096, 1, 1, 128, mask("expr:k <= q && q - k < 512"));
  const MaskTiles tiles(p, 64);
  for (int slice = 0; slice < 64; ++slice) {
    for (int q = 0; q < 64; ++q) {
      const Visible expected = q < slice || q > slice + 8     ? Visible::none
                               : q == slice || q == slice + 8 ? Visible::some
                                                              : Visible::all;
      CHECK(tiles.at(slice, q) == expected);
    }
  }
}

TEST_CASE("mask, report 57: the kernels' table holds every live tile once, turns among those alone, and what each visit sees") {
  for (const auto& [sq, sk] : {std::pair<int, int>{1000, 1000}, {500, 900}, {900, 333}}) {
    for (const Case& c : cases(sk - sq)) {
      const AttentionBackward p = problem_of(2, sq, sk, 2, 1, sq == 500 ? 64 : 128, mask(c.text));
      const auto sees_any = [&](int q0, int rows, int k0, int keys, bool& all) {
        bool any = false;
        all = k0 + keys <= sk;
        for (int h = 0; h < 2; ++h)
          for (int b = 0; b < 2; ++b)
            for (int i = q0; i < std::min(q0 + rows, sq); ++i)
              for (int j = k0; j < std::min(k0 + keys, sk); ++j) (c.sees(i, j, h, b) ? any = true : all = false);
        return any;
      };
      for (const Schedule schedule : {Schedule::ascending, Schedule::descending, Schedule::arrival}) {
        const Plan plan = plan_of(p, schedule, Accumulate::ordered);
        CAPTURE(to_text(p));
        CAPTURE(to_text(plan));
        const auto table = table_of(p, plan);
        REQUIRE(table.ok());
        const schedule::Geometry g = make_geometry(p, plan);
        const unsigned* words = table->words.data();
        std::vector<int> adds(static_cast<std::size_t>(g.q_tiles));
        for (int unit = 0; unit < g.units; ++unit) {
          const schedule::Item item{0, unit, false};
          const unsigned* visits = schedule::arrival_visits(g, words, item, 0);
          std::set<int> visited;
          for (int step = 0; step < schedule::arrival_steps(g, words, item); ++step) {
            const int q = schedule::unpack_visit(visits[step]).q;
            CHECK(visited.insert(q).second);
            ++adds[static_cast<std::size_t>(q)];
            const unsigned seen = visits[step + schedule::mask_distance(g, words)];
            for (int slice = 0; slice < g.unit_kv / 64; ++slice) {
              bool all = false;
              const bool any = sees_any(q * g.tile_q, g.tile_q, unit * g.unit_kv + 64 * slice, 64, all);
              const bool masked = (seen >> slice & 1u) != 0, hidden = (seen >> (schedule::kHiddenShift + slice) & 1u) != 0;
              if ((!all && !masked) || (any && hidden)) FAIL_CHECK("unit ", unit, " Q tile ", q, " slice ", slice);
            }
          }
          for (int q = 0; q < g.q_tiles; ++q) {
            bool all = false;
            if (sees_any(q * g.tile_q, g.tile_q, unit * g.unit_kv, g.unit_kv, all) && visited.count(q) == 0)
              FAIL_CHECK("unit ", unit, " never visits Q tile ", q);
          }
        }
        for (int q = 0; q < g.q_tiles; ++q) CHECK(schedule::table_contributors(g, words, q) == adds[static_cast<std::size_t>(q)]);
      }
    }
  }
}

TEST_CASE("mask: of a window, only the tiles of the window are visited and predicted") {
  AttentionBackward p = problem_of(1, 4096, 4096, 4, 4, 128, mask("expr:k <= q && q - k < 256"));
  const Plan plan = plan_of(p, Schedule::descending, Accumulate::ordered);
  const auto table = table_of(p, plan);
  REQUIRE(table.ok());
  const schedule::Geometry g = make_geometry(p, plan);
  std::int64_t visits = 0;
  for (int unit = 0; unit < g.units; ++unit) visits += schedule::arrival_steps(g, table->words.data(), {0, unit, false});
  // Each unit is seen by unit_kv + 255 rows, the last ones by what is left of them.
  CHECK(visits == (g.unit_kv == 256 ? 15 * 8 + 4 : 30 * 6 + 4 + 2));
  const auto whole = make_plan(problem_of(1, 4096, 4096, 4, 4, 128, Mask::full), *parse_target("h200"));
  const auto window = make_plan(p, *parse_target("h200"));
  REQUIRE(window.ok());
  CHECK(window->predicted_ms < whole->predicted_ms / 2);
  // Beyond what a table may hold there is an error, not a kernel.
  p.seqlen_q = p.seqlen_k = std::int64_t{1} << 23;
  p.mask = mask("expr:k <= q");
  Plan large = plan;
  large.mask = p.mask;
  const auto refused = check_fit(p, large);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::unsupported);
}

TEST_CASE("mask: forward and fp64 gradients agree with the formulas") {
  for (const auto& [sq, sk] : {std::pair<int, int>{190, 190}, {70, 260}, {260, 90}}) {
    for (const Case& c : cases(sk - sq)) {
      const AttentionBackward p = problem_of(2, sq, sk, 2, 1, 64, mask(c.text));
      CAPTURE(to_text(p));
      const float scale = scale_of(p);
      const HostInputs in = random_inputs(p, scale, 5);
      const Naive fresh = naive(p, double{scale}, in, false, c.sees);
      for (std::size_t i = 0; i < in.lse.size(); ++i) {
        if (std::isinf(fresh.lse[i]) ? in.lse[i] != -std::numeric_limits<float>::infinity()
                                     : !(std::fabs(double{in.lse[i]} - fresh.lse[i]) < 1e-6 * (1 + std::fabs(fresh.lse[i]))))
          FAIL_CHECK("lse ", i);
      }
      for (std::size_t i = 0; i < in.o.size(); ++i)
        if (in.o[i] != narrow(p.dtype, fresh.o[i])) FAIL_CHECK("o ", i);
      const Naive want = naive(p, double{scale}, in, true, c.sees);
      const ReferenceGradients got = gradients_fp64(p, scale, in);
      CHECK(relative_error(got.dv, want.dv) < 1e-12);
      CHECK(relative_error(got.dq, want.dq) < 1e-12);
      CHECK(relative_error(got.dk, want.dk) < 1e-12);
    }
  }
}

TEST_CASE("mask: execute is within the bound for every schedule and accumulation") {
  const std::tuple<int, int, int, int, int> shapes[] = {
      {1, 300, 300, 2, 2}, {2, 129, 400, 4, 1}, {1, 400, 129, 4, 2}, {1, 1, 257, 1, 1}, {1, 257, 1, 1, 1}};
  const std::tuple<Schedule, Accumulate> ways[] = {{Schedule::ascending, Accumulate::ordered},
                                                   {Schedule::descending, Accumulate::ordered},
                                                   {Schedule::descending, Accumulate::exact},
                                                   {Schedule::arrival, Accumulate::ordered},
                                                   {Schedule::ascending, Accumulate::atomic}};
  int number = 0;
  for (const auto& [batch, sq, sk, heads, kv_heads] : shapes) {
    for (const Case& c : cases(sk - sq)) {
      const int dim = number % 2 == 0 ? 128 : 64;
      const AttentionBackward p =
          problem_of(batch, sq, sk, heads, kv_heads, dim, mask(c.text), number % 3 == 0 ? DType::fp16 : DType::bf16);
      CAPTURE(to_text(p));
      const float scale = scale_of(p);
      const HostInputs in = random_inputs(p, scale, 11);
      const auto& [schedule, accumulate] = ways[++number % 5];
      const Plan plan = plan_of(p, schedule, accumulate);
      CAPTURE(to_text(plan));
      const auto got = execute(p, plan, scale, in);
      REQUIRE_MESSAGE(got.ok(), (got.ok() ? std::string() : got.error().message));
      const CheckResult check = compare(p, scale, in, *got);
      CHECK(check.passed());
    }
  }
}

TEST_CASE("mask, report 63: causal is the expression that the documentation says it is") {
  for (const auto& [sq, sk] : {std::pair<int, int>{300, 300}, {129, 400}, {400, 129}}) {
    const AttentionBackward causal = problem_of(1, sq, sk, 2, 1, 128, Mask::causal);
    AttentionBackward same = causal;
    same.mask = mask("expr:k <= q + (seqlen_k - seqlen_q)");
    const float scale = scale_of(causal);
    const HostInputs in = random_inputs(causal, scale, 3);
    const auto a = execute(causal, plan_of(causal, Schedule::descending, Accumulate::ordered), scale, in);
    const auto b = execute(same, plan_of(same, Schedule::descending, Accumulate::ordered), scale, in);
    REQUIRE(a.ok());
    REQUIRE(b.ok());
    CHECK(a->dk == b->dk);
    CHECK(a->dv == b->dv);
    CHECK(a->dq == b->dq);
    CHECK(random_inputs(same, scale, 3).lse == in.lse);
  }
}

TEST_CASE("mask: NaN stays where it belongs, and rows that see nothing are zero") {
  const auto sees = [](std::int64_t q, std::int64_t k, std::int64_t, std::int64_t) { return k <= q && q - k < 40 && q % 7 != 0; };
  const AttentionBackward p = problem_of(1, 150, 150, 2, 1, 64, mask("expr:k <= q && q - k < 40 && q % 7 != 0"));
  const float scale = scale_of(p);
  HostInputs in = random_inputs(p, scale, 2);
  in.k[70 * 64 + 9] = narrow(p.dtype, std::numeric_limits<float>::quiet_NaN());
  in.q[(98 * 2) * 64 + 3] = narrow(p.dtype, std::numeric_limits<float>::quiet_NaN());  // row 98 sees nothing
  const Naive want = naive(p, double{scale}, in, true, sees);
  const auto same_places = [](const std::vector<double>& got, const std::vector<double>& expected) {
    for (std::size_t i = 0; i < got.size(); ++i)
      if (std::isfinite(got[i]) != std::isfinite(expected[i])) return false;
    return true;
  };
  const ReferenceGradients reference = gradients_fp64(p, scale, in);
  CHECK(same_places(reference.dq, want.dq));
  CHECK(same_places(reference.dk, want.dk));
  CHECK(same_places(reference.dv, want.dv));
  // The LSE of a row that sees nothing may be anything.
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t row = 0; row < 150; row += 7) in.lse[static_cast<std::size_t>(h * 150 + row)] = 3.5f;
  const auto got = execute(p, plan_of(p, Schedule::descending, Accumulate::ordered), scale, in);
  REQUIRE(got.ok());
  CHECK(same_places(wide(p.dtype, got->dk), want.dk));
  CHECK(same_places(wide(p.dtype, got->dv), want.dv));
  for (std::size_t row = 0; row < 150; row += 7)
    for (std::size_t i = row * 128; i < row * 128 + 128; ++i)
      if ((got->dq[i] & 0x7fff) != 0) FAIL_CHECK("dq of row ", row);
}
