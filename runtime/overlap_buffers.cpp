// Sizes of what ranks exchange: pure arithmetic on problem and plan.
#include <algorithm>

#include "codegen/generate/overlap.hpp"
#include "runtime/overlap_slices.hpp"

namespace ordo {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

int element_bytes(OutputType type) { return type == OutputType::fp32 ? 4 : 2; }

}  // namespace

SliceRange slice_range(std::int64_t size, std::int64_t ranks, int slice) {
  const auto parts = static_cast<int>(ranks);
  const std::int64_t begin = overlap::part_begin(size, parts, 1, slice);
  return {begin, overlap::part_begin(size, parts, 1, slice + 1) - begin};
}

std::int64_t slice_rows(const OverlapGemm& problem, int slice) {
  switch (problem.op) {
    case OverlapOp::all_gather_gemm:
    case OverlapOp::gemm_reduce_scatter:
    case OverlapOp::gemm_all_reduce:
      return slice_range(problem.m, problem.ranks, slice).size;
    case OverlapOp::gemm_all_to_all:  // more ranks than columns: nothing for the last ones
      return slice_range(problem.n, problem.ranks, slice).size > 0 ? problem.m : 0;
    default:
      return problem.m;
  }
}

overlap::Tiles tiles_of(const OverlapGemm& problem, const OverlapPlan& plan, int rank) {
  const int slices = overlap::slices_of(device_config(plan));
  const bool by_columns = problem.op == OverlapOp::gemm_all_to_all;
  const std::int64_t columns = by_columns ? slice_range(problem.n, problem.ranks, 0).size : problem.n;
  const bool leaves = problem.op != OverlapOp::all_gather_gemm && problem.op != OverlapOp::all_to_all_gemm;
  const std::int64_t unit = std::int64_t{plan.tile_m} * plan.cluster;
  return {.pattern = leaves ? overlap::Pattern::reduce : overlap::Pattern::gather,
          .rank = rank,
          .ranks = plan.ranks,
          .slices = slices,
          .units = static_cast<int>((slice_rows(problem, 0) + unit - 1) / unit),
          .columns = static_cast<int>((columns + plan.tile_n - 1) / plan.tile_n),
          .group = plan.group_m};
}

OverlapBuffers overlap_buffers(const OverlapGemm& problem, const OverlapPlan& plan) {
  OverlapBuffers buffers;
  buffers.slots = problem.ranks;
  buffers.slot_rows = slice_rows(problem, 0);
  buffers.words = static_cast<std::size_t>(problem.ranks * plan.sub_slices);
  const auto bytes = [&](std::int64_t pitch, int element) {
    return static_cast<std::size_t>(round_up(buffers.slot_rows * pitch * element, 256));
  };
  const auto receive = [&](std::int64_t columns, int element) {
    buffers.receive_pitch = round_up(columns, 16 / element);
    buffers.receive_slot_bytes = bytes(buffers.receive_pitch, element);
  };
  const auto send = [&](std::int64_t columns, int element) {
    buffers.send_pitch = round_up(columns, 16 / element);
    if (plan.transport == Transport::copy_engine) buffers.send_slot_bytes = bytes(buffers.send_pitch, element);
  };
  const auto output = [&](std::int64_t rows, std::int64_t columns) {
    const int element = element_bytes(problem.out);
    buffers.output_pitch = round_up(columns, 16 / element);
    buffers.output_bytes = static_cast<std::size_t>(round_up(rows * buffers.output_pitch * element, 256));
  };
  if (problem.op == OverlapOp::gemm_all_reduce) output(problem.m, problem.n);
  if (problem.op == OverlapOp::gemm_all_to_all) output(problem.ranks * problem.m, slice_range(problem.n, problem.ranks, 0).size);
  if (problem.ranks == 1) return buffers;
  switch (problem.op) {
    case OverlapOp::gemm:
      break;
    case OverlapOp::all_gather_gemm:
      receive(problem.k, 2);
      break;
    case OverlapOp::all_to_all_gemm:
      receive(slice_range(problem.k, problem.ranks, 0).size, 2);
      break;
    case OverlapOp::gemm_reduce_scatter:
    case OverlapOp::gemm_all_reduce:
      receive(problem.n, element_bytes(plan.partial));
      send(problem.n, element_bytes(plan.partial));
      break;
    case OverlapOp::gemm_all_to_all:
      send(slice_range(problem.n, problem.ranks, 0).size, element_bytes(problem.out));
      break;
  }
  return buffers;
}

std::uint32_t overlap_chunk_arrivals(const OverlapGemm& problem, const OverlapPlan& plan, int slice, int chunk) {
  return static_cast<std::uint32_t>(overlap::chunk_arrivals(static_cast<int>(slice_rows(problem, slice)), plan.tile_m,
                                                            plan.cluster, tiles_of(problem, plan, 0).columns, plan.sub_slices,
                                                            chunk));
}

}  // namespace ordo
