#include "codegen/cost/measurements.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>

#include "codegen/cost/model.hpp"

namespace ordo::cost {
namespace {

/// A line's fields; double quotes keep commas together.
std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  std::size_t begin = 0;
  bool quoted = false;
  for (std::size_t i = 0; i <= line.size(); ++i) {
    if (i < line.size() && line[i] == '"') quoted = !quoted;
    if (i < line.size() && (line[i] != ',' || quoted)) continue;
    std::string_view field = line.substr(begin, i - begin);
    if (field.size() >= 2 && field.front() == '"' && field.back() == '"') field = field.substr(1, field.size() - 2);
    fields.push_back(field);
    begin = i + 1;
  }
  return fields;
}

/// A row by its column names.
class Row {
 public:
  Row(const std::map<std::string_view, std::size_t>& columns, std::vector<std::string_view> fields)
      : columns_(columns), fields_(std::move(fields)) {}

  [[nodiscard]] std::string_view text(std::string_view column) const {
    const auto at = columns_.find(column);
    return at == columns_.end() || at->second >= fields_.size() ? std::string_view{} : fields_[at->second];
  }
  template <class Number>
  Result<Number> number(std::string_view column) const {
    const std::string_view field = text(column);
    Number value{};
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    if (field.empty() || error != std::errc{} || end != field.data() + field.size())
      return Error{ErrorCode::invalid_argument, fmt::format("column {} is '{}', no number", column, field)};
    return value;
  }

 private:
  const std::map<std::string_view, std::size_t>& columns_;
  std::vector<std::string_view> fields_;
};

Result<Measurement> read_row(const Row& row) {
  Measurement out;
  auto plan = parse_plan(row.text("plan"));
  if (!plan) return plan.error();
  out.plan = *plan;
  AttentionBackward& p = out.problem;
  p.head_dim = plan->head_dim;
  p.mask = plan->mask;
  p.dtype = plan->dtype;
  for (const auto& [column, field] :
       {std::pair{"batch", &AttentionBackward::batch}, std::pair{"seqlen", &AttentionBackward::seqlen_q},
        std::pair{"seqlen", &AttentionBackward::seqlen_k}, std::pair{"heads", &AttentionBackward::heads},
        std::pair{"kv_heads", &AttentionBackward::kv_heads}}) {
    auto value = row.number<std::int64_t>(column);
    if (!value) return value.error();
    p.*field = *value;
  }
  auto ms = row.number<double>("ms_median");
  if (!ms) return ms.error();
  out.ms = *ms;
  if (!std::isfinite(out.ms) || out.ms <= 0) return Error{ErrorCode::invalid_argument, fmt::format("ms_median is {}", out.ms)};
  if (auto fits = check_fit(p, out.plan); !fits) return fits.error();
  return out;
}

/// Ranks from 1; values within `resolution` of the smallest of their group share the mean of theirs.
std::vector<double> ranks_of(const std::vector<double>& values, double resolution) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t end = i;
    while (end < order.size() && values[order[end]] <= values[order[i]] * (1 + resolution)) ++end;
    for (std::size_t j = i; j < end; ++j) ranks[order[j]] = (static_cast<double>(i + end) + 1) / 2;
    i = end;
  }
  return ranks;
}

}  // namespace

Result<std::vector<Measurement>> parse_measurements(std::string_view csv) {
  std::vector<Measurement> rows;
  std::map<std::string_view, std::size_t> columns;
  for (std::size_t number = 1; !csv.empty(); ++number) {
    const std::size_t end = std::min(csv.find('\n'), csv.size());
    std::string_view line = csv.substr(0, end);
    csv.remove_prefix(std::min(end + 1, csv.size()));
    while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    std::vector<std::string_view> fields = split(line);
    if (columns.empty()) {
      for (std::size_t i = 0; i < fields.size(); ++i) columns.emplace(fields[i], i);
      for (const char* needed : {"batch", "seqlen", "heads", "kv_heads", "ms_median", "plan"}) {
        if (!columns.contains(needed))
          return Error{ErrorCode::invalid_argument, fmt::format("measurements: line {} names no column '{}'", number, needed)};
      }
      continue;
    }
    const Row row(columns, std::move(fields));
    if (columns.contains("impl") && row.text("impl") != "ordo") continue;
    auto read = read_row(row);
    if (!read) return Error{ErrorCode::invalid_argument, fmt::format("measurements: line {}: {}", number, read.error().message)};
    rows.push_back(*std::move(read));
  }
  if (rows.empty()) return Error{ErrorCode::invalid_argument, "measurements: no row of ordo with a plan"};
  return rows;
}

std::vector<Cell> cells_of(const std::vector<Measurement>& rows) {
  std::vector<Cell> cells;
  for (const Measurement& row : rows) {
    const auto at = std::find_if(cells.begin(), cells.end(), [&](const Cell& cell) { return cell.problem == row.problem; });
    if (at != cells.end())
      at->rows.push_back(row);
    else
      cells.push_back({row.problem, {row}});
  }
  return cells;
}

double rank_correlation(const std::vector<double>& a, const std::vector<double>& b, double resolution) {
  if (a.size() < 2) return 1;
  const std::vector<double> x = ranks_of(a, resolution), y = ranks_of(b, resolution);
  const double mean = (static_cast<double>(a.size()) + 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  if (xx == 0 || yy == 0) return xx == yy ? 1 : 0;
  return xy / std::sqrt(xx * yy);
}

Agreement compare(const Cell& cell, const Target& target, const Constants& constants) {
  Agreement out;
  out.problem = cell.problem;
  out.candidates = cell.rows.size();
  std::vector<double> predicted, measured;
  for (const Measurement& row : cell.rows) {
    predicted.push_back(predict(row.problem, row.plan, target, constants).ms);
    measured.push_back(row.ms);
    out.worst_error = std::max(out.worst_error, std::abs(predicted.back() / row.ms - 1));
  }
  out.correlation = rank_correlation(predicted, measured);
  out.resolved = rank_correlation(predicted, measured, kResolution);
  const auto best = static_cast<std::size_t>(std::min_element(measured.begin(), measured.end()) - measured.begin());
  auto chosen = static_cast<std::size_t>(std::min_element(predicted.begin(), predicted.end()) - predicted.begin());
  PlanRequest request;
  request.accumulate = cell.rows.front().plan.accumulate;
  request.constants = std::make_shared<const Constants>(constants);
  if (const auto choice = make_plan(cell.problem, target, request)) {
    const auto at =
        std::find_if(cell.rows.begin(), cell.rows.end(), [&](const Measurement& row) { return row.plan == choice->plan; });
    if (at != cell.rows.end()) chosen = static_cast<std::size_t>(at - cell.rows.begin());
  }
  out.chosen = cell.rows[chosen].plan;
  out.best = cell.rows[best].plan;
  out.loss = measured[chosen] / measured[best] - 1;
  return out;
}

}  // namespace ordo::cost
