// Parameters of the GEMM kernel: the contract between the host's launch code and the device, included by both.
#pragma once

#include "overlap/tiles.cuh"
#include "sm90/tensor_map.cuh"

namespace ordo::overlap {

/// Where a wait failed, in host memory that the device sees. The first to fail claims it (state 0 to 1), fills it, and sets
/// state 2.
struct Failure {
  unsigned int state;
  int rank;   ///< whose kernel waited
  int slice;  ///< gather: the slice waited for; reduce: the rank whose partial sum is missing
  int chunk;
  unsigned int expected, seen;
};

/// What bounds the kernel's waits. Unused by Op::gemm.
struct Waiting {
  const unsigned int* ready;  ///< [slice or source rank][chunks]: at least `expected` once the data lies in this device's memory
  const unsigned int* abort;  ///< nonzero: give up at once
  Failure* failure;
  unsigned long long timeout_ns;  ///< of one wait
  unsigned int expected;          ///< compared as a signed difference; not with Config::direct, which counts signals
};

/// One slice (slices.cuh), or one source rank.
struct Slice {
  TensorMap a;  ///< what A of this slice is read from; all_to_all_gemm: of this source's block of k
  TensorMap b;
  TensorMap d;             ///< where the slice's tiles go, clipped at its rows and columns
  TensorMap partial;       ///< reduce: the partial sums of my slice that rank `index` sent
  unsigned int* signal;    ///< [chunks] is added to as tiles are stored; null: nobody waits for this slice
  int rows;                ///< of the slice; 0: empty
  int a_origin;            ///< row of the map `a` at which the slice begins
  int b_origin;            ///< column of B at which the slice begins
  int k_origin, k_blocks;  ///< all_to_all_gemm: where in k the block of this source begins, and its length in tiles
};

/// The host fills Params<kMostRanks>, of which a kernel for `Slices` ranks reads the beginning.
template <int Slices>
struct Params {
  TensorMap bias;  ///< [n]
  Waiting waiting;
  Tiles tiles;
  int chunks;    ///< a slice
  int k_blocks;  ///< of the whole k
  Slice slice[Slices];
};

inline constexpr int kMostRanks = 32;

}  // namespace ordo::overlap
