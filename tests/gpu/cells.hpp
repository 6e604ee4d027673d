// The shapes and plans of the cover: what the GPU suite runs, also listed and compiled without a GPU.
#pragma once

#include <string>
#include <vector>

#include "ordo/plan.hpp"
#include "ordo/problem.hpp"
#include "ordo/target.hpp"

namespace ordo::test {

struct Cell {
  AttentionBackward problem;
  Plan plan;
};

/// A few hundred cells that hold every pair of {dtype, head_dim and cluster, mask, schedule, accumulation, MHA/GQA/MQA, seqlen_q,
/// seqlen_k, static_shape, few or many heads, few or all workers}, and every triple or more where kernels differ most. Errors of
/// the planner are the suite's failures: they go to `errors`.
std::vector<Cell> cover_cells(const Target& target, std::vector<std::string>& errors);

}  // namespace ordo::test
