#include "codegen/fit.hpp"

#include <fmt/format.h>

#include <array>

#include "codegen/limits.hpp"
#include "codegen/schedule/proof.hpp"
#include "codegen/schedule/visit_table.hpp"

namespace ordo {
namespace {

/// The fields in which the plan was made for another problem, as a list for a message; empty when none.
std::string differences(const AttentionBackward& problem, const Plan& plan) {
  std::string list;
  const auto compare = [&list](std::string_view name, const auto& made_for, const auto& asked) {
    if (made_for != asked) list += fmt::format("{}{} {} (asked: {})", list.empty() ? "" : ", ", name, made_for, asked);
  };
  compare("dtype", to_string(plan.dtype), to_string(problem.dtype));
  compare("head_dim", std::int64_t{plan.head_dim}, problem.head_dim);
  compare("mask", to_string(plan.mask), to_string(problem.mask));
  compare("heads/kv_heads", std::int64_t{plan.group}, problem.group());
  if (plan.static_shape) {
    compare("static batch", plan.static_shape->batch, problem.batch);
    compare("static seqlen_q", plan.static_shape->seqlen_q, problem.seqlen_q);
    compare("static seqlen_k", plan.static_shape->seqlen_k, problem.seqlen_k);
    compare("static kv_heads", plan.static_shape->kv_heads, problem.kv_heads);
  }
  return list;
}

/// Items and dQ semaphores are numbered with int, and the tiles of a head are proved one by one.
Result<void> check_counts(const AttentionBackward& problem, const Plan& plan) {
  const std::int64_t unit_kv = std::int64_t{plan.tile_kv} * plan.cluster;
  const auto within = [](std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t tile) {
    return batch <= limits::kMostNumbered / heads / ((length + tile - 1) / tile);
  };
  if (!within(problem.batch, problem.kv_heads, problem.seqlen_k, unit_kv)) {
    return Error{ErrorCode::unsupported,
                 fmt::format("batch {} * kv_heads {} * KV tiles of seqlen_k {} is above 2^31-1; split the batch", problem.batch,
                             problem.kv_heads, problem.seqlen_k)};
  }
  if (!within(problem.batch, problem.heads, problem.seqlen_q, plan.tile_q)) {
    return Error{ErrorCode::unsupported,
                 fmt::format("batch {} * heads {} * Q tiles of seqlen_q {} is above 2^31-1; split the batch", problem.batch,
                             problem.heads, problem.seqlen_q)};
  }
  const std::int64_t q_tiles = (problem.seqlen_q + plan.tile_q - 1) / plan.tile_q;
  const std::int64_t units = (problem.seqlen_k + unit_kv - 1) / unit_kv;
  if (q_tiles * units > limits::kMostProvedTiles) {
    return Error{
        ErrorCode::unsupported,
        fmt::format("seqlen_q {} by seqlen_k {} are {} tiles a head, more than the {} that ordo proves free of deadlock before a "
                    "launch; split seqlen_k and add the gradients",
                    problem.seqlen_q, problem.seqlen_k, q_tiles * units, limits::kMostProvedTiles)};
  }
  return {};
}

Result<void> prove(const AttentionBackward& problem, const Plan& plan, const schedule::Geometry& geometry) {
  if (!reads_table(plan)) return prove_schedule(geometry, plan.workers);
  const auto table = table_of(problem, plan);
  if (!table) return table.error();
  return prove_schedule(geometry, plan.workers, &*table, mask_of(problem, plan));
}

/// prove, remembering the last few geometries that passed: a launch asks again and again about the same shapes, and the answer
/// depends on nothing else. A thread has its own memory, so there is nothing to lock.
Result<void> prove_once(const AttentionBackward& problem, const Plan& plan) {
  struct Proved {
    schedule::Geometry geometry;
    std::int64_t workers;
    int heads;
    std::optional<Arrival> arrival;
    Mask mask;
    std::int64_t batch;  ///< an expression may look at it
  };
  const schedule::Geometry geometry = make_geometry(problem, plan);
  thread_local std::array<Proved, 16> proved{};
  thread_local std::size_t oldest = 0;
  const auto same = [](const schedule::Geometry& a, const schedule::Geometry& b) {
    return a.kind == b.kind && a.causal == b.causal && a.tile_q == b.tile_q && a.unit_kv == b.unit_kv &&
           a.seqlen_q == b.seqlen_q && a.seqlen_k == b.seqlen_k && a.walks == b.walks && a.head_group == b.head_group &&
           a.wave == b.wave && a.stride == b.stride;
  };
  for (const Proved& entry : proved) {
    if (entry.workers == plan.workers && entry.heads == plan.group && entry.arrival == plan.arrival && entry.mask == plan.mask &&
        entry.batch == problem.batch && same(entry.geometry, geometry))
      return {};
  }
  if (auto checked = prove(problem, plan, geometry); !checked) return checked;
  proved[oldest] = {geometry, plan.workers, plan.group, plan.arrival, plan.mask, problem.batch};
  oldest = (oldest + 1) % proved.size();
  return {};
}

}  // namespace

Result<void> check_sizes(const AttentionBackward& problem, const Plan& plan) {
  if (const std::string list = differences(problem, plan); !list.empty()) {
    return Error{ErrorCode::invalid_plan,
                 fmt::format("the plan was made for another problem: {}; make a plan for this one", list)};
  }
  if (plan.accumulate == Accumulate::exact && problem.seqlen_k > limits::kMostExactKeys) {
    return Error{ErrorCode::unsupported,
                 fmt::format("accumulate exact sums in int32, accurate up to {} keys, and seqlen_k is {}; use accumulate ordered",
                             limits::kMostExactKeys, problem.seqlen_k)};
  }
  return check_counts(problem, plan);
}

Result<void> check_fit(const AttentionBackward& problem, const Plan& plan) {
  // Launch after launch asks about the same pair, and an expression's rules take longer than a launch may.
  thread_local std::optional<std::pair<AttentionBackward, Plan>> accepted;
  if (accepted && accepted->first == problem && accepted->second == plan) return {};
  if (auto valid = problem.validate(); !valid) return valid;
  if (auto valid = plan.validate(); !valid) return valid;
  if (auto checked = check_sizes(problem, plan); !checked) return checked;
  if (auto proved = prove_once(problem, plan); !proved) return proved;
  accepted = std::pair(problem, plan);
  return {};
}

}  // namespace ordo
