#include "runtime/reference/gemm.hpp"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "runtime/overlap_slices.hpp"
#include "runtime/reference/numbers.hpp"

namespace ordo::reference {
namespace {

double value_of(DType dtype, std::uint16_t bits) {
  return dtype == DType::bf16 ? widen<DType::bf16>(bits) : widen<DType::fp16>(bits);
}

/// An operand with its storage: element (i, j).
struct Elements {
  HostMatrix matrix;
  Storage storage;
  DType dtype;
  [[nodiscard]] double at(std::int64_t i, std::int64_t j) const {
    return value_of(dtype, matrix.data[storage == Storage::row ? i * matrix.stride + j : j * matrix.stride + i]);
  }
};

/// A sum as it arrives at its owner.
double sent(double sum, DType dtype, OutputType partial) {
  const auto single = static_cast<float>(sum);
  if (partial == OutputType::fp32) return single;
  return dtype == DType::bf16 ? rounded<DType::bf16>(single) : rounded<DType::fp16>(single);
}

struct Executor {
  const OverlapGemm& problem;
  std::span<const HostRank> ranks;
  OutputType partial;

  [[nodiscard]] int count() const { return static_cast<int>(problem.ranks); }
  [[nodiscard]] Elements a(int rank) const { return {ranks[static_cast<std::size_t>(rank)].a, problem.a, problem.dtype}; }
  [[nodiscard]] Elements b(int rank) const { return {ranks[static_cast<std::size_t>(rank)].b, problem.b, problem.dtype}; }

  /// Element (row, column) of A B, both of `rank`, over k in [begin, end) of B.
  [[nodiscard]] double product(const Elements& left, std::int64_t row, const Elements& right, std::int64_t column,
                               std::int64_t begin, std::int64_t size) const {
    double sum = 0;
    for (std::int64_t i = 0; i < size; ++i) sum += left.at(row, i) * right.at(begin + i, column);
    return sum;
  }

  /// Element of what `rank` computes alone.
  [[nodiscard]] double own_product(int rank, std::int64_t row, std::int64_t column) const {
    return product(a(rank), row, b(rank), column, 0, problem.k);
  }

  /// The owner's sum and the others' by rank, as the kernels add them.
  [[nodiscard]] double reduced(int owner, std::int64_t row, std::int64_t column) const {
    double sum = own_product(owner, row, column);
    for (int rank = 0; rank < count(); ++rank)
      if (rank != owner) sum += sent(own_product(rank, row, column), problem.dtype, partial);
    return sum;
  }

  [[nodiscard]] double finished(int rank, std::int64_t column, double sum) const {
    const std::uint16_t* bias = ranks[static_cast<std::size_t>(rank)].bias;
    return activated(problem.bias ? sum + value_of(problem.dtype, bias[column]) : sum, problem.activation);
  }

  [[nodiscard]] int row_owner(std::int64_t row) const {
    int owner = 0;
    while (owner + 1 < count() && row >= slice_range(problem.m, problem.ranks, owner + 1).begin) ++owner;
    return owner;
  }

  [[nodiscard]] double gathered(int rank, std::int64_t row, std::int64_t column) const {
    const int source = row_owner(row);
    const std::int64_t in_slice = row - slice_range(problem.m, problem.ranks, source).begin;
    return product(a(source), in_slice, b(rank), column, 0, problem.k);
  }

  [[nodiscard]] double exchanged(int rank, std::int64_t row, std::int64_t column) const {
    double sum = 0;
    for (int source = 0; source < count(); ++source) {
      const SliceRange depth = slice_range(problem.k, problem.ranks, source);
      sum += product(a(source), rank * problem.m + row, b(rank), column, depth.begin, depth.size);
    }
    return sum;
  }

  [[nodiscard]] std::vector<double> result(int rank) const {
    const SliceRange rows = slice_range(problem.m, problem.ranks, rank), columns = slice_range(problem.n, problem.ranks, rank);
    switch (problem.op) {
      case OverlapOp::gemm:
      case OverlapOp::all_gather_gemm:
        return fill(problem.m, problem.n, [&](auto i, auto j) { return finished(rank, j, gathered(rank, i, j)); });
      case OverlapOp::gemm_reduce_scatter:
        return fill(rows.size, problem.n, [&](auto i, auto j) { return finished(rank, j, reduced(rank, rows.begin + i, j)); });
      case OverlapOp::gemm_all_reduce:
        return fill(problem.m, problem.n, [&](auto i, auto j) {
          const int owner = row_owner(i);
          return finished(owner, j, reduced(owner, i, j));
        });
      case OverlapOp::gemm_all_to_all:
        return fill(problem.ranks * problem.m, columns.size, [&](auto i, auto j) {
          const auto source = static_cast<int>(i / problem.m);
          return finished(source, columns.begin + j, own_product(source, i % problem.m, columns.begin + j));
        });
      case OverlapOp::all_to_all_gemm:
        return fill(problem.m, problem.n, [&](auto i, auto j) { return finished(rank, j, exchanged(rank, i, j)); });
    }
    return {};
  }

  template <class Element>
  static std::vector<double> fill(std::int64_t rows, std::int64_t columns, const Element& element) {
    std::vector<double> d;
    d.reserve(static_cast<std::size_t>(rows * columns));
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) d.push_back(element(i, j));
    return d;
  }
};

}  // namespace

double activated(double x, Activation activation) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x < 0 ? 0 : x;
    case Activation::gelu:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 * std::numbers::inv_pi) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
  }
  return x;
}

Result<std::vector<std::vector<double>>> overlap_gemm(const OverlapGemm& problem, std::span<const HostRank> ranks,
                                                      OutputType partial) {
  if (auto valid = problem.validate(); !valid) return valid.error();
  if (static_cast<std::int64_t>(ranks.size()) != problem.ranks)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{} ranks were given and the problem has {}", ranks.size(), problem.ranks)};
  const Executor executor{problem, ranks, partial};
  std::vector<std::vector<double>> results;
  results.reserve(static_cast<std::size_t>(executor.count()));
  for (int rank = 0; rank < executor.count(); ++rank) results.push_back(executor.result(rank));
  return results;
}

}  // namespace ordo::reference
