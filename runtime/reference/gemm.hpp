// OverlapGemm on the CPU, in fp64 but for the roundings that the kernels' contract states: what results are held against where
// there is no GPU, and what a rank should end with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ordo/overlap.hpp"

namespace ordo::reference {

/// A matrix of 16-bit elements in host memory; `stride` as in MatrixView.
struct HostMatrix {
  const std::uint16_t* data = nullptr;
  std::int64_t stride = 0;
};

/// What one rank holds before: shapes as in OverlapGemm. `bias` may be null where the problem has none.
struct HostRank {
  HostMatrix a, b;
  const std::uint16_t* bias = nullptr;
};

/// D of every rank as OverlapGemm defines it, contiguous by rows, before its last rounding: [rank][row][column]. Partial sums
/// that travel are rounded to `partial` as the kernels round them (fp32: as fp32). Time: m n k a rank; for tests and small
/// problems. Errors: an invalid problem, or other than `ranks` ranks.
ORDO_API Result<std::vector<std::vector<double>>> overlap_gemm(const OverlapGemm& problem, std::span<const HostRank> ranks,
                                                               OutputType partial);

/// activation(x) in fp64: none, max(x, 0) with NaN kept, the tanh form of gelu, x / (1 + exp(-x)).
double activated(double x, Activation activation);

}  // namespace ordo::reference
