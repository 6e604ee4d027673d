#include "runtime/measure/overlap_inputs.hpp"

#include <algorithm>

#include "runtime/overlap_slices.hpp"

namespace ordo::measure {
namespace {

/// The buffers' pitches depend on the problem alone.
OverlapBuffers pitches_of(const OverlapGemm& problem) {
  OverlapPlan plan;
  plan.op = problem.op;
  return overlap_buffers(problem, plan);
}

bool reduces(OverlapOp op) { return op == OverlapOp::gemm_reduce_scatter || op == OverlapOp::gemm_all_reduce; }

/// Adds to `reference`, on the rows of D that `rank` ends with, what the definition of the op says.
Result<void> add_products(GemmReference& reference, const OverlapGemm& p, int rank, std::span<const RankInputs* const> inputs) {
  const RankInputs& mine = *inputs[static_cast<std::size_t>(rank)];
  for (int q = 0; q < p.ranks; ++q) {
    const RankInputs& source = *inputs[static_cast<std::size_t>(q)];
    Result<void> added;
    if (p.op == OverlapOp::all_gather_gemm) {
      const SliceRange rows = slice_range(p.m, p.ranks, q);
      added = reference.add(operand_of(source.a, p.a), operand_of(mine.b, p.b), p.k, rows.begin, rows.size);
    } else if (p.op == OverlapOp::all_to_all_gemm) {
      const SliceRange depth = slice_range(p.k, p.ranks, q);
      added = reference.add(operand_of(source.a, p.a, rank * p.m), operand_of(mine.b, p.b, depth.begin), depth.size, 0, p.m);
    } else if (p.op == OverlapOp::gemm_all_to_all) {
      const std::int64_t column = slice_range(p.n, p.ranks, rank).begin;
      added = reference.add(operand_of(source.a, p.a), operand_of(source.b, p.b, 0, column), p.k, q * p.m, p.m);
    } else {
      const SliceRange rows = p.op == OverlapOp::gemm_reduce_scatter ? slice_range(p.m, p.ranks, rank) : SliceRange{0, p.m};
      added = reference.add(operand_of(source.a, p.a, rows.begin), operand_of(source.b, p.b), p.k, 0, rows.size);
    }
    if (!added) return added;
  }
  return {};
}

}  // namespace

Result<RankInputs> RankInputs::create(const OverlapGemm& p, int rank, std::int64_t b_padding) {
  const auto own = [&](std::int64_t size) { return slice_range(size, p.ranks, rank).size; };
  const std::int64_t rows = p.op == OverlapOp::all_gather_gemm   ? own(p.m)
                            : p.op == OverlapOp::all_to_all_gemm ? p.ranks * p.m
                                                                 : p.m;
  const std::int64_t columns = p.op == OverlapOp::all_to_all_gemm ? own(p.k) : p.k;
  const std::int64_t padding =
      p.op == OverlapOp::all_to_all_gemm ? std::max<std::int64_t>(pitches_of(p).receive_pitch - columns, 0) : 0;
  const bool a_rows = p.a == Storage::row, b_rows = p.b == Storage::row;
  auto a = DeviceMatrix::create(a_rows ? columns : rows, a_rows ? rows : columns, 2, padding);
  if (!a) return a.error();
  auto b = DeviceMatrix::create(b_rows ? p.n : p.k, b_rows ? p.k : p.n, 2, b_padding);
  if (!b) return b.error();
  auto bias = DeviceMatrix::create(p.n, 1, 2, 0);
  if (!bias) return bias.error();
  return RankInputs{*std::move(a), *std::move(b), *std::move(bias)};
}

Result<void> RankInputs::fill(const HelperKernels& kernels, DType dtype, std::uint64_t seed, int rank, CUstream_st* stream) {
  constexpr std::uint64_t kMostRanks = 64, kMatrices = 4;
  std::uint64_t next = (seed * kMostRanks + static_cast<std::uint64_t>(rank)) * kMatrices;
  for (DeviceMatrix* matrix : {&a, &b, &bias})
    if (auto ok = matrix->fill_random(kernels, dtype, next++, stream); !ok) return ok;
  return {};
}

OutputShape output_shape(const OverlapGemm& p, int rank) {
  switch (p.op) {
    case OverlapOp::gemm_reduce_scatter:
      return {slice_range(p.m, p.ranks, rank).size, p.n};
    case OverlapOp::gemm_all_to_all:
      return {p.ranks * p.m, slice_range(p.n, p.ranks, rank).size};
    default:
      return {p.m, p.n};
  }
}

Result<DeviceMatrix> make_output(const OverlapGemm& problem, int rank) {
  const OutputShape shape = output_shape(problem, rank);
  const std::int64_t pitch = pitches_of(problem).output_pitch;
  return DeviceMatrix::create(shape.columns, shape.rows, problem.out == OutputType::fp32 ? 4 : 2,
                              std::max<std::int64_t>(pitch - shape.columns, 0));
}

Result<GemmDeviation> compare_with_fp64(const OverlapGemm& p, int rank, std::span<const RankInputs* const> inputs,
                                        const MatrixView& d, bool partials_rounded, const HelperKernels& kernels) {
  const OutputShape shape = output_shape(p, rank);
  GemmDeviation total;
  if (shape.rows == 0 || shape.columns == 0) return total;
  auto reference = GemmReference::create(kernels, p.dtype, shape.rows, shape.columns);
  if (!reference) return reference.error();
  if (auto ok = add_products(*reference, p, rank, inputs); !ok) return ok.error();
  // Who finished rows of D added its bias to them, in gemm_all_to_all that of the columns it was asked for.
  for (int q = 0; q < p.ranks; ++q) {
    const bool columns = p.op == OverlapOp::gemm_all_to_all, everywhere = p.op == OverlapOp::gemm_all_reduce;
    if (!columns && !everywhere && q != rank) continue;
    const SliceRange rows = columns      ? SliceRange{q * p.m, p.m}
                            : everywhere ? slice_range(p.m, p.ranks, q)
                                         : SliceRange{0, shape.rows};
    const std::int64_t column = columns ? slice_range(p.n, p.ranks, rank).begin : 0;
    const void* bias = static_cast<const char*>(inputs[static_cast<std::size_t>(q)]->bias.view().data) + column * 2;
    const MatrixView part{static_cast<char*>(d.data) + rows.begin * d.stride * (p.out == OutputType::fp32 ? 4 : 2), d.stride};
    auto deviation = reference->compare(p, bias, part, rows.begin, rows.size, partials_rounded && reduces(p.op));
    if (!deviation) return deviation;
    total.worst = std::max(total.worst, deviation->worst);
    total.beyond += deviation->beyond;
  }
  return total;
}

}  // namespace ordo::measure
