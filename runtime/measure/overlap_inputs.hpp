// What the ranks of an OverlapGemm put in, and what each must get.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/measure/gemm_reference.hpp"

namespace ordo::measure {

/// One rank's A, B and bias. Lines of A are as far apart as an exchange needs them.
struct ORDO_API RankInputs {
  DeviceMatrix a, b, bias;

  /// `b_padding`: elements behind each line of B.
  static Result<RankInputs> create(const OverlapGemm& problem, int rank, std::int64_t b_padding = 0);
  /// Standard normal numbers: the same for the same seed and rank, on any device. In the order of `stream`.
  Result<void> fill(const HelperKernels& kernels, DType dtype, std::uint64_t seed, int rank, CUstream_st* stream = nullptr);
};

/// Rows and columns of the D that `rank` gets.
struct OutputShape {
  std::int64_t rows = 0, columns = 0;
};
ORDO_API OutputShape output_shape(const OverlapGemm& problem, int rank);

/// A D of that shape whose rows are as far apart as OverlapBuffers::output_pitch says, where it does.
ORDO_API Result<DeviceMatrix> make_output(const OverlapGemm& problem, int rank);

/// Holds the D of `rank` against what follows from the inputs of all ranks, in fp64. `partials_rounded`: partial sums were
/// rounded to the 16-bit type. Works on the legacy default stream and waits: whatever wrote the inputs and D is done.
ORDO_API Result<GemmDeviation> compare_with_fp64(const OverlapGemm& problem, int rank, std::span<const RankInputs* const> inputs,
                                                 const MatrixView& d, bool partials_rounded, const HelperKernels& kernels);

}  // namespace ordo::measure
