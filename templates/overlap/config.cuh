// What is baked into one generated GEMM kernel.
#pragma once

namespace ordo::overlap {

/// What ranks exchange around the product D = act(A B + bias), A [m, k], B [k, n]. Slices: slices.cuh.
enum class Op : int {
  gemm,                 ///< nothing: one rank
  all_gather_gemm,      ///< row slices of A arrive
  gemm_reduce_scatter,  ///< row slices of the partial sums A B leave for their owner, who adds them
  gemm_all_reduce,      ///< the same, and every owner sends its finished slice to all
  gemm_all_to_all,      ///< column slices of D leave for their owner
  all_to_all_gemm,      ///< slices of A along k arrive
};

enum class Activation : int {
  none,
  relu,
  gelu,  ///< the tanh form: x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3)))
  silu,  ///< x / (1 + exp(-x))
};

struct Config {
  Op op;
  int ranks;
  bool fp16;      ///< A, B, bias and 16-bit outputs; else bf16
  bool a_column;  ///< A is stored [k][m], else [m][k]
  bool b_column;  ///< B is stored [n][k], else [k][n]
  bool out_fp32;  ///< D is fp32, else as A
  bool bias;      ///< one value a column
  Activation activation;
  bool partial_fp32;  ///< partial sums travel as fp32, else as A
  bool direct;        ///< slices that leave are stored straight into their owner's memory
  int tile_m, tile_n;
  int stages;
  int cluster;        ///< CTAs of a cluster: tiles below each other that share their tile of B
  int store_buffers;  ///< staging buffers of a consumer warpgroup, 64 rows of 64 or 128 bytes each
};

/// Partial sums of other ranks are added to this rank's slice.
constexpr bool reduces(const Config& c) { return c.op == Op::gemm_reduce_scatter || c.op == Op::gemm_all_reduce; }
/// Slices of A arrive while the kernel runs.
constexpr bool gathers(const Config& c) { return c.op == Op::all_gather_gemm || c.op == Op::all_to_all_gemm; }
/// What the rows or columns of D are cut into.
constexpr int slices_of(const Config& c) { return c.op == Op::all_to_all_gemm ? 1 : c.ranks; }

}  // namespace ordo::overlap
