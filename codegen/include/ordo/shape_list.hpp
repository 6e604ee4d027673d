// ShapeList: the problems of a model or of a run, from a TOML file. What kernels are made ahead of time, or tuned, for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ordo/error.hpp"
#include "ordo/overlap.hpp"
#include "ordo/plan.hpp"
#include "ordo/problem.hpp"

namespace ordo {

/// One problem and what its list fixes of the plan.
struct ListedProblem {
  AttentionBackward problem;
  PlanRequest request;
  friend bool operator==(const ListedProblem&, const ListedProblem&) = default;
};

/// The file's format, models/README.md in full:
///
///   name = "Llama 3 8B"
///   [[attention-backward]]          # any number of them; every key but heads and the lengths has a default
///   heads = 32
///   kv_heads = 8
///   head_dim = 128
///   tensor_parallel = [1, 2, 4, 8]  # a rank has heads / N, and kv_heads / N or, where N is larger, one that is shared
///   seqlen = [2048, 4096]           # or seqlen_q and seqlen_k, pairs by position
///   mask = "causal"
///   accumulate = ["ordered", "exact"]
///   [[plan]]                        # a plan by its text, as `ordo manifest` writes it
///   text = "attention-backward dtype=bf16 ..."        # or "overlap-plan op=..."
///
/// A key takes one value or a list of them; a table stands for every combination.
struct ShapeList {
  std::string name;                             ///< of the model; empty where the file gives none
  std::vector<ListedProblem> problems;          ///< in the file's order, each once
  std::vector<Plan> plans;                      ///< likewise
  std::vector<OverlapPlan> overlap_plans = {};  ///< likewise
};

/// Reads a list. `origin` names the text in errors ("models/llama3-8b.toml"), which name the line too. Pure.
/// Errors (invalid_argument): no TOML, an unknown key or value, a combination that is no valid problem or plan, more than a
/// million combinations, an empty list.
ORDO_API Result<ShapeList> parse_shape_list(std::string_view text, const std::string& origin);

/// The same from a file. Errors: io where it cannot be read or exceeds 16 MiB; else those of parse_shape_list.
ORDO_API Result<ShapeList> read_shape_list(const std::string& path);

/// TOML that parse_shape_list reads back: a table for every problem and plan.
ORDO_API std::string to_toml(const ShapeList& list);

}  // namespace ordo
