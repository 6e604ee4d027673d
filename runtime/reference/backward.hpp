// All steps of a schedule over all tiles, with the sums they go into. Shared by the executor and the references.
#pragma once

#include <memory>
#include <vector>

#include "runtime/reference/tile.hpp"
#include "runtime/reference/workers.hpp"

namespace ordo::reference {

/// Unscaled sums in the layouts of the gradients.
template <class T>
struct Sums {
  std::vector<T> dq, dk, dv;

  explicit Sums(const HostInputs& inputs) : dq(inputs.q.size()), dk(inputs.k.size()), dv(inputs.k.size()) {}
};

/// Runs every step. add_dq(step, tile) takes the partial of dQ; for one dQ tile it is called in rank order, never twice at once.
template <class T, class AddDq>
Result<void> run_steps(const Task& task, Workers& workers, const std::vector<T>& delta, std::vector<T>& dk, std::vector<T>& dv,
                       AddDq add_dq, const Progress& progress) {
  std::vector<std::unique_ptr<Tile<T>>> tiles;  // one a thread
  tiles.reserve(static_cast<std::size_t>(workers.count()));
  for (int worker = 0; worker < workers.count(); ++worker) tiles.push_back(std::make_unique<Tile<T>>(task, delta));
  const auto run = [&](const Step& step, int worker) {
    Tile<T>& tile = *tiles[static_cast<std::size_t>(worker)];
    tile.run(step, dk.data(), dv.data());
    add_dq(step, tile);
  };
  return traverse(task.geometry, task.table, static_cast<int>(task.problem.group()), workers, run, progress);
}

/// The same with dQ summed in T.
template <class T>
Result<void> sum_steps(const Task& task, Workers& workers, Sums<T>& sums, const Progress& progress) {
  const auto add_dq = [&](const Step& step, const Tile<T>& tile) {
    const std::int64_t dim = task.problem.head_dim;
    for (std::int64_t r = 0; r < tile.rows(); ++r) {
      T* to = sums.dq.data() + task.q_offset(task.batch(step), task.first_row(step) + r, task.head(step));
      for (std::int64_t d = 0; d < dim; ++d) to[d] += tile.partial()[r * dim + d];
    }
  };
  return run_steps(task, workers, row_deltas<T>(task, workers), sums.dk, sums.dv, add_dq, progress);
}

/// Tiles and order for computations that no plan describes.
schedule::Geometry plain_geometry(const AttentionBackward& problem);

/// dQ, dK and dV of the dtype from unscaled fp32 sums. Frees the sums.
HostGradients round_gradients(const AttentionBackward& problem, float scale, Sums<float>& sums);

/// Sums of the magnitudes of all terms of each gradient, scaled: what rounding errors are relative to.
ReferenceGradients gradient_magnitudes(const AttentionBackward& problem, float scale, const HostInputs& inputs,
                                       const Progress& progress);

}  // namespace ordo::reference
