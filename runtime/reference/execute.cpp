// The executor: a Plan on CPU threads.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "codegen/schedule/proof.hpp"
#include "codegen/schedule/visit_table.hpp"
#include "runtime/reference/backward.hpp"
#include "runtime/reference/exact.hpp"
#include "runtime/reference/numbers.hpp"

namespace ordo::reference {
namespace {

// The grid of dQ's fixed point: r of each row (indexed as LSE) and c of each column of each walk.
struct Grid {
  std::vector<int> rows;
  std::vector<int> columns;  ///< [walk][head_dim]
};

Grid find_grid(const Task& task, Workers& workers, const std::vector<float>& delta) {
  const AttentionBackward& problem = task.problem;
  const std::int64_t dim = problem.head_dim;
  Grid grid{std::vector<int>(task.inputs.lse.size()), std::vector<int>(static_cast<std::size_t>(task.geometry.walks * dim))};
  workers.run(task.geometry.walks, [&](std::int64_t walk, int) {
    const std::int64_t b = walk / problem.kv_heads, kv_head = walk % problem.kv_heads;
    std::vector<float> x(static_cast<std::size_t>(dim)), largest(static_cast<std::size_t>(dim));
    const auto load = [&](const std::vector<std::uint16_t>& from, std::int64_t offset) {
      for (std::int64_t d = 0; d < dim; ++d)
        x[static_cast<std::size_t>(d)] = widen(problem.dtype, from[static_cast<std::size_t>(offset + d)]);
    };
    float norm_v = 0;
    for (std::int64_t key = 0; key < problem.seqlen_k; ++key) {
      load(task.inputs.v, task.k_offset(b, key, kv_head));
      norm_v = std::max(norm_v, exact::norm_over_16(x.data(), dim));
      load(task.inputs.k, task.k_offset(b, key, kv_head));
      for (std::size_t d = 0; d < x.size(); ++d) largest[d] = std::max(largest[d], finite(x[d]) ? std::fabs(x[d]) : 0.0f);
    }
    for (std::size_t d = 0; d < x.size(); ++d)
      grid.columns[static_cast<std::size_t>(walk * dim) + d] = exact::column_exponent(largest[d]);
    for (std::int64_t h = kv_head * problem.group(); h < (kv_head + 1) * problem.group(); ++h) {
      for (std::int64_t row = 0; row < problem.seqlen_q; ++row) {
        load(task.inputs.d_o, task.q_offset(b, row, h));
        const auto index = static_cast<std::size_t>(task.lse_index(b, row, h));
        grid.rows[index] = exact::row_exponent(exact::norm_over_16(x.data(), dim), norm_v, delta[index]);
      }
    }
  });
  return grid;
}

// Calls visit(index into dQ, index into LSE, column of the grid) for every element of dQ.
template <class Visit>
void for_each_element(const Task& task, const Visit& visit) {
  const AttentionBackward& problem = task.problem;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    for (std::int64_t h = 0; h < problem.heads; ++h) {
      const std::int64_t columns = (b * problem.kv_heads + h / problem.group()) * problem.head_dim;
      for (std::int64_t row = 0; row < problem.seqlen_q; ++row) {
        const std::int64_t from = task.q_offset(b, row, h), index = task.lse_index(b, row, h);
        for (std::int64_t d = 0; d < problem.head_dim; ++d) {
          visit(static_cast<std::size_t>(from + d), static_cast<std::size_t>(index), static_cast<std::size_t>(columns + d));
        }
      }
    }
  }
}

// dQ in fixed point.
class FixedPoint {
 public:
  FixedPoint(const Task& task, Grid grid)
      : task_(task), grid_(std::move(grid)), sums_(task.inputs.q.size()), poison_(task.inputs.lse.size()) {}

  void add(const Step& step, const Tile<float>& tile) {
    const std::int64_t b = task_.batch(step), h = task_.head(step), dim = task_.problem.head_dim;
    for (std::int64_t r = 0; r < tile.rows(); ++r) {
      const std::int64_t row = task_.first_row(step) + r;
      const auto index = static_cast<std::size_t>(task_.lse_index(b, row, h));
      const float row_factor = exact::row_factor(grid_.rows[index]);
      std::int32_t* to = sums_.data() + task_.q_offset(b, row, h);
      for (std::int64_t d = 0; d < dim; ++d) {
        const float column_factor = exact::column_factor(grid_.columns[static_cast<std::size_t>(step.walk * dim + d)]);
        const auto fixed = exact::fixed(tile.partial()[r * dim + d], row_factor, column_factor);
        if (fixed) to[d] = exact::add(to[d], *fixed);
        if (!fixed) poison_[index] = 1;
      }
    }
  }

  void to_floats(std::vector<float>& dq) const {
    for_each_element(task_, [&](std::size_t element, std::size_t row, std::size_t column) {
      dq[element] = poison_[row] ? std::numeric_limits<float>::quiet_NaN()
                                 : exact::value(sums_[element], grid_.rows[row], grid_.columns[column]);
    });
  }

 private:
  const Task& task_;
  Grid grid_;
  std::vector<std::int32_t> sums_;    ///< in dQ's layout
  std::vector<std::uint8_t> poison_;  ///< of each row
};

Result<HostGradients> execute_unguarded(const Task& task, const Plan& plan, int threads, const Progress& progress) {
  Workers workers(threads);
  Sums<float> sums(task.inputs);
  if (plan.accumulate != Accumulate::exact) {
    if (auto ran = sum_steps(task, workers, sums, progress); !ran) return ran.error();
    return round_gradients(task.problem, task.scale, sums);
  }
  const std::vector<float> delta = row_deltas<float>(task, workers);
  FixedPoint dq(task, find_grid(task, workers, delta));
  const auto add_dq = [&](const Step& step, const Tile<float>& tile) { dq.add(step, tile); };
  if (auto ran = run_steps(task, workers, delta, sums.dk, sums.dv, add_dq, progress); !ran) return ran.error();
  dq.to_floats(sums.dq);
  return round_gradients(task.problem, task.scale, sums);
}

}  // namespace

Result<void> check_sizes(const AttentionBackward& problem, const HostInputs& inputs) {
  const auto check = [](const char* name, std::size_t found, std::int64_t expected) -> Result<void> {
    if (found == static_cast<std::size_t>(expected)) return {};
    return Error{ErrorCode::invalid_argument, fmt::format("{} has {} elements; the problem needs {}", name, found, expected)};
  };
  const std::int64_t rows = problem.batch * problem.seqlen_q * problem.heads;
  const std::int64_t q = rows * problem.head_dim, k = problem.batch * problem.seqlen_k * problem.kv_heads * problem.head_dim;
  for (const auto& result :
       {check("q", inputs.q.size(), q), check("k", inputs.k.size(), k), check("v", inputs.v.size(), k),
        check("o", inputs.o.size(), q), check("do", inputs.d_o.size(), q), check("lse", inputs.lse.size(), rows)}) {
    if (!result) return result;
  }
  return {};
}

Result<HostGradients> execute(const AttentionBackward& problem, const Plan& plan, float scale, const HostInputs& inputs,
                              int threads, const Progress& progress) {
  if (auto fits = check_fit(problem, plan); !fits) return fits.error();
  if (auto sizes = check_sizes(problem, inputs); !sizes) return sizes.error();
  if (!(scale > 0) || !std::isfinite(scale)) {
    return Error{ErrorCode::invalid_argument, fmt::format("the softmax scale must be positive and finite; it is {}", scale)};
  }
  Result<ArrivalTable> table{ArrivalTable{}};
  if (reads_table(plan)) table = table_of(problem, plan);
  if (!table) return table.error();
  const ArrivalTable* orders = reads_table(plan) ? &*table : nullptr;
  try {
    const auto visibility = Visibility::of(problem);
    return execute_unguarded({problem, inputs, make_geometry(problem, plan), scale, visibility.get(), false, orders}, plan,
                             threads, progress);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::invalid_argument, "not enough memory for the fp32 sums of this problem"};
  }
}

double exact_bound_over_actual(const AttentionBackward& problem, float scale, const HostInputs& inputs,
                               const HostGradients& gradients) {
  const Task task{problem, inputs, plain_geometry(problem), scale};
  Workers workers(0);
  const Grid grid = find_grid(task, workers, row_deltas<float>(task, workers));
  double bounds = 0, actual = 0;
  for_each_element(task, [&](std::size_t element, std::size_t row, std::size_t column) {
    if (sees_nothing(inputs.lse[row])) return;
    const double bound = std::ldexp(double{scale}, grid.rows[row] + grid.columns[column]);
    const auto value = double{widen(problem.dtype, gradients.dq[element])};
    if (!std::isfinite(value)) return;
    bounds += bound * bound;
    actual += value * value;
  });
  return std::sqrt(bounds / actual);
}

}  // namespace ordo::reference
