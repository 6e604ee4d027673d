// What is baked into one generated GEMM kernel.
//
// Notes, H200, bf16, against cuBLAS 13.1 in the same process (`ordo_gemm_bench`), whose D is bit-identical at every shape. Burst:
// 25 ms of rest, three launches; steady: after 2 s of launches at 693 W. Time of cuBLAS over time of ours, M x N x K:
//
//                            128x256, 4 stages,   128x256, 3 stages,   128x128,
//                            2 store buffers      4 store buffers      6 stages
//   8192 x 7168 x 4096       1.00 (steady 0.986)  0.99                 0.95
//   8192 x 4096 x 7168       1.02 (steady 0.997)  1.02                 0.95
//   8192 x 8192 x 8192       1.02 (steady 0.998)  1.02                 0.94
//   8192 x 14336 x 8192      0.99                 1.00                 0.93
//   16384 x 14336 x 8192     0.98                 1.00                 0.91
//   4096 x 4096 x 4096       1.13                 1.12                 1.10
//   2048 x 7168 x 4096       1.02                 1.02                 1.11
//   512 x 4096 x 7168        0.85                 0.85                 1.25
//
// - Two staging buffers more pay where K is long enough for three stages (+1..2 %): no consumer waits for the store of its first
// half.
// - A cluster of two halves the reads of B from L2: without it 0.93..0.97, and 0.77 at 16384 rows.
// - tile_m rows walked together (group_m 4, 8, 16 clusters' rows): within 2 %; 8 is best on the long shapes.
// - A tile counts by its waves: 7168 columns of 2048 rows are 448 tiles of 256 columns (3.4 waves of 132) or 896 of 128 (6.8).
// - The longest products miss L2 more than cuBLAS: 16384 x 8192 x 14336 reads 7 to 9 GB, cuBLAS (192 x 192) 5; operands: 0.7.
//   Tried, steady: clusters of four (a quarter fewer reads of L2, 10 % more of DRAM) -2 .. -6 %; every other tile's k from the
//   end (DRAM -12 %, other bits) -1 .. -2 %, and with group_m 16, where it helps, as fast as 8 without; loaders that wait for
//   others 8 .. 32 blocks of k behind them: with a look at the others every 0.1 us DRAM 9 -> 4 GB, but 8 % slower; with one every
//   1 .. 4 us about the same DRAM, and no faster.
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
