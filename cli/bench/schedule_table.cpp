#include "cli/bench/schedule_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace ordo::cli {
namespace {

constexpr std::array kTableColumns{Schedule::ascending,       Schedule::descending, Schedule::shift,
                                   Schedule::symmetric_shift, Schedule::alternate,  Schedule::arrival};

}  // namespace

void ScheduleTable::add(const std::string& cell, const AttentionBackward& problem, const Plan& plan, double ms) {
  if (plan.accumulate != Accumulate::ordered) return;
  auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& one) { return one.cell == cell; });
  if (row == rows_.end()) row = rows_.insert(rows_.end(), {cell, {}});
  double& tflops = row->tflops[plan.schedule];
  tflops = std::max(tflops, problem.flops() / ms * 1e-9);
}

std::string ScheduleTable::csv() const {
  std::string out = "cell";
  for (const Schedule schedule : kTableColumns) out += fmt::format(",{}", to_string(schedule));
  out += ",fastest,ahead_of_ascending_percent\n";
  for (const Row& row : rows_) {
    out += row.cell;
    for (const Schedule schedule : kTableColumns) {
      const auto found = row.tflops.find(schedule);
      out += found == row.tflops.end() ? "," : fmt::format(",{:.1f}", found->second);
    }
    const auto best =
        std::max_element(row.tflops.begin(), row.tflops.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto ascending = row.tflops.find(Schedule::ascending);
    const std::string ahead =
        ascending == row.tflops.end() ? "" : fmt::format("{:.1f}", (best->second / ascending->second - 1) * 100);
    out += fmt::format(",{},{}\n", to_string(best->first), ahead);
  }
  return out;
}

}  // namespace ordo::cli
