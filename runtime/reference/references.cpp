// The fp64 gradients and the straightforward fp32 ones.
#include <utility>

#include "runtime/reference/backward.hpp"
#include "runtime/reference/numbers.hpp"

namespace ordo::reference {
namespace {

ReferenceGradients run_fp64(const AttentionBackward& problem, float scale, const HostInputs& inputs, bool magnitudes,
                            const Progress& progress) {
  const auto visibility = Visibility::of(problem);
  const Task task{problem, inputs, plain_geometry(problem), scale, visibility.get(), magnitudes};
  Workers workers(0);
  Sums<double> sums(inputs);
  // Ascending order cannot stand still: unit 0 never waits, and each other unit waits only for the one before it.
  (void)sum_steps(task, workers, sums, progress);
  for (double& x : sums.dq) x *= double{scale};
  for (double& x : sums.dk) x *= double{scale};
  return {std::move(sums.dq), std::move(sums.dk), std::move(sums.dv)};
}

std::vector<std::uint16_t> round_all(DType dtype, float scale, std::vector<float>& sums) {
  std::vector<std::uint16_t> out(sums.size());
  for (std::size_t i = 0; i < sums.size(); ++i) out[i] = narrow(dtype, sums[i] * scale);
  sums = {};
  return out;
}

}  // namespace

schedule::Geometry plain_geometry(const AttentionBackward& problem) {
  schedule::Geometry g{};
  g.kind = schedule::Kind::ascending;
  g.causal = problem.mask == Mask::causal;
  g.tile_q = 64;
  g.unit_kv = 128;
  g.seqlen_q = static_cast<int>(problem.seqlen_q);
  g.seqlen_k = static_cast<int>(problem.seqlen_k);
  g.q_tiles = schedule::ceil_div(g.seqlen_q, g.tile_q);
  g.units = schedule::ceil_div(g.seqlen_k, g.unit_kv);
  g.walks = static_cast<int>(problem.batch * problem.kv_heads);
  g.heads = static_cast<int>(problem.group());
  g.head_group = g.walks;
  g.wave = g.units;
  g.stride = 1;
  return g;
}

HostGradients round_gradients(const AttentionBackward& problem, float scale, Sums<float>& sums) {
  return {round_all(problem.dtype, scale, sums.dq), round_all(problem.dtype, scale, sums.dk),
          round_all(problem.dtype, 1.0f, sums.dv)};
}

ReferenceGradients gradients_fp64(const AttentionBackward& problem, float scale, const HostInputs& inputs,
                                  const Progress& progress) {
  return run_fp64(problem, scale, inputs, false, progress);
}

ReferenceGradients gradient_magnitudes(const AttentionBackward& problem, float scale, const HostInputs& inputs,
                                       const Progress& progress) {
  return run_fp64(problem, scale, inputs, true, progress);
}

HostGradients gradients_straightforward(const AttentionBackward& problem, float scale, const HostInputs& inputs) {
  const auto visibility = Visibility::of(problem);
  const Task task{problem, inputs, plain_geometry(problem), scale, visibility.get()};
  Workers workers(0);
  Sums<float> sums(inputs);
  (void)sum_steps(task, workers, sums, {});  // cannot stand still, as above
  return round_gradients(problem, scale, sums);
}

}  // namespace ordo::reference
