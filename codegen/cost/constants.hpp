// Every number of the cost model, with where it comes from. Clocks are SM clocks.
//
// "H200 tables" are measurements of hand-written kernels of the same structure on one H200 in the sustained, power-limited regime
// (16384 tokens, hidden size 2048): TFLOP/s at 16k / 4k / 1k for each mask, cluster and schedule. The step and item costs are
// their least-squares split into time per step and time per item.
#pragma once

namespace ordo::cost {

/// SM clock of a busy, power-limited H200 (690 W); it idles into 1.98 GHz.
inline constexpr double kSustainedClock = 1.65e9;

/// One step (one Q tile by the KV tile of a CTA) and the fixed cost of an item (K/V load, pipeline fill, dK/dV store).
struct KernelClocks {
  double step;
  double item;
};
/// head_dim 128, 64x128, cluster of 2 with dS exchange: 617 / 600 / 528 TFLOP/s full.
inline constexpr KernelClocks kCluster128{3520, 9600};
/// head_dim 128, 64x128, one CTA, dQ delayed by a step: 594 / 565 / 504.
inline constexpr KernelClocks kSingle128{3690, 12000};
/// head_dim 64, 64x256, one CTA: 540 / 513 / 424.
inline constexpr KernelClocks kSingle64{4000, 12000};

/// From one unit's add into a dQ tile to the next unit's, release and poll included: the skew of ascending over 63 hops on 2
/// heads x 16k and 15 hops on 8 x 4k (581 against 632, 552 against 600 TFLOP/s).
inline constexpr double kHop = 2560;
/// Of that, the store warp is busy with the tile.
inline constexpr double kStore = 1100;

/// The two int32 adds of `exact` against one fp32 add: 596 / 617 at 16k, 570 / 600 at 4k.
inline constexpr double kExactFactor = 1.045;
/// shift reads Q tiles that no neighbour has just brought into L2: 614, 593, 515 against 623, 604, 533 without order.
inline constexpr double kShiftFactor = 1.016;
/// alternate against no order: 624, 544, 382 against 630, 540, 387; 538 and more against 412 on few heads.
inline constexpr double kAlternateFactor = 1.007;
/// descending on causal pays its skew when it begins and again where the lengths of the items have undone it: 602 against 630 at
/// 16k.
inline constexpr double kDescendingCausalSkews = 2;

/// Part of the datasheet's tensor peak that a step can reach where the tensor cores are the bound (H20); cuBLAS reaches 0.9 or
/// so.
inline constexpr double kTensorEfficiency = 0.9;

/// Preprocess and convert: bytes an element of dQ (O, dO read; fp32 dQ zeroed, read; dQ written) and of K and V for the scales of
/// `exact`.
inline constexpr double kAuxiliaryBytes = 2 + 2 + 4 + 4 + 2;
inline constexpr double kScaleBytes = 2 + 2;
/// 3.5 of an H200's 4.8 TB/s: 0.13 ms for the 16384 x 2048 elements of the tables.
inline constexpr double kMemoryEfficiency = 0.73;
/// One more kernel in the stream.
inline constexpr double kLaunchSeconds = 3e-6;

/// Registers of a consumer thread beside accumulators: descriptors, barriers, softmax scale, loop state.
inline constexpr int kBaseRegisters = 24;
/// Comparing rows and keys with the causal boundary.
inline constexpr int kCausalRegisters = 4;
/// Lengths and strides that are run-time parameters.
inline constexpr int kDynamicShapeRegisters = 4;
/// Scales, poison flag and rounding of `exact`.
inline constexpr int kExactRegisters = 6;

/// Tasks that the planner is willing to simulate for one candidate (about 100 ns each); larger problems use the closed forms.
inline constexpr double kMostSimulatedTasks = 6000;
/// Items that are list-scheduled one by one; what is more is spread evenly.
inline constexpr int kMostListedItems = 8192;

}  // namespace ordo::cost
