// Measured times of plans, as ordo_bench_suite and `ordo calibrate` write them, and how well predictions agree with them.
#pragma once

#include <string_view>
#include <vector>

#include "codegen/cost/constants.hpp"
#include "ordo/plan.hpp"
#include "ordo/problem.hpp"
#include "ordo/target.hpp"

namespace ordo::cost {

struct Measurement {
  AttentionBackward problem;
  Plan plan;
  double ms = 0;  ///< the whole backward, sustained
};

/// Reads the CSV of tests/bench/results: ordo's rows, by the columns batch, seqlen, heads, kv_heads, ms_median and plan, which
/// name the rest. Lines that start with # and rows of other implementations are skipped. Errors name the line.
ORDO_API Result<std::vector<Measurement>> parse_measurements(std::string_view csv);

/// The measurements of one problem.
struct Cell {
  AttentionBackward problem;
  std::vector<Measurement> rows;
};
/// In order of first appearance.
ORDO_API std::vector<Cell> cells_of(const std::vector<Measurement>& rows);

/// Spearman's rank correlation. Values within `resolution` of each other, relative, are ties and share their mean rank. 1 for
/// fewer than two values or where both sides are all ties, 0 where one is.
double rank_correlation(const std::vector<double>& a, const std::vector<double>& b, double resolution = 0);

/// Times closer than this are not told apart: ascending and descending are mirror images on a full mask, and measure 0.9 % apart
/// in the mean (18 pairs of h200-plans.csv).
inline constexpr double kResolution = 0.01;

/// Predictions against one cell's measurements.
struct Agreement {
  AttentionBackward problem;
  std::size_t candidates = 0;
  double correlation = 1;  ///< of predicted and measured times
  double resolved = 1;     ///< the same with ties within kResolution
  double worst_error = 0;  ///< largest |predicted / measured - 1|
  Plan chosen, best;       ///< predicted fastest, measured fastest
  double loss = 0;         ///< measured time of `chosen` over that of `best`, less 1
};
/// `chosen` is make_plan's where the cell holds it, else the row predicted fastest.
ORDO_API Agreement compare(const Cell& cell, const Target& target, const Constants& constants);

}  // namespace ordo::cost
