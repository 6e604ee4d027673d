// The cells that every claim about speed rests on.
#pragma once

#include <string>
#include <vector>

#include "ordo/problem.hpp"

namespace ordo::cli {

struct Cell {
  std::string name;  ///< "hd128-causal-4096"; "gqa4-...", "gqa8-..." and their twin "mha32-..."
  AttentionBackward problem;
};

/// 16384 tokens, hidden 2048, bf16: head_dim {64, 128} x {full, causal} x seqlen {512 ... 16384}; then 32 query heads on 8, 4
/// and 32 KV heads (head_dim 128, 8192, causal). With `filter` (comma-separated parts of names) only what
/// contains one.
std::vector<Cell> cells(const std::string& filter);

/// A small problem that the cell's plans serve as well (but for a static shape), cheap to check against fp64.
AttentionBackward sibling(const AttentionBackward& problem);

}  // namespace ordo::cli
