// The table of the DASH paper on our cells: TFLOP/s of every schedule in every cell.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ordo/plan.hpp"
#include "ordo/problem.hpp"

namespace ordo::cli {

/// Collects `ordered` timings; of several plans with one schedule in a cell the fastest counts.
class ScheduleTable {
 public:
  void add(const std::string& cell, const AttentionBackward& problem, const Plan& plan, double ms);
  /// CSV: cell, a column a schedule in TFLOP/s of the whole backward (empty where the schedule does not exist for the mask), the
  /// fastest schedule, and the percentage by which it is ahead of ascending.
  [[nodiscard]] std::string csv() const;

 private:
  struct Row {
    std::string cell;
    std::map<Schedule, double> tflops;
  };
  std::vector<Row> rows_;  ///< in the order of the cells
};

}  // namespace ordo::cli
