#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "codegen/schedule/arrival.hpp"
#include "runtime/reference/attention.hpp"
#include "runtime/reference/exact.hpp"
#include "runtime/reference/kernels.hpp"
#include "runtime/reference/numbers.hpp"
#include "runtime/reference/traverse.hpp"
#include "tests/unit/naive.hpp"

namespace {

using namespace ordo;
using namespace ordo::reference;
using namespace ordo::testing;

const float kNaN = std::numeric_limits<float>::quiet_NaN();

Plan plan_of(const AttentionBackward& p, Schedule schedule = Schedule::ascending, Accumulate accumulate = Accumulate::ordered) {
  Plan plan;
  plan.dtype = p.dtype, plan.head_dim = static_cast<int>(p.head_dim), plan.mask = p.mask,
  plan.group = static_cast<int>(p.group());
  plan.schedule = schedule, plan.accumulate = accumulate;
  plan.tile_kv = p.head_dim == 64 ? 256 : 128;
  return plan;
}

bool same_bits(const HostGradients& a, const HostGradients& b) { return a.dq == b.dq && a.dk == b.dk && a.dv == b.dv; }

}  // namespace

TEST_CASE_TEMPLATE("numbers: 16-bit types", Type, std::integral_constant<DType, DType::bf16>,
                   std::integral_constant<DType, DType::fp16>) {
  constexpr DType dtype = Type::value;
  constexpr int kMantissa = dtype == DType::bf16 ? 7 : 10, kBias = dtype == DType::bf16 ? 127 : 15;
  // Every bit pattern has the value that the format's definition gives it, and comes back.
  int wrong = 0;
  std::vector<double> values;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int field = static_cast<int>((bits & 0x7fff) >> kMantissa);
    const double fraction = static_cast<double>(bits & ((1u << kMantissa) - 1)) / (1 << kMantissa);
    const int top = (0x7fff >> kMantissa);
    const float got = widen<dtype>(static_cast<std::uint16_t>(bits));
    if (field == top) {
      wrong += fraction == 0 ? !std::isinf(got) : !std::isnan(got);
      if (fraction != 0) wrong += narrow<dtype>(got) != kNaN16;
      if (fraction != 0) continue;
    } else {
      const double value =
          (field == 0 ? std::ldexp(fraction, 1 - kBias) : std::ldexp(1 + fraction, field - kBias)) * (bits & 0x8000 ? -1 : 1);
      wrong += double{got} != value;
      if (bits < 0x8000) values.push_back(value);
    }
    wrong += narrow<dtype>(got) != bits;
    wrong += bits_of(rounded<dtype>(got)) != bits_of(got);
  }
  CHECK(wrong == 0);

  // Rounding: to the nearest value, ties to the even one, from fp32 and once from fp64.
  const auto nearest = [&](double x) -> std::uint16_t {
    const std::size_t above = static_cast<std::size_t>(std::lower_bound(values.begin(), values.end(), x) - values.begin());
    const double step = values.back() - values[values.size() - 2];
    if (above == values.size())
      return static_cast<std::uint16_t>(x - values.back() < step / 2 ? above - 1 : above);  // above: infinity
    if (above == 0 || values[above] == x) return static_cast<std::uint16_t>(above);
    const double low = x - values[above - 1], high = values[above] - x;
    if (low == high) return static_cast<std::uint16_t>(above % 2 == 0 ? above : above - 1);
    return static_cast<std::uint16_t>(low < high ? above - 1 : above);
  };
  std::mt19937_64 random(7);
  for (int i = 0; i < 30000; ++i) {
    const auto low = static_cast<std::size_t>(random() % (values.size() - 1));
    const double middle = (values[low] + values[low + 1]) / 2;  // a float, for either type
    const double eps = std::ldexp(middle, -40);
    for (const double x : {middle, middle + eps, middle - eps, values[low] + (values[low + 1] - values[low]) * 0.3}) {
      wrong += narrow<dtype>(x) != nearest(x);
      wrong += narrow<dtype>(-x) != (nearest(x) | 0x8000);
      const auto single = static_cast<float>(x);
      wrong += narrow<dtype>(single) != nearest(double{single});
      wrong += bits_of(widen<dtype>(narrow<dtype>(single))) != bits_of(rounded<dtype>(single));
    }
  }
  CHECK(wrong == 0);
  CHECK(narrow<dtype>(3.4e38f) == narrow<dtype>(std::numeric_limits<float>::infinity()));
  CHECK(narrow<dtype>(1e300) == narrow<dtype>(std::numeric_limits<float>::infinity()));
  CHECK(narrow<dtype>(1e-300) == 0);
  if (dtype == DType::fp16) {
    CHECK(narrow<dtype>(65519.996f) == 0x7bff);
    CHECK(narrow<dtype>(65520.0f) == 0x7c00);
    CHECK(narrow<dtype>(std::ldexp(1.0f, -25)) == 0);  // tie to even
    CHECK(narrow<dtype>(std::ldexp(1.0f, -25) * 1.001f) == 1);
  }
}

TEST_CASE("numbers: exp2") {
  double worst = 0;
  for (float x = -126; x < 128; x += 0.00137f)
    worst = std::max(worst, std::fabs(double{exp2_fp32(x)} / std::exp2(double{x}) - 1));
  CHECK(worst < 2.5e-7);
  for (int n = -126; n < 128; ++n) CHECK(exp2_fp32(static_cast<float>(n)) == std::ldexp(1.0f, n));
  CHECK(exp2_fp32(-126.01f) == 0);
  CHECK(exp2_fp32(-1e30f) == 0);
  CHECK(exp2_fp32(-std::numeric_limits<float>::infinity()) == 0);
  CHECK(std::isinf(exp2_fp32(128)));
  CHECK(std::isinf(exp2_fp32(std::numeric_limits<float>::infinity())));
  CHECK(std::isnan(exp2_fp32(kNaN)));
}

TEST_CASE("kernels: every instruction set gives the same bits") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::size_t n, float size) {
    std::vector<float> x(n);
    for (float& value : x) value = normal(random) * size;
    return x;
  };
  int tested = 0;
  for (const Isa isa : {Isa::avx2, Isa::avx512}) {
    const Kernels* fast = kernels_for(isa);
    if (fast == nullptr) continue;
    const Kernels* plain = kernels_for(Isa::generic);
    for (const auto& [m, n, k] : {std::tuple{1, 16, 1}, {7, 48, 5}, {8, 32, 64}, {13, 64, 33}, {5, 128, 3}}) {
      for (const float size : {1.0f, 1e-22f, 1e18f}) {  // the products of the last two leave fp32's normal range
        const auto a = fill(static_cast<std::size_t>(m * k), size), b = fill(static_cast<std::size_t>(k * n), size);
        const auto c = fill(static_cast<std::size_t>(m * n), 1e-30f);
        std::vector<float> x = c, y = c;
        plain->accumulate_f32({x.data(), n, a.data(), k, 1, b.data(), n, m, n, k});
        fast->accumulate_f32({y.data(), n, a.data(), k, 1, b.data(), n, m, n, k});
        CHECK(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
        const std::vector<double> ad(a.begin(), a.end()), bd(b.begin(), b.end());
        std::vector<double> xd(c.begin(), c.end()), yd = xd;
        plain->accumulate_f64({xd.data(), n, ad.data(), 1, m, bd.data(), n, m, n, k});  // A transposed
        fast->accumulate_f64({yd.data(), n, ad.data(), 1, m, bd.data(), n, m, n, k});
        CHECK(std::memcmp(xd.data(), yd.data(), xd.size() * sizeof(double)) == 0);
        ++tested;
      }
    }
    auto s = fill(20 * 48, 30), dp = fill(20 * 48, 3);
    const auto lse = fill(48, 5), delta = fill(48, 1);
    s[5] = kNaN, s[100] = std::numeric_limits<float>::infinity(), dp[7] = -std::numeric_limits<float>::infinity(), dp[9] = 1e6f;
    std::vector<std::int32_t> first(20);
    for (int i = 0; i < 20; ++i) first[static_cast<std::size_t>(i)] = i * 3 - 10;
    for (const bool bf16 : {true, false}) {
      auto p1 = s, ds1 = dp, p2 = s, ds2 = dp;
      const Probabilities one{p1.data(), ds1.data(), 48, 20, lse.data(), delta.data(), first.data(), 0.1f};
      const Probabilities two{p2.data(), ds2.data(), 48, 20, lse.data(), delta.data(), first.data(), 0.1f};
      (bf16 ? plain->probabilities_bf16 : plain->probabilities_fp16)(one);
      (bf16 ? fast->probabilities_bf16 : fast->probabilities_fp16)(two);
      const auto same = [](float a, float b) { return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b)); };
      CHECK(std::equal(p1.begin(), p1.end(), p2.begin(), same));
      CHECK(std::equal(ds1.begin(), ds1.end(), ds2.begin(), same));
      CHECK(std::isnan(p1[5]));
      CHECK(p1[19 * 48 + 46] == 0);  // hidden: first[19] is 47
      ++tested;
    }
  }
  if (tested == 0) MESSAGE("no vector instructions on this CPU: nothing compared");
}

TEST_CASE("random inputs: normal, and the same on every platform") {
  const AttentionBackward p = problem_of(1, 500, 40, 2, 1, 64, Mask::full);
  const HostInputs in = random_inputs(p, 0.125f, 42);
  double sum = 0, squares = 0, fourth = 0;
  for (const double x : wide(p.dtype, in.q)) sum += x, squares += x * x, fourth += x * x * x * x;
  const auto n = static_cast<double>(in.q.size());
  CHECK(std::fabs(sum / n) < 0.015);
  CHECK(std::fabs(squares / n - 1) < 0.02);
  CHECK(std::fabs(fourth / n - 3) < 0.15);
  CHECK(in.q != random_inputs(p, 0.125f, 43).q);
  CHECK(std::vector(in.q.begin(), in.q.begin() + 4096) != std::vector(in.d_o.begin(), in.d_o.begin() + 4096));
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const std::uint16_t bits : in.q) hash = (hash ^ bits) * 1099511628211u;
  CHECK(hash == 11631155627077826424u);  // written down from x86-64
}

TEST_CASE("report 63: forward and fp64 gradients agree with the formulas") {
  for (const auto& p :
       {problem_of(1, 1, 1, 1, 1, 64, Mask::full), problem_of(2, 70, 133, 4, 2, 64, Mask::full),
        problem_of(1, 150, 40, 2, 2, 64, Mask::causal), problem_of(1, 40, 150, 3, 1, 128, Mask::causal),
        problem_of(1, 129, 129, 2, 1, 64, Mask::causal, DType::fp16), problem_of(1, 65, 1, 2, 2, 64, Mask::causal)}) {
    CAPTURE(to_text(p));
    const float scale = scale_of(p);
    HostInputs in = random_inputs(p, scale, 5);
    const Naive fresh = naive(p, double{scale}, in, false);
    for (std::size_t i = 0; i < in.lse.size(); ++i) {
      if (std::isinf(fresh.lse[i])) {
        CHECK(in.lse[i] == -std::numeric_limits<float>::infinity());
      } else {
        CHECK(std::fabs(double{in.lse[i]} - fresh.lse[i]) < 1e-6 * (1 + std::fabs(fresh.lse[i])));
      }
    }
    for (std::size_t i = 0; i < in.o.size(); ++i) CHECK(in.o[i] == narrow(p.dtype, fresh.o[i]));
    const Naive want = naive(p, double{scale}, in, true);
    const ReferenceGradients got = gradients_fp64(p, scale, in);
    CHECK(relative_error(got.dv, want.dv) < 1e-13);
    if (p.seqlen_k > 1) {  // with one key dS is rounding noise
      CHECK(relative_error(got.dq, want.dq) < 1e-12);
      CHECK(relative_error(got.dk, want.dk) < 1e-12);
    }
    CHECK(largest_probability_sum(p, scale, in) == doctest::Approx(1).epsilon(1e-5));
    for (float& lse : in.lse) lse -= std::log(3.0f);
    CHECK(largest_probability_sum(p, scale, in) == doctest::Approx(3).epsilon(1e-5));
  }
}

TEST_CASE("execute: within the bound for every schedule, accumulation, dtype and mask") {
  struct Shape {
    std::int64_t batch, sq, sk, heads, kv_heads;
  };
  const Shape shapes[] = {{1, 1, 1, 1, 1},   {1, 200, 200, 2, 2}, {2, 129, 300, 4, 1}, {1, 300, 129, 4, 2},
                          {1, 7, 400, 1, 1}, {1, 400, 7, 1, 1},   {3, 150, 200, 6, 2}};
  for (const Mask mask : {Mask::full, Mask::causal}) {
    for (const Shape& s : shapes) {
      const DType dtype = s.sq % 2 == 0 ? DType::fp16 : DType::bf16;
      const AttentionBackward p = problem_of(s.batch, s.sq, s.sk, s.heads, s.kv_heads, s.sk >= 300 ? 64 : 128, mask, dtype);
      const float scale = scale_of(p);
      const HostInputs in = random_inputs(p, scale, 11);
      const Schedule rotating = mask == Mask::full ? Schedule::shift : Schedule::alternate;
      const Schedule paired = mask == Mask::full ? Schedule::shift : Schedule::symmetric_shift;
      for (const auto& [schedule, accumulate, cluster] : {std::tuple{Schedule::ascending, Accumulate::ordered, 1},
                                                          {Schedule::descending, Accumulate::ordered, 2},
                                                          {rotating, Accumulate::ordered, 1},
                                                          {rotating, Accumulate::exact, 1},
                                                          {paired, Accumulate::ordered, 1},
                                                          {Schedule::arrival, Accumulate::ordered, 2},
                                                          {Schedule::descending, Accumulate::atomic, 1}}) {
        Plan plan = plan_of(p, schedule, accumulate);
        plan.cluster = p.head_dim == 128 ? cluster : 1;  // no cluster kernel at head_dim 64
        plan.head_group = 2;
        if (schedule == Schedule::arrival) {
          plan.arrival = Arrival{.visits = ArrivalVisits::greedy, .compute = 5, .diagonal = 7, .reduce = 2, .handover = 3};
          plan = *with_arrival_hash(p, plan);
        }
        CAPTURE(to_text(p));
        CAPTURE(to_text(plan));
        const auto got = execute(p, plan, scale, in);
        REQUIRE_MESSAGE(got.ok(), (got.ok() ? std::string() : got.error().message));
        const CheckResult check = compare(p, scale, in, *got);
        CHECK(check.dq.within);
        CHECK(check.dk.within);
        CHECK(check.dv.within);
      }
    }
  }
}

TEST_CASE("execute, report 55: the same bits for any number of threads; the schedule decides them") {
  const AttentionBackward p = problem_of(1, 300, 420, 4, 2, 128, Mask::causal);
  const float scale = scale_of(p);
  const HostInputs in = random_inputs(p, scale, 1);
  std::vector<HostGradients> ordered, exact;
  for (const Schedule schedule : {Schedule::ascending, Schedule::descending}) {
    for (const Accumulate accumulate : {Accumulate::ordered, Accumulate::exact}) {
      const Plan plan = plan_of(p, schedule, accumulate);
      const auto one = execute(p, plan, scale, in, 1);
      REQUIRE(one.ok());
      for (const int threads : {2, 3, 8}) {
        const auto many = execute(p, plan, scale, in, threads);
        REQUIRE(many.ok());
        CHECK(same_bits(*one, *many));
      }
      (accumulate == Accumulate::exact ? exact : ordered).push_back(*one);
    }
  }
  CHECK(ordered[0].dk != ordered[1].dk);  // dK follows the traversal
  CHECK(exact[0].dq == exact[1].dq);      // fixed point: any order gives the same bits
  Plan coarse = plan_of(p);
  coarse.cluster = 2;
  const auto other = execute(p, coarse, scale, in);
  REQUIRE(other.ok());
  CHECK(other->dq != ordered[0].dq);  // other partial sums: the comparison above can fail
}

TEST_CASE("execute, exact: sizes far from 1") {
  const AttentionBackward p = problem_of(1, 100, 300, 2, 1, 64, Mask::full);
  const float scale = scale_of(p);
  const auto scaled = [&](std::vector<std::uint16_t>& x, double factor) {
    for (std::uint16_t& bits : x) bits = narrow(p.dtype, double{widen(p.dtype, bits)} * factor);
  };
  struct Case {
    double d_o, v;
    double outlier;  ///< on one column of K
  };
  for (const Case& c : {Case{1, 1, 1}, Case{1e-24, 1, 1}, Case{1e20, 1, 1}, Case{1e20, 1e15, 1}, Case{1e-20, 1e-15, 1},
                        Case{1, 1e30, 1}, Case{1, 1, 40}, Case{0, 1, 1}, Case{1, 0, 1}}) {
    CAPTURE(c.d_o);
    CAPTURE(c.v);
    CAPTURE(c.outlier);
    HostInputs in = random_inputs(p, scale, 9);
    scaled(in.d_o, c.d_o);
    scaled(in.v, c.v);
    for (std::size_t i = 3; i < in.k.size(); i += 64) in.k[i] = narrow(p.dtype, double{widen(p.dtype, in.k[i])} * c.outlier);
    forward(p, scale, in);
    const auto got = execute(p, plan_of(p, Schedule::ascending, Accumulate::exact), scale, in);
    REQUIRE(got.ok());
    CHECK(compare(p, scale, in, *got).passed());
    if (c.d_o == 0) CHECK(std::all_of(got->dq.begin(), got->dq.end(), [](std::uint16_t x) { return (x & 0x7fff) == 0; }));
  }
}

TEST_CASE("exact: exponents and fixed point") {
  using namespace ordo::reference::exact;
  for (int e = -126; e < 127; ++e) {
    CHECK(ceil_exponent(std::ldexp(1.0f, e)) == e);
    CHECK(ceil_exponent(-std::ldexp(1.5f, e)) == e + 1);
    CHECK(power_of_two(e) == std::ldexp(1.0f, e));
  }
  CHECK(ceil_exponent(0) == -127);
  CHECK(power_of_two(-149) == std::numeric_limits<float>::denorm_min());
  const float huge[] = {3e38f, -3e38f, kNaN, std::numeric_limits<float>::infinity()}, tiny[] = {1e-38f, 0, 0, -1e-38f};
  CHECK(double{norm_over_16(huge, 4)} * 16 / 3e38 == doctest::Approx(std::sqrt(2)).epsilon(1e-4));
  CHECK(double{norm_over_16(tiny, 4)} * 16 / 1e-38 == doctest::Approx(std::sqrt(2)).epsilon(1e-3));
  CHECK(row_exponent(huge[0], huge[0], 0) == kMost);
  CHECK(row_exponent(0, 0, 0) == kLeastRow);
  CHECK(row_exponent(1.0f / 16, 1.0f / 16, 0) == 0);
  CHECK(row_exponent(1.0f / 16, 1.0f / 16, -1) == 1);
  CHECK(row_exponent(1.0f / 16, 1.0f / 16, kNaN) == 0);
  CHECK(column_exponent(0) == kLeastColumn);
  CHECK(column_exponent(3e38f) == kMost);
  CHECK(*fixed(1.0f, row_factor(0), column_factor(0)) == 1 << 30);
  CHECK(*fixed(-1.5f, row_factor(1), column_factor(29)) == -2);  // -1.5: to even
  CHECK_FALSE(fixed(kNaN, 1, 1).has_value());
  CHECK_FALSE(fixed(std::numeric_limits<float>::infinity(), 0, 1).has_value());
  CHECK_FALSE(fixed(4.0f, row_factor(0), column_factor(0)).has_value());  // what a wrong LSE may cause
  // Back and forth at the corners of the exponents' range.
  for (const int r : {kLeastRow, -50, 0, 100, kMost}) {
    for (const int c : {kLeastColumn, 0, 20, kMost}) {
      if (r + c < -100 || r + c > 100) continue;
      const float x = std::ldexp(0.7f, r + c);
      CAPTURE(r);
      CAPTURE(c);
      const auto packed = fixed(x, row_factor(r), column_factor(c));
      REQUIRE(packed.has_value());
      CHECK(double{value(*packed, r, c)} / double{x} == doctest::Approx(1).epsilon(1e-6));
    }
  }
  CHECK(add(std::numeric_limits<std::int32_t>::max(), 1) == std::numeric_limits<std::int32_t>::min());
}

TEST_CASE("execute, report 68: NaN and infinity reach the outputs they belong to, and no others") {
  const AttentionBackward causal = problem_of(1, 100, 140, 2, 1, 64, Mask::causal);
  const AttentionBackward short_keys = problem_of(1, 140, 90, 2, 1, 64, Mask::causal);  // 50 rows see nothing
  for (const AttentionBackward& p : {causal, short_keys}) {
    const float scale = scale_of(p);
    const HostInputs clean = random_inputs(p, scale, 2);
    struct Place {
      const char* tensor;
      std::vector<std::uint16_t> HostInputs::* member;
      std::size_t row;
    };
    for (const Place& place :
         {Place{"q", &HostInputs::q, 131}, Place{"k", &HostInputs::k, 70}, Place{"v", &HostInputs::v, 33},
          Place{"do", &HostInputs::d_o, 150}, Place{"o", &HostInputs::o, 120}, Place{"k, first", &HostInputs::k, 0}}) {
      for (const float bad : {kNaN, std::numeric_limits<float>::infinity()}) {
        const std::string tensor = place.tensor;
        CAPTURE(tensor);
        CAPTURE(bad);
        CAPTURE(to_text(p));
        HostInputs in = clean;
        (in.*place.member)[place.row * 64 + 9] = narrow(p.dtype, bad);
        // The LSE stays that of the clean inputs: P of an infinite S is then infinite or zero.
        const Naive want = naive(p, double{scale}, in, true);
        const ReferenceGradients reference = gradients_fp64(p, scale, in);
        const auto places = [](const std::vector<double>& x) {
          std::vector<bool> out;
          for (const double value : x) out.push_back(std::isfinite(value));
          return out;
        };
        CHECK(places(reference.dq) == places(want.dq));
        CHECK(places(reference.dk) == places(want.dk));
        CHECK(places(reference.dv) == places(want.dv));
        for (const Accumulate accumulate : {Accumulate::ordered, Accumulate::exact}) {
          const auto got = execute(p, plan_of(p, Schedule::descending, accumulate), scale, in);
          REQUIRE(got.ok());
          CHECK(places(wide(p.dtype, got->dk)) == places(want.dk));
          CHECK(places(wide(p.dtype, got->dv)) == places(want.dv));
          if (accumulate == Accumulate::ordered) CHECK(places(wide(p.dtype, got->dq)) == places(want.dq));
          // exact poisons whole rows
          const auto dq = wide(p.dtype, got->dq);
          for (std::size_t i = 0; i < dq.size(); ++i) {
            const auto row = want.dq.begin() + static_cast<std::ptrdiff_t>(i / 64 * 64);
            const bool clean_row = std::all_of(row, row + 64, [](double x) { return std::isfinite(x); });
            if (clean_row != std::isfinite(dq[i]) && accumulate == Accumulate::exact) FAIL_CHECK("dq element ", i);
          }
        }
      }
    }
  }
}

TEST_CASE("execute, report 62: rows that see nothing have zero gradients and touch nothing") {
  const AttentionBackward p = problem_of(1, 200, 120, 2, 2, 64, Mask::causal);  // rows 0 .. 79
  const float scale = scale_of(p);
  HostInputs in = random_inputs(p, scale, 4);
  const auto plain = execute(p, plan_of(p), scale, in);
  REQUIRE(plain.ok());
  for (std::size_t i = 0; i < 80; ++i) {
    in.lse[i] = std::numeric_limits<float>::infinity();  // the other convention
    in.d_o[i * 128 + 5] = narrow(p.dtype, kNaN);
    in.q[i * 128 + 5] = narrow(p.dtype, kNaN);
  }
  for (const Accumulate accumulate : {Accumulate::ordered, Accumulate::exact}) {
    const auto got = execute(p, plan_of(p, Schedule::ascending, accumulate), scale, in);
    REQUIRE(got.ok());
    CHECK(std::all_of(got->dq.begin(), got->dq.begin() + 80 * 128, [](std::uint16_t x) { return (x & 0x7fff) == 0; }));
    CHECK(got->dk == plain->dk);
    CHECK(got->dv == plain->dv);
  }
  // A row that does see keys but whose LSE says it does not counts as one.
  in.lse[100] = -std::numeric_limits<float>::infinity();
  const auto got = execute(p, plan_of(p), scale, in);
  REQUIRE(got.ok());
  CHECK(std::all_of(got->dq.begin() + 100 * 128, got->dq.begin() + 100 * 128 + 64,
                    [](std::uint16_t x) { return (x & 0x7fff) == 0; }));
}

TEST_CASE("fp16: a dS that overflows is not lost") {
  const AttentionBackward p = problem_of(1, 64, 64, 1, 1, 64, Mask::full, DType::fp16);
  const float scale = scale_of(p);
  HostInputs in = random_inputs(p, scale, 3);
  for (std::size_t d = 0; d < 64; ++d)
    in.d_o[d] = narrow(p.dtype, 60000.0f), in.v[d] = narrow(p.dtype, d % 2 == 0 ? 900.0f : 800.0f);
  forward(p, scale, in);
  for (const Accumulate accumulate : {Accumulate::ordered, Accumulate::exact}) {
    const auto got = execute(p, plan_of(p, Schedule::ascending, accumulate), scale, in);
    REQUIRE(got.ok());
    const auto dq = wide(p.dtype, got->dq);
    CHECK(std::none_of(dq.begin(), dq.begin() + 64, [](double x) { return std::isfinite(x); }));
    CHECK(std::all_of(dq.begin() + 64, dq.end(), [](double x) { return std::isfinite(x); }));
  }
}

TEST_CASE("compare: what passes and what does not") {
  const AttentionBackward p = problem_of(1, 100, 90, 2, 1, 64, Mask::causal);
  const float scale = scale_of(p);
  const HostInputs in = random_inputs(p, scale, 8);
  const auto good = execute(p, plan_of(p), scale, in);
  REQUIRE(good.ok());
  const CheckResult passed = compare(p, scale, in, *good);
  CHECK(passed.passed());
  CHECK(passed.dq.relative > 1e-4);  // a 16-bit result is never exact
  CHECK(passed.dq.allowed >= 5e-3);

  const auto changed = [&](auto change) {
    HostGradients x = *good;
    change(x);
    return x;
  };
  const std::size_t at = 50 * 128 + 7;  // a row that sees keys
  const auto scaled = changed([&](HostGradients& x) {
    for (std::uint16_t& bits : x.dk) bits = narrow(p.dtype, widen(p.dtype, bits) * 1.02f);
  });
  CHECK(compare(p, scale, in, scaled).dq.within);
  CHECK_FALSE(compare(p, scale, in, scaled).dk.within);
  const auto one_wrong = changed([&](HostGradients& x) { x.dv[at / 2] = narrow(p.dtype, 30.0f); });
  CHECK_FALSE(compare(p, scale, in, one_wrong).dv.within);
  const auto spurious = changed([&](HostGradients& x) { x.dq[at] = kNaN16; });
  CHECK(std::isinf(compare(p, scale, in, spurious).dq.relative));
  CHECK_FALSE(compare(p, scale, in, spurious).dq.within);
  CHECK(compare(p, scale, in, spurious, NonFinite::may_spread).passed());

  HostInputs poisoned = in;
  poisoned.q[at] = kNaN16;
  const auto spread = execute(p, plan_of(p), scale, poisoned);
  REQUIRE(spread.ok());
  CHECK(compare(p, scale, poisoned, *spread).passed());
  CHECK_FALSE(compare(p, scale, poisoned, *good).dq.within);  // the NaN vanished
  CHECK_FALSE(compare(p, scale, poisoned, *good, NonFinite::may_spread).dq.within);

  // One key: dS is zero but for rounding, and only the floor admits what fp32 makes of it.
  const AttentionBackward single = problem_of(1, 64, 1, 1, 1, 64, Mask::full);
  const HostInputs one_key = random_inputs(single, scale, 6);
  const ReferenceGradients zero = gradients_fp64(single, scale, one_key);
  HostGradients noise{{}, std::vector<std::uint16_t>(64), std::vector<std::uint16_t>(64)};
  for (const double x : zero.dq) noise.dq.push_back(narrow(p.dtype, x + 1e-7));
  for (std::size_t d = 0; d < 64; ++d) noise.dk[d] = narrow(p.dtype, zero.dk[d]), noise.dv[d] = narrow(p.dtype, zero.dv[d]);
  CHECK(compare(single, scale, one_key, noise).dq.within);
  for (std::uint16_t& bits : noise.dq) bits = narrow(p.dtype, 1e-2f);
  CHECK_FALSE(compare(single, scale, one_key, noise).dq.within);
}

TEST_CASE("execute: what it refuses") {
  const AttentionBackward p = problem_of(1, 64, 64, 2, 1, 64, Mask::causal);
  const float scale = scale_of(p);
  const HostInputs in = random_inputs(p, scale, 8);
  const auto code = [&](const AttentionBackward& problem, const Plan& plan, float s, const HostInputs& inputs) {
    const auto got = execute(problem, plan, s, inputs);
    return got.ok() ? ErrorCode::internal : got.error().code;
  };
  CHECK(code(p, plan_of(p, Schedule::shift), scale, in) == ErrorCode::invalid_plan);
  Plan other = plan_of(p);
  other.group = 1;
  CHECK(code(p, other, scale, in) == ErrorCode::invalid_plan);
  AttentionBackward empty = p;
  empty.seqlen_q = 0;
  CHECK(code(empty, plan_of(p), scale, in) == ErrorCode::invalid_problem);
  for (const float bad : {0.0f, -1.0f, kNaN, std::numeric_limits<float>::infinity()})
    CHECK(code(p, plan_of(p), bad, in) == ErrorCode::invalid_argument);
  for (const auto member : {&HostInputs::q, &HostInputs::k, &HostInputs::v, &HostInputs::o, &HostInputs::d_o}) {
    HostInputs shorter = in;
    (shorter.*member).pop_back();
    CHECK(code(p, plan_of(p), scale, shorter) == ErrorCode::invalid_argument);
  }
  HostInputs no_lse = in;
  no_lse.lse.clear();
  CHECK(code(p, plan_of(p), scale, no_lse) == ErrorCode::invalid_argument);
}

TEST_CASE("traverse: order, and a schedule that leaves the grid") {
  schedule::Geometry g{};
  g.kind = schedule::Kind::shift;
  g.tile_q = 64, g.unit_kv = 128, g.seqlen_q = 640, g.seqlen_k = 512, g.q_tiles = 10, g.units = 4, g.walks = 3, g.head_group = 3;
  g.wave = 4, g.stride = 2;
  Workers workers(3);
  std::mutex lock;
  std::map<std::tuple<int, int, int>, std::vector<int>> tiles;  // who added, in order
  double share = 0;
  const auto step = [&](const Step& s, int) {
    const std::lock_guard guard(lock);
    tiles[{s.walk, s.head, s.q}].push_back(s.unit);
  };
  REQUIRE(traverse(g, nullptr, 2, workers, step, [&](double x) {
            CHECK(x > share);
            share = x;
          }).ok());
  CHECK(share == 1);
  CHECK(tiles.size() == 3 * 2 * 10);
  for (const auto& [tile, units] : tiles) {
    CHECK(std::set(units.begin(), units.end()).size() == 4);
    for (std::size_t turn = 0; turn < units.size(); ++turn) {
      CHECK(schedule::rank(g, {std::get<0>(tile), units[turn], false}, std::get<2>(tile)) == static_cast<int>(turn));
    }
  }
  g.stride = 4;  // the last unit would start at Q tile 12
  const auto strayed = traverse(g, nullptr, 1, workers, [](const Step&, int) {}, {});
  REQUIRE_FALSE(strayed.ok());
  CHECK(strayed.error().code == ErrorCode::internal);
  CHECK(strayed.error().message.find("leaves the grid") != std::string::npos);
}
