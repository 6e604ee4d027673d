// The error bound of the contract.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "runtime/reference/backward.hpp"
#include "runtime/reference/numbers.hpp"

namespace ordo::reference {
namespace {

using Bits = std::vector<std::uint16_t>;

// Frobenius norms over the elements that the reference and the dtype can hold.
struct Distance {
  double error = 0;
  double reference = 0;
  bool missing = false;   ///< finite where the reference is not
  bool spurious = false;  ///< non-finite where the reference is finite
};

// `excused`: elements where it is non-finite may be so in x too, and count for nothing.
Distance distance(DType dtype, const std::vector<double>& reference, const Bits& x, const Bits* excused) {
  Distance out;
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double expected = reference[i], got = double{widen(dtype, x[i])};
    if (!finite(widen(dtype, narrow(dtype, expected)))) {  // NaN, infinite, or beyond the dtype
      out.missing = out.missing || std::isfinite(got);
      continue;
    }
    if (!std::isfinite(got)) {
      out.spurious = out.spurious || excused == nullptr || finite(widen(dtype, (*excused)[i]));
      continue;
    }
    error += (got - expected) * (got - expected);
    norm += expected * expected;
  }
  out.error = std::sqrt(error);
  out.reference = std::sqrt(norm);
  return out;
}

double norm_of_finite(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += std::isfinite(value) ? value * value : 0;
  return std::sqrt(sum);
}

// Computes what the bound needs only when the simplest part of it is not enough: each costs about as much as the reference.
class Comparison {
 public:
  Comparison(const AttentionBackward& problem, float scale, const HostInputs& inputs, NonFinite non_finite,
             const Progress& progress)
      : problem_(problem), scale_(scale), inputs_(inputs), non_finite_(non_finite), progress_(progress) {}

  GradientError check(const std::vector<double>& reference, const Bits& got, Bits HostGradients::* straightforward_part,
                      std::vector<double> ReferenceGradients::* magnitude_part) {
    Distance found = distance(problem_.dtype, reference, got, nullptr);
    double allowed = 5e-3 * found.reference;
    const bool spread_allowed = non_finite_ == NonFinite::may_spread;
    if (found.error > allowed || (found.spurious && !spread_allowed)) {
      const Bits& straightforward = this->straightforward().*straightforward_part;
      found = distance(problem_.dtype, reference, got, &straightforward);
      allowed = std::max(allowed, 1.1 * distance(problem_.dtype, reference, straightforward, nullptr).error);
    }
    if (found.error > allowed) allowed += 1e-6 * norm_of_finite(magnitudes().*magnitude_part);
    const bool misplaced = found.missing || (found.spurious && !spread_allowed);
    GradientError out;
    out.within = !misplaced && found.error <= allowed;
    // A reference of zero has no relative error: report the absolute ones.
    const double unit = found.reference > 0 ? found.reference : 1;
    out.relative = misplaced ? std::numeric_limits<double>::infinity() : found.error / unit;
    out.allowed = allowed / unit;
    return out;
  }

 private:
  const HostGradients& straightforward() {
    if (!straightforward_) straightforward_ = gradients_straightforward(problem_, scale_, inputs_);
    return *straightforward_;
  }
  const ReferenceGradients& magnitudes() {
    if (!magnitudes_) magnitudes_ = gradient_magnitudes(problem_, scale_, inputs_, progress_);
    return *magnitudes_;
  }

  const AttentionBackward& problem_;
  float scale_;
  const HostInputs& inputs_;
  NonFinite non_finite_;
  const Progress& progress_;
  std::optional<HostGradients> straightforward_;
  std::optional<ReferenceGradients> magnitudes_;
};

}  // namespace

CheckResult compare(const AttentionBackward& problem, float scale, const HostInputs& inputs, const HostGradients& got,
                    NonFinite non_finite, const Progress& progress) {
  const ReferenceGradients reference = gradients_fp64(problem, scale, inputs, progress);
  Comparison comparison(problem, scale, inputs, non_finite, progress);
  CheckResult result;
  result.dq = comparison.check(reference.dq, got.dq, &HostGradients::dq, &ReferenceGradients::dq);
  result.dk = comparison.check(reference.dk, got.dk, &HostGradients::dk, &ReferenceGradients::dk);
  result.dv = comparison.check(reference.dv, got.dv, &HostGradients::dv, &ReferenceGradients::dv);
  return result;
}

}  // namespace ordo::reference
