#include "codegen/cost/fit.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "codegen/cost/model.hpp"

namespace ordo::cost {
namespace {

using Vector = std::vector<double>;

/// What the fit may move: a constant, and by how much (in logarithms) it may differ from its start before that counts as one.
struct Parameter {
  double* value;
  const KernelConstants* kernel;  ///< whose it is; null: of all
  double start;
  double spread;
};

std::vector<Parameter> parameters_of(Constants& constants) {
  std::vector<Parameter> out;
  const auto add = [&out](double& value, const KernelConstants* kernel, double spread) {
    if (value > 0) out.push_back({&value, kernel, value, spread});
  };
  add(constants.memory_efficiency, nullptr, 0.3);
  add(constants.exact, nullptr, 0.1);
  add(constants.missed_bytes, nullptr, 0.5);
  for (KernelConstants& kernel : constants.kernels) {
    add(kernel.efficiency, &kernel, 0.3);
    add(kernel.masked, &kernel, 0.1);
    add(kernel.item, &kernel, 0.5);
    add(kernel.set_item, &kernel, 0.7);
    add(kernel.hop, &kernel, 0.3);
    add(kernel.shift, &kernel, 0.03);
    add(kernel.ascending_causal, &kernel, 0.3);
    add(kernel.descending_causal, &kernel, 0.03);
    add(kernel.alternate, &kernel, 0.03);
    add(kernel.symmetric_shift, &kernel, 0.03);
  }
  return out;
}

constexpr double kLevelSigma = 0.02;   ///< of the mean of a problem's rows
constexpr double kOrderSigma = 0.005;  ///< of a row against that mean
constexpr double kNoisyMs = 0.4;       ///< a launch this short is timed half as well
constexpr double kFarRow = 0.1;  ///< rows this much slower than their problem's best count half, and so on: nobody takes them

/// Weighted residuals: a problem's mean, its rows against the mean, and the priors.
class Residuals {
 public:
  Residuals(const std::vector<Measurement>& rows, const Target& target, const Constants& constants)
      : cells_(cells_of(rows)), target_(target), constants_(constants) {}

  /// Logarithms of predicted over measured, cell after cell. With `kernel` only its rows are predicted anew, the others are those
  /// of `before`.
  [[nodiscard]] Vector errors(const KernelConstants* kernel, const Vector& before) const {
    Vector out;
    for (const Cell& cell : cells_)
      for (const Measurement& row : cell.rows) {
        const bool stays = kernel != nullptr && &constants_.kernel(row.plan) != kernel;
        out.push_back(stays ? before[out.size()] : std::log(predict(row.problem, row.plan, target_, constants_).ms / row.ms));
      }
    return out;
  }

  [[nodiscard]] Vector operator()(const Vector& errors, const std::vector<Parameter>& parameters) const {
    Vector out;
    std::size_t next = 0;
    for (const Cell& cell : cells_) {
      double best = cell.rows.front().ms, mean = 0, weights = 0;
      for (const Measurement& row : cell.rows) best = std::min(best, row.ms);
      const auto weight = [&](const Measurement& row) { return 1 / (1 + (row.ms / best - 1) / kFarRow); };
      for (std::size_t i = 0; i < cell.rows.size(); ++i) {
        mean += weight(cell.rows[i]) * errors[next + i];
        weights += weight(cell.rows[i]);
      }
      mean /= weights;
      out.push_back(mean / kLevelSigma);
      const double sigma = kOrderSigma * (1 + kNoisyMs / best);
      for (const Measurement& row : cell.rows) out.push_back(weight(row) * (errors[next++] - mean) / sigma);
    }
    for (const Parameter& p : parameters) out.push_back(std::log(*p.value / p.start) / p.spread);
    return out;
  }

 private:
  std::vector<Cell> cells_;
  const Target& target_;
  const Constants& constants_;
};

double sum_of_squares(const Vector& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return sum;
}

/// Solves A x = b for a symmetric positive definite A (row-major) by Cholesky; false where it is not.
bool solve(std::vector<Vector> a, Vector& x) {
  const std::size_t n = x.size();
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t k = 0; k < j; ++k) a[j][j] -= a[j][k] * a[j][k];
    if (a[j][j] <= 0) return false;
    a[j][j] = std::sqrt(a[j][j]);
    for (std::size_t i = j + 1; i < n; ++i) {
      for (std::size_t k = 0; k < j; ++k) a[i][j] -= a[i][k] * a[j][k];
      a[i][j] /= a[j][j];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) x[i] -= a[i][k] * x[k];
    x[i] /= a[i][i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) x[i] -= a[k][i] * x[k];
    x[i] /= a[i][i];
  }
  return true;
}

/// Columns of the Jacobian by forward differences in the logarithm.
std::vector<Vector> jacobian(const Residuals& residuals, const std::vector<Parameter>& parameters, const Vector& errors,
                             const Vector& at) {
  constexpr double kStep = 0.01;
  std::vector<Vector> columns;
  for (const Parameter& p : parameters) {
    const double kept = *p.value;
    *p.value = kept * std::exp(kStep);
    Vector column = residuals(residuals.errors(p.kernel, errors), parameters);
    *p.value = kept;
    for (std::size_t i = 0; i < column.size(); ++i) column[i] = (column[i] - at[i]) / kStep;
    columns.push_back(std::move(column));
  }
  return columns;
}

/// One damped step; true if it improved the fit by a thousandth.
bool improve(const Residuals& residuals, const std::vector<Parameter>& parameters, double& damping) {
  const Vector errors = residuals.errors(nullptr, {});
  const Vector at = residuals(errors, parameters);
  const std::vector<Vector> j = jacobian(residuals, parameters, errors, at);
  const std::size_t n = parameters.size();
  std::vector<Vector> normal(n, Vector(n));
  Vector gradient(n);
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t i = 0; i < at.size(); ++i) gradient[a] -= j[a][i] * at[i];
    for (std::size_t b = 0; b < n; ++b)
      for (std::size_t i = 0; i < at.size(); ++i) normal[a][b] += j[a][i] * j[b][i];
  }
  Vector kept;
  for (const Parameter& p : parameters) kept.push_back(*p.value);
  const double before = sum_of_squares(at);
  constexpr int kMostDampings = 6;
  for (int attempt = 0; attempt < kMostDampings; ++attempt, damping *= 5) {
    std::vector<Vector> damped = normal;
    for (std::size_t a = 0; a < n; ++a) damped[a][a] *= 1 + damping;
    Vector step = gradient;
    if (!solve(std::move(damped), step)) continue;
    for (std::size_t a = 0; a < n; ++a) *parameters[a].value = kept[a] * std::exp(std::clamp(step[a], -0.5, 0.5));
    const double after = sum_of_squares(residuals(residuals.errors(nullptr, {}), parameters));
    if (after < before) {
      damping = std::max(damping / 10, 1e-6);
      return after < before * 0.999;
    }
    for (std::size_t a = 0; a < n; ++a) *parameters[a].value = kept[a];
  }
  return false;
}

/// To four digits, so that a file is readable and its difference from another says something.
double rounded(double value) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "%.4g", value);
  return std::strtod(text, nullptr);
}

}  // namespace

Result<Fit> fit(const std::vector<Measurement>& rows, const Target& target, const Constants& start, const std::string& origin) {
  if (rows.empty()) return Error{ErrorCode::invalid_argument, "there are no measurements to fit the cost model to"};
  Fit out;
  Constants& constants = out.constants;
  constants = start;
  const std::vector<Parameter> parameters = parameters_of(constants);
  const Residuals residuals(rows, target, constants);
  constexpr int kMostSteps = 25;
  double damping = 1e-3;
  for (int step = 0; step < kMostSteps && improve(residuals, parameters, damping);) ++step;
  for (const Parameter& p : parameters) *p.value = rounded(*p.value);
  constants.target = target.name;
  constants.origin = origin;
  constants.measured = true;
  out.rows = rows.size();
  Vector errors;
  for (const Measurement& row : rows)
    errors.push_back(std::abs(predict(row.problem, row.plan, target, constants).ms / row.ms - 1));
  std::sort(errors.begin(), errors.end());
  out.median_error = errors[errors.size() / 2];
  out.worst_error = errors.back();
  return out;
}

}  // namespace ordo::cost
