// The numbers of the cost model for one GPU: shipped in codegen/cost/targets/, or fitted by `ordo calibrate`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ordo/error.hpp"
#include "ordo/plan.hpp"
#include "ordo/target.hpp"

namespace ordo::cost {

/// Of one kernel, by head_dim and cluster. Clocks are SM clocks at Constants::clock_hz.
struct KernelConstants {
  int head_dim = 128;
  int cluster = 1;
  double efficiency = 1;  ///< of the step's bound (see StepClocks) that is reached
  double masked = 1;      ///< factor on a step at the edge of the mask: selecting, but hidden blocks left out
  double item = 0;        ///< clocks of an item besides its steps
  double set_item = 0;    ///< clocks more where items wait on later ones, which must all have been taken first
  double hop = 0;         ///< clocks from the end of an add to the start of the next unit's into the same tile
  /// Factors on a step: what the order of visits costs in L2 and in waits that the timeline does not see, against ascending on a
  /// full mask (and descending, which is its mirror image there).
  double shift = 1;
  double ascending_causal = 1, descending_causal = 1, alternate = 1, symmetric_shift = 1;
};

struct Constants {
  std::string target;               ///< the name of the Target that they are for
  std::string origin;               ///< where they come from, in words
  bool measured = false;            ///< else scaled from another GPU
  double clock_hz = 1.68e9;         ///< SM clock while every SM computes, under sustained load
  double max_clock_hz = 1.98e9;     ///< SM clock where power does not limit it
  double clock_exponent = 0.4;      ///< the clock grows with busy^-exponent, up to max_clock_hz
  double tensor_flops = 4096;       ///< bf16 FLOP a clock and SM
  double l2_bytes = 16.7;           ///< a clock and SM, each way
  double add = 1100;                ///< clocks of the adding warp for a dQ tile
  double exact = 1;                 ///< factor on a step: integer sums
  double memory_efficiency = 0.73;  ///< part of the datasheet's bandwidth that preprocess and convert reach
  double sums_in_l2 = 20e6;         ///< bytes of dQ sums in flight that L2 keeps beside everything else
  double missed_bytes = 4;          ///< DRAM traffic an element of dQ costs where twice as many are in flight, or more
  double launch_seconds = 3e-6;     ///< one more kernel in the stream
  double spilled_byte = 1;          ///< clocks a step for a byte that a thread stores and loads
  std::vector<KernelConstants> kernels;

  /// The entry of a plan's kernel. Constants that were parsed have one for every kernel that exists.
  [[nodiscard]] const KernelConstants& kernel(const Plan& plan) const;
};

/// Those shipped for a target; for one given by its SM count those of h200. Thread-safe.
ORDO_API const Constants& shipped_constants(const Target& target);

/// JSON as shipped. Refuses what is missing, unknown, not positive or not finite, and says which key.
ORDO_API Result<Constants> parse_constants(std::string_view json);
ORDO_API std::string to_json(const Constants& constants);

}  // namespace ordo::cost
