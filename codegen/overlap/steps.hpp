// What each rank computes in which order, and what travels between ranks, for one overlapped operation. Whoever simulates, proves
// or runs an operation goes by this one list.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ordo/error.hpp"
#include "templates/overlap/slices.cuh"

namespace ordo::overlap {

/// The exchange around a product.
enum class Exchange {
  all_gather,      ///< before it: rows of A
  all_to_all,      ///< before it: columns of A, which the k loop visits block by block
  reduce_scatter,  ///< behind it: partial sums to their owner, who adds them
  all_reduce,      ///< reduce_scatter, then every rank sends what it owns to all others
  to_all,          ///< behind it: finished columns to their owner
};

ORDO_API std::string_view to_string(Exchange exchange);
ORDO_API std::string_view to_string(Route route);
/// By the names of to_string. Errors: invalid_argument, listing them.
ORDO_API Result<Exchange> parse_exchange(std::string_view text);
ORDO_API Result<Route> parse_route(std::string_view text);

/// gather, reduce or scatter; see templates/overlap/slices.cuh.
ORDO_API Pattern pattern_of(Exchange exchange);

/// One chunk that a rank computes: sub-slice `sub` of `slice`.
struct Step {
  int slice = 0, sub = 0;
  friend bool operator==(const Step&, const Step&) = default;
};

/// A consumer that is no step: the end of the operation.
inline constexpr int kAtEnd = -2;
/// A transfer that waits for no step, or for no other transfer.
inline constexpr int kNone = -1;

/// One copy. `after_step` counts the steps of `from`, `needed_by` those of `to`.
struct Transfer {
  int from = 0, to = 0;
  int slice = 0, sub = 0;
  std::int64_t bytes = 0;
  int after_step = kNone;      ///< whose result it carries
  int after_transfer = kNone;  ///< index of the transfer that brought to `from` what it passes on
  int needed_by = kAtEnd;      ///< the step that reads what it brings
  int slot = 0;                ///< its turn: in every slot each rank sends at most once and receives at most once
};

struct StepSchedule {
  Exchange exchange = Exchange::all_gather;
  Route route = Route::direct;
  int ranks = 1, sub_slices = 1;
  std::vector<std::vector<Step>> steps;  ///< by rank, in order
  std::vector<Transfer> transfers;       ///< each rank's in the order of its send queue: ascending slots

  [[nodiscard]] const std::vector<Step>& steps_of(int rank) const { return steps[static_cast<std::size_t>(rank)]; }
};

struct StepRequest {
  Exchange exchange = Exchange::all_gather;
  Route route = Route::direct;
  int ranks = 1, sub_slices = 1;
  /// Bytes of a chunk on the way from one rank to another. Absent: 1.
  std::function<std::int64_t(int from, int to, int slice, int sub)> bytes;
};

/// Errors (invalid_argument): ranks outside 1 .. 32, sub_slices outside 1 .. 64, a ring for an all-to-all.
ORDO_API Result<StepSchedule> make_steps(const StepRequest& request);

/// Whether an exchange that goes by `route` may run, and not only be simulated. A ring may for an all-gather alone: a sum that
/// grows from rank to rank is taken in another order than the one OverlapGemm promises, and rounded at every hop. Errors:
/// invalid_argument.
ORDO_API Result<void> check_route(Exchange exchange, Route route);

/// What prove_steps found. `violations` is empty for a schedule that may run; each names rank, step and slice.
struct StepProof {
  std::vector<std::string> violations;
  int steps = 0, transfers = 0;
  int slots_behind_compute = 0;  ///< slots whose transfers run while each rank still has a step to compute
};

/// Establishes, for any schedule however it was made:
///   1. every rank computes each of its chunks exactly once;
///   2. every transfer has one consumer, which computes with that very chunk (or the end of the operation), and no step misses or
///   gets
///      twice what it needs;
///   3. nothing waits on a later step: what a step needs was computed in an earlier step of its source, or lies there from the
///   start;
///   4. the last step of a rank starts no transfer (an all-reduce: none before the closing gather), and where slices arrive, what
///   it needs
///      is on its way a step before;
///   5. with one send queue a rank, in order, there is no cycle: no deadlock.
ORDO_API StepProof prove_steps(const StepSchedule& schedule);

}  // namespace ordo::overlap
