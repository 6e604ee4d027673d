// What is baked into one generated kernel.
//
// Notes on the main kernel, H200, sustained (power-limited, 1.65 .. 1.75 GHz at 690 W). TFLOP/s of the whole backward unless
// said.
//
// Roofline. A step is 10 tile_q tile_kv head_dim FLOP: 2560 clk of tensor cores for 64 x 128 x 128 and for 128 x 128 x 64. ncu,
// head_dim 128 in a cluster: tensor pipe 74 %, shared-memory pipe 75 %, issue slots 38 %, L2 21 %. So shared memory and power
// bound it.
//
// What pays, measured here:
// - Descriptors by addition (sm90/wgmma.cuh): 11 uniform instructions a product down to 5; head_dim 64 +1.5 %, 128 +0.5 %.
// - Masked and unmasked bodies apart: head_dim 128 +1 %. The choice must be one for a warpgroup: with one a warp, dK was wrong.
// - First contributor stores instead of adding to zeros: preprocess writes 134 MB less at 16384 tokens.
// - `ordered` converts dQ inside this kernel (sums come from L2, no third launch): 128 full 16k 603 -> 614, 4k 571 -> 588, 1k 465
// -> 476.
// - State that follows from the step number, scheduler state in shared memory: what keeps every plan free of spills.
//
// What did not:
// - head_dim 64 with 64-row Q tiles, K and V in registers and the next S computed early: 458 against 491 at 4k (power: N = 64
//   instructions do half the work each).
// - head_dim 64 in a cluster exchanging half of dS: 168 .. 262 bytes of spills; 434 against 461 when it was tried with 48.
// - One CTA an item instead of persistent ones: equal.
// - Converting with more than one piece in flight in registers: spills (ptxas keeps the accumulators' registers to themselves).
//
// Open: at head_dim 64 neighbouring KV tiles reach a Q tile one step (~2900 clk) apart, about the length of a hop (poll 750, add
// 1000, release 900), so `ordered` loses 3 % to `atomic` there; at 128 in a cluster they are four steps apart and it loses
// nothing.
#pragma once

#include "schedule/schedule.cuh"

namespace ordo::attention_backward {

enum class Accumulate : int { atomic, ordered, exact };

struct Config {
  bool fp16;  ///< else bf16
  int head_dim;
  bool causal;
  int group;  ///< query heads a KV head
  schedule::Kind schedule;
  Accumulate accumulate;
  int tile_q, tile_kv;
  int stages;
  int cluster;     ///< CTAs of a cluster on neighbouring KV tiles
  int dq_buffers;  ///< dQ staging buffers
  bool static_shape;
  int seqlen_q, seqlen_k, kv_heads, walks;  ///< static_shape only
};

}  // namespace ordo::attention_backward
