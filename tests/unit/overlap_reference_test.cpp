// The CPU reference of OverlapGemm: each op with several ranks against one product on one rank.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/overlap_slices.hpp"
#include "runtime/reference/gemm.hpp"
#include "runtime/reference/numbers.hpp"

namespace ordo::reference {
namespace {

constexpr int kRanks = 3;
constexpr std::int64_t kM = 10, kN = 23, kK = 11;  // column slices of 8, 8 and 7

/// Small multiples of 1/8: products and their sums are exact.
struct Matrix {
  std::int64_t rows, columns;
  std::vector<std::uint16_t> bits;
  Matrix(std::int64_t row_count, std::int64_t column_count, std::uint32_t seed) : rows(row_count), columns(column_count) {
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      seed = seed * 1664525u + 1013904223u;
      bits.push_back(narrow<DType::bf16>(static_cast<float>(static_cast<int>(seed >> 24) - 128) / 8));
    }
  }
  [[nodiscard]] HostMatrix view(std::int64_t row = 0, std::int64_t column = 0) const {
    return {bits.data() + row * columns + column, columns};
  }
};

std::vector<double> product(const HostMatrix& a, const HostMatrix& b, std::int64_t m, std::int64_t n, std::int64_t k) {
  const HostRank rank{a, b, nullptr};
  return (*overlap_gemm({.m = m, .n = n, .k = k, .b = Storage::row}, {&rank, 1}, OutputType::same))[0];
}

OverlapGemm problem_of(OverlapOp op) { return {.op = op, .m = kM, .n = kN, .k = kK, .ranks = kRanks, .b = Storage::row}; }

}  // namespace

TEST_CASE("overlap reference: slices of A that arrive give the product of all of A") {
  const Matrix a(kM, kK, 1), b(kK, kN, 2);
  std::vector<HostRank> ranks;
  for (int r = 0; r < kRanks; ++r) ranks.push_back({a.view(slice_range(kM, kRanks, r).begin), b.view(), nullptr});
  const auto gathered = *overlap_gemm(problem_of(OverlapOp::all_gather_gemm), ranks, OutputType::same);
  for (const auto& d : gathered) CHECK(d == product(a.view(), b.view(), kM, kN, kK));

  const Matrix wide(kRanks * kM, kK, 3);
  ranks.clear();
  for (int r = 0; r < kRanks; ++r) ranks.push_back({wide.view(0, slice_range(kK, kRanks, r).begin), b.view(), nullptr});
  const auto exchanged = *overlap_gemm(problem_of(OverlapOp::all_to_all_gemm), ranks, OutputType::same);
  for (int r = 0; r < kRanks; ++r)
    CHECK(exchanged[static_cast<std::size_t>(r)] == product(wide.view(r * kM), b.view(), kM, kN, kK));
}

TEST_CASE("overlap reference: partial sums are rounded once and added by rank, the owner's first") {
  const Matrix a(kM, kRanks * kK, 4), b(kRanks * kK, kN, 5);
  std::vector<HostRank> ranks;
  for (int r = 0; r < kRanks; ++r) ranks.push_back({a.view(0, r * kK), b.view(r * kK), nullptr});
  const auto whole = product(a.view(), b.view(), kM, kN, kRanks * kK);
  const auto exact = *overlap_gemm(problem_of(OverlapOp::gemm_reduce_scatter), ranks, OutputType::fp32);
  const auto rounded_sums = *overlap_gemm(problem_of(OverlapOp::gemm_reduce_scatter), ranks, OutputType::same);
  const auto everywhere = *overlap_gemm(problem_of(OverlapOp::gemm_all_reduce), ranks, OutputType::same);
  bool rounding_shows = false;
  for (int r = 0; r < kRanks; ++r) {
    const SliceRange rows = slice_range(kM, kRanks, r);
    for (std::int64_t i = 0; i < rows.size; ++i)
      for (std::int64_t j = 0; j < kN; ++j) {
        const auto here = static_cast<std::size_t>(i * kN + j), there = static_cast<std::size_t>((rows.begin + i) * kN + j);
        const auto rank = static_cast<std::size_t>(r);
        CHECK(exact[rank][here] == whole[there]);
        double sum = product(ranks[rank].a, ranks[rank].b, kM, kN, kK)[there];
        for (int q = 0; q < kRanks; ++q)
          if (q != r) {
            const HostRank& other = ranks[static_cast<std::size_t>(q)];
            sum += rounded<DType::bf16>(static_cast<float>(product(other.a, other.b, kM, kN, kK)[there]));
          }
        CHECK(rounded_sums[rank][here] == sum);
        for (const auto& d : everywhere) CHECK(d[there] == sum);
        rounding_shows = rounding_shows || sum != whole[there];
      }
  }
  CHECK(rounding_shows);
}

TEST_CASE("overlap reference: column slices land at their owner, bias and activation applied") {
  const Matrix a(kM, kK, 6), b(kK, kN, 7), bias(1, kN, 8);
  const std::vector<HostRank> ranks(kRanks, {a.view(), b.view(), bias.bits.data()});
  OverlapGemm problem = problem_of(OverlapOp::gemm_all_to_all);
  problem.bias = true;
  problem.activation = Activation::silu;
  const auto scattered = *overlap_gemm(problem, ranks, OutputType::same);
  const auto plain = product(a.view(), b.view(), kM, kN, kK);
  for (int r = 0; r < kRanks; ++r) {
    const SliceRange columns = slice_range(kN, kRanks, r);
    for (std::int64_t i = 0; i < kRanks * kM; ++i)
      for (std::int64_t j = 0; j < columns.size; ++j) {
        const auto column = static_cast<std::size_t>(columns.begin + j);
        const double x = plain[static_cast<std::size_t>(i % kM * kN) + column] + widen<DType::bf16>(bias.bits[column]);
        CHECK(scattered[static_cast<std::size_t>(r)][static_cast<std::size_t>(i * columns.size + j)] == x / (1 + std::exp(-x)));
      }
  }
  CHECK(!overlap_gemm(problem, {ranks.data(), 2}, OutputType::same).ok());
}

TEST_CASE("overlap reference: activations") {
  CHECK(activated(-3, Activation::relu) == 0);
  CHECK(std::isnan(activated(std::nan(""), Activation::relu)));
  CHECK(activated(1, Activation::gelu) == doctest::Approx(0.841192));
  CHECK(activated(-1, Activation::silu) == doctest::Approx(-0.268941));
}

}  // namespace ordo::reference
