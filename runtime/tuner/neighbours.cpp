#include "runtime/tuner/neighbours.hpp"

#include <algorithm>
#include <cmath>

#include "codegen/cost/model.hpp"

namespace ordo::tuner {
namespace {

constexpr std::size_t kMostNeighbours = 4;

bool same_form(Plan a, Plan b) {
  if (a.static_shape.has_value() != b.static_shape.has_value()) return false;
  a.workers = b.workers;
  a.head_group = b.head_group;
  a.shift_stride = b.shift_stride;
  a.static_shape = b.static_shape;
  if (a.arrival && b.arrival) a.arrival->hash = b.arrival->hash;  // of a table that follows from the lengths
  return a == b;
}

/// The model's constants are by kernel, and so are most of its errors.
bool same_kernel(const Plan& a, const Plan& b) { return a.cluster == b.cluster && a.accumulate == b.accumulate; }

/// log(measured / predicted) of a measured plan; nullopt where it does not fit its problem.
std::optional<double> log_ratio(const Neighbour& neighbour, const Measured& measured, const Target& target) {
  if (!check_fit(neighbour.problem, measured.plan)) return std::nullopt;
  return std::log(measured.ms() / cost::predict(neighbour.problem, measured.plan, target).ms);
}

/// The mean over the plans that `like` holds for; nullopt where there is none.
template <class Like>
std::optional<double> mean_ratio(const Neighbour& neighbour, const Target& target, const Like& like) {
  double sum = 0;
  int count = 0;
  for (const Measured& measured : neighbour.measured) {
    if (!like(measured.plan)) continue;
    if (const auto ratio = log_ratio(neighbour, measured, target)) {
      sum += *ratio;
      ++count;
    }
  }
  return count == 0 ? std::nullopt : std::optional(sum / count);
}

/// log(measured / predicted): of the fastest plan of that form; else what is typical there, of the same kernel, else of all.
std::optional<double> correction(const Neighbour& neighbour, const Plan& plan, const Target& target) {
  const Measured* fastest = nullptr;
  for (const Measured& measured : neighbour.measured)
    if (same_form(measured.plan, plan) && (fastest == nullptr || measured.ms() < fastest->ms())) fastest = &measured;
  if (fastest != nullptr) return log_ratio(neighbour, *fastest, target);
  if (const auto kernel = mean_ratio(neighbour, target, [&](const Plan& other) { return same_kernel(other, plan); }))
    return kernel;
  return mean_ratio(neighbour, target, [](const Plan&) { return true; });
}

}  // namespace

std::optional<double> distance(const AttentionBackward& a, const AttentionBackward& b) {
  if (a.head_dim != b.head_dim || a.mask != b.mask || a.dtype != b.dtype || a.group() != b.group()) return std::nullopt;
  const auto octaves = [](std::int64_t x, std::int64_t y) { return std::log2(static_cast<double>(x) / static_cast<double>(y)); };
  return std::hypot(octaves(a.seqlen_q, b.seqlen_q), octaves(a.seqlen_k, b.seqlen_k),
                    octaves(a.batch * a.kv_heads, b.batch * b.kv_heads));
}

std::optional<double> interpolate(const AttentionBackward& problem, const Plan& plan, const Target& target,
                                  const std::vector<Neighbour>& neighbours) {
  std::vector<std::pair<double, double>> known;  // distance, correction
  for (const Neighbour& neighbour : neighbours) {
    const auto far = distance(problem, neighbour.problem);
    if (!far || *far > kFarthest) continue;
    if (const auto log_ratio = correction(neighbour, plan, target)) known.emplace_back(*far, *log_ratio);
  }
  if (known.empty()) return std::nullopt;
  std::sort(known.begin(), known.end());
  known.resize(std::min(known.size(), kMostNeighbours));
  double sum = 0, weights = 0;
  for (const auto& [far, log_ratio] : known) {
    const double weight = 1 / (far * far + 1e-6);
    sum += weight * log_ratio;
    weights += weight;
  }
  return cost::predict(problem, plan, target).ms * std::exp(sum / weights);
}

}  // namespace ordo::tuner
