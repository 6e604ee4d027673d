// Whether, and in how many pieces, an exchange hides behind a product.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/overlap/steps.hpp"
#include "codegen/overlap/timeline.hpp"
#include "ordo/error.hpp"
#include "ordo/overlap.hpp"
#include "ordo/target.hpp"

namespace ordo::overlap {

/// The product of one rank, A [m, k] times B [k, n], and what is exchanged around it.
struct Case {
  Exchange exchange = Exchange::all_gather;
  int ranks = 2;
  std::int64_t m = 0, n = 0, k = 0;
  int element_bytes = 2;    ///< of what travels: inputs, finished outputs or partial sums
  bool peer_access = true;  ///< ranks map each other's memory; else NCCL moves it, with SMs
};

/// The exchange of an op. Errors: invalid_problem for OverlapOp::gemm, which has none.
ORDO_API Result<Exchange> exchange_of(OverlapOp op);

/// The question that a problem asks; `partial` is the type of its partial sums.
ORDO_API Result<Case> case_of(const OverlapGemm& problem, OutputType partial, bool peer_access);

/// What a target's GPUs and links do; see targets.inc for the measurements.
struct Constants {
  bool measured = false;
  double gemm_flops = 0;  ///< a second, sustained
  double copy_bytes = 0, copy_latency = 0;
  double nccl_bytes = 0, nccl_latency = 0;
  double beside_copy = 0;
};
ORDO_API Constants constants_of(const Target& target);

struct Choice {
  int sub_slices = 1;
  double overlapped = 0;  ///< seconds of the whole
  double exposed = 0;     ///< of them: nobody computes
};

/// Times in seconds.
struct Advice {
  bool overlap = false;  ///< else: the collective, then the product (or the other way round)
  int sub_slices = 1;
  double step_compute = 0;        ///< of one slice
  double step_communication = 0;  ///< of one slice, one direction
  double compute = 0;             ///< the product alone
  double communication = 0;       ///< the collective alone, by NCCL
  double overlapped = 0, exposed = 0, sequential = 0;
  bool hides = false;           ///< a slice takes no longer to move than to compute
  double size = 0;              ///< what decides that: n where slices arrive, k where they leave
  double threshold = 0;         ///< it must reach this: rate of the GEMM over rate of the link, for elements of that many bytes
  std::string reason;           ///< one sentence
  std::vector<Choice> choices;  ///< by sub_slices
};

/// Simulates every number of sub-slices and compares with NCCL then GEMM. Pure. Errors: invalid_problem (sizes below 1),
/// invalid_argument.
ORDO_API Result<Advice> advise(const Case& of, const Target& target, Route route = Route::direct);

/// The schedule of `of` with so many sub-slices, and the model's costs of it.
ORDO_API Result<StepSchedule> schedule_of(const Case& of, Route route, int sub_slices);
ORDO_API TimelineCosts costs_of(const Case& of, const Target& target, int sub_slices);

}  // namespace ordo::overlap
