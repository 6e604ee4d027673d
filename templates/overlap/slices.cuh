// Which slice a rank computes when, and where what it computed or holds goes.
//
// One source of truth: the generated kernels, the host's proof, planner and simulator, and the exchange of slices between ranks
// all include this file.
//
// The rows that ranks exchange are cut into one *slice* a rank; slice s belongs to rank s. A rank computes its slices one a
// *step*, step 0 first. A slice may be cut further into `sub_slices` *chunks*, which are computed and sent one after another:
// chunk = slice * sub_slices + sub.
//
//   gather   slices arrive and are multiplied (all-gather, all-to-all before a GEMM): own first, then r-1, r-2, ...
//   reduce   partial slices leave and are added at their owner (reduce-scatter behind a GEMM): own last
//   scatter  finished slices leave for their owner (all-to-all behind a GEMM): own last
#pragma once

#if defined(__CUDACC__)
#define ORDO_OVERLAP_FUNCTION __host__ __device__ __forceinline__
#else
#define ORDO_OVERLAP_FUNCTION inline
#endif

namespace ordo::overlap {

enum class Pattern : int { gather, reduce, scatter };

/// How a slice travels.
enum class Route : int {
  direct,  ///< from its source straight to where it is needed
  ring,    ///< from rank r to rank r+1 only: gathered slices are passed on, partial sums grow as they go
};

/// `value` in 0 .. ranks-1 for value in -ranks .. 2*ranks-1.
ORDO_OVERLAP_FUNCTION constexpr int wrap(int value, int ranks) {
  return value < 0 ? value + ranks : (value >= ranks ? value - ranks : value);
}

/// The slice that `rank` computes in `step` (0 .. ranks-1).
/// A ring's partial sum of slice s visits s+1, s+2, ..., s, so rank r takes r-1, r-2, ..., r. Straight to its owner, r+1, r+2,
/// ..., r: in every step each rank sends to one rank and receives from one.
ORDO_OVERLAP_FUNCTION constexpr int slice_at_step(Pattern pattern, Route route, int rank, int ranks, int step) {
  if (pattern == Pattern::gather) return wrap(rank - step, ranks);
  if (route == Route::ring) return wrap(rank - 1 - step, ranks);
  return wrap(rank + 1 + step, ranks);
}

/// The step in which `rank` computes `slice`: the inverse of slice_at_step.
ORDO_OVERLAP_FUNCTION constexpr int step_of_slice(Pattern pattern, Route route, int rank, int ranks, int slice) {
  if (pattern == Pattern::gather) return wrap(rank - slice, ranks);
  if (route == Route::ring) return wrap(rank - 1 - slice, ranks);
  return wrap(slice - rank - 1, ranks);
}

/// First row of `part` when `rows` rows are cut into `parts` that differ by at most `unit` rows: whole units, dealt so that
/// earlier parts are the longer ones. part == parts gives `rows`. Ragged rows: the last non-empty part ends inside a unit. Parts
/// may be empty.
ORDO_OVERLAP_FUNCTION constexpr long long part_begin(long long rows, int parts, int unit, int part) {
  const long long units = (rows + unit - 1) / unit;
  const long long share = units / parts, extra = units % parts;
  const long long begin = (share * part + (part < extra ? part : extra)) * unit;
  return begin < rows ? begin : rows;
}

}  // namespace ordo::overlap

#undef ORDO_OVERLAP_FUNCTION
