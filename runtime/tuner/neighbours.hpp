// Times of plans on a problem that was not measured, from problems nearby that were. Pure.
#pragma once

#include <optional>
#include <vector>

#include "ordo/plan.hpp"
#include "ordo/problem.hpp"
#include "ordo/target.hpp"
#include "runtime/tuner/decide.hpp"

namespace ordo::tuner {

/// Problems farther apart say nothing about each other: one size 4 times as large, or all three 2.2 times.
inline constexpr double kFarthest = 2;

struct Neighbour {
  AttentionBackward problem;
  std::vector<Measured> measured;
};

/// How far apart two problems are: Euclidean over the binary logarithms of seqlen_q, seqlen_k and batch * kv_heads. nullopt where
/// no kernel of the one says anything about the other: another head_dim, mask, dtype or group.
ORDO_API std::optional<double> distance(const AttentionBackward& a, const AttentionBackward& b);

/// The predicted time of `plan`, times what the model was off by on the nearest problems that were measured: the geometric mean
/// of measured over predicted, weighted by 1 / distance^2 over at most four neighbours within kFarthest. Of each neighbour counts
/// the fastest plan of the same form (equal but for workers, head_group, shift_stride, the baked sizes and the hash of arrival);
/// where none was measured, the mean of its plans of the same kernel, else of all: so that a plan that nobody measured is neither
/// preferred nor left out for that. nullopt where there is no neighbour.
ORDO_API std::optional<double> interpolate(const AttentionBackward& problem, const Plan& plan, const Target& target,
                                           const std::vector<Neighbour>& neighbours);

}  // namespace ordo::tuner
