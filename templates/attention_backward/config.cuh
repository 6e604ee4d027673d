// What is baked into one generated kernel.
//
// Notes on the main kernel, H200, sustained (power-limited, 1.65 .. 1.75 GHz at 690 W). TFLOP/s of the whole backward unless
// said.
//
// Roofline. A step is 10 tile_q tile_kv head_dim FLOP: 2560 clk of tensor cores for 64 x 128 x 128 and for 64 x 256 x 64. ncu,
// head_dim 128 in a cluster: tensor pipe 72 %, shared-memory pipe 77 %, issue slots 29 %, L2 44 %. So shared memory and power
// bound it: what saves energy pays even where it saves no clocks.
//
// What pays, measured here:
// - head_dim 64 with 256 keys a CTA: half of the dQ adds and of the Q and dO loads of a 128 x 128 tile. Full 16k 501 -> 540, 4k
//   468 -> 513; causal 16k 495 -> 508. The adds to global memory are about a fifth of a kernel's energy at 128 keys.
// - Blocks of 64 keys that see nothing of a Q tile are left out: causal head_dim 64 1k 302 -> 329, 4k 451 -> 466; 128 1k 324
//   -> 349.
// - Two dQ buffers for single CTAs: head_dim 64 full 16k 518 -> 536; a third once dK is staged over dS (next): full 8k 538
//   -> 545.
// - dV leaves before the last dQ, dK over dS: the next item's K and V load earlier. head_dim 64 causal 1k 328 -> 335, 128 full 1k
//   481 -> 486; within 0.5 % at 8k and 16k (turn by turn, three rounds, idle gaps between).
// - Where groups go up and down in turn, conversions follow the downward groups, when all clusters end at once: after upward ones
//   they held up the first items of the next group, and all that wait for those. alternate, head_dim 64 causal 16k 524 -> 541,
//   128 8k 564 -> 582, 32/8 heads 564 -> 574. What waits and conversions still take of the first: 549 without either, and 554
//   with atomic adds.
// - Query heads of one direction walked together (schedule::together_with), so that clusters stay as far apart as they started:
//   32/8 heads 8k 587 -> 598, 32/4 heads 532 -> 591 (turn by turn, four rounds; 32/32: 589). DRAM traffic 1.13 -> 0.53 GB and
//   3.9 -> 0.50, L2 hits 85 -> 92 % and 57 -> 93 %. Before, heads went up and down in turn; all one way, 32/8 took 2.0 GB.
// - Descriptors by addition (sm90/wgmma.cuh): 11 uniform instructions a product down to 5; head_dim 64 +1.5 %, 128 +0.5 %.
// - Masked and unmasked bodies apart: head_dim 128 +1 %. The choice must be one for a warpgroup: with one a warp, dK was wrong.
// - First contributor stores instead of adding to zeros: preprocess writes 134 MB less at 16384 tokens.
// - `ordered` converts dQ inside this kernel (sums come from L2, no third launch): 128 full 16k 603 -> 614, 4k 571 -> 588, 1k 465
//   -> 476.
// - Conversion looks at the semaphores of all its tiles at once: one after another they were most of its time. 128 full 4k 579 ->
//   594, 64 causal 16k 515 -> 528 (waiting for turns costs nothing there: without the waits it was 520).
// - State that follows from the step number, state from item to item in shared memory, thread numbers read anew outside the walk:
//   what keeps every plan free of spills.
//
// What did not:
// - head_dim 64 with 64 x 128 tiles, K and V in registers and the next S computed early: 458 against 491 at 4k.
// - head_dim 64 with 128 x 128 tiles: dQ one step late (200 bytes of spills), or after dK without a barrier between the
//   warpgroups, or warpgroups taking turns to begin a step: all within 2 % of the barrier. Power bound them, not waiting.
// - Warpgroups taking turns to begin a step at 64 x 256 (+1 % full 16k, -1 % at 4k, spills) and at head_dim 128 (equal).
// - head_dim 64 in a cluster exchanging half of dS, 128 x 128: 434 against 461.
// - L2 hints (dQ, or all, to be kept; the last use, K and V to go first): within 0.9 % either way; 32/8 heads +1.3 % before they
//   turned round, nothing since. Q and dO to go first: worse by 2 to 4 %.
// - Larger groups of heads, so that the longest items of all start first: head_dim 128 causal 16k 614 -> 606 (descending, 4
//   heads), 8k 588 -> 580; head_dim 64 16k equal. They leave L2.
// - One CTA an item instead of persistent ones: equal.
// - Conversions between items in place of after a group's: +1 .. 2 % at 512 for ascending and descending, -1 .. -2 % where items
//   wait for each other. Right after downward groups: equal, or -1 %. In pieces half as large: -2 % at 512. Giving up the sums in
//   L2 once they are converted (discard.L2): equal.
// - Not built, for what counting says: Q tiles of 80 or 96 rows, which leave no room (a cluster takes 231,080 of 232,448 bytes,
//   and 16 rows more of two stages of Q and dO are 16,384); exponentials in 16-bit pairs, which save 16 of some 575 instructions
//   a step and thread where issue slots are 30 % busy, and would round P before dS.
// - static_shape leaves the loop over steps as it is (head_dim 128 full 1151 instructions in both; causal 1161 and 1155) and
//   shortens what lies around it by 5 %: 0.2 % faster over the 27 cells, at most 1 % (512). The tuner tries it; the planner,
//   whose kernels serve all lengths, does not.
// - Converting with more than one piece in flight in registers: spills (ptxas keeps the accumulators' registers to themselves).
#pragma once

#include "schedule/schedule.cuh"

namespace ordo::attention_backward {

enum class Accumulate : int { atomic, ordered, exact };

struct Config {
  bool fp16;  ///< else bf16
  int head_dim;
  bool causal;
  bool mask_expression;  ///< the mask is visible(), which the generator writes; then not causal
  bool mask_reads_head;  ///< visible() looks at head or batch
  int group;             ///< query heads a KV head
  schedule::Kind schedule;
  Accumulate accumulate;
  int tile_q, tile_kv;
  int stages;
  int cluster;             ///< CTAs of a cluster on neighbouring KV tiles
  int dq_buffers;          ///< dQ staging buffers
  bool state_in_consumer;  ///< consumers work out their Q tiles and turns themselves; else the loader tells them
  int consumer_registers;  ///< setmaxnreg; 0: see consumer_registers_of
  bool static_shape;
  int seqlen_q, seqlen_k, kv_heads, walks;  ///< static_shape only
  bool measure_stalls = false;              ///< clock reads around the waits for turns, for debugging
};

}  // namespace ordo::attention_backward
