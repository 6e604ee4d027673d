// One step of attention backward on the CPU: a KV unit meets a Q tile.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "ordo/problem.hpp"
#include "runtime/reference/attention.hpp"
#include "runtime/reference/traverse.hpp"
#include "runtime/reference/visibility.hpp"
#include "templates/schedule/schedule.cuh"

namespace ordo::reference {

/// What the steps of one run share.
struct Task {
  const AttentionBackward& problem;
  const HostInputs& inputs;
  schedule::Geometry geometry;
  float scale = 0;
  /// Of the problem's mask; null where the closed form is all there is.
  const Visibility* visibility = nullptr;
  /// fp64 only: sums the magnitudes of all terms instead of the terms (of dP - delta too). How far rounding can reach.
  bool magnitudes = false;
  const ArrivalTable* table = nullptr;  ///< of a plan with schedule arrival

  [[nodiscard]] std::int64_t batch(const Step& step) const { return step.walk / problem.kv_heads; }
  [[nodiscard]] std::int64_t kv_head(const Step& step) const { return step.walk % problem.kv_heads; }
  [[nodiscard]] std::int64_t head(const Step& step) const { return kv_head(step) * problem.group() + step.head; }
  [[nodiscard]] std::int64_t first_row(const Step& step) const { return std::int64_t{step.q} * geometry.tile_q; }
  [[nodiscard]] std::int64_t first_key(const Step& step) const { return std::int64_t{step.unit} * geometry.unit_kv; }
  /// Elements between neighbouring rows of Q (dQ, O, dO) and of K (dK, V, dV).
  [[nodiscard]] std::int64_t q_stride() const { return problem.heads * problem.head_dim; }
  [[nodiscard]] std::int64_t k_stride() const { return problem.kv_heads * problem.head_dim; }
  /// Offset of a row in Q's and in K's layout; index into LSE.
  [[nodiscard]] std::int64_t q_offset(std::int64_t b, std::int64_t row, std::int64_t h) const {
    return ((b * problem.seqlen_q + row) * problem.heads + h) * problem.head_dim;
  }
  [[nodiscard]] std::int64_t k_offset(std::int64_t b, std::int64_t key, std::int64_t h) const {
    return ((b * problem.seqlen_k + key) * problem.kv_heads + h) * problem.head_dim;
  }
  [[nodiscard]] std::int64_t lse_index(std::int64_t b, std::int64_t row, std::int64_t h) const {
    return (b * problem.heads + h) * problem.seqlen_q + row;
  }
};

/// A row whose LSE is infinite sees nothing: P = 0, gradients 0.
inline bool sees_nothing(float lse) {
  return lse == std::numeric_limits<float>::infinity() || lse == -std::numeric_limits<float>::infinity();
}

/// delta = rowsum(dO * O) of every row, in LSE's layout; 0 for rows that see nothing. In T, one fma a term.
template <class T>
std::vector<T> row_deltas(const Task& task, Workers& workers);
extern template std::vector<float> row_deltas(const Task&, Workers&);
extern template std::vector<double> row_deltas(const Task&, Workers&);

/// The operands of one step, and the five products in order. T = float: with the GPU's rounding points. T = double: none.
/// Non-finite values reach exactly the outputs they belong to: where a mask hides a pair its zero is not multiplied with them.
/// One object serves one thread, step after step.
template <class T>
class Tile {
 public:
  /// `delta` as row_deltas() gives it; both outlive the tile.
  Tile(const Task& task, const std::vector<T>& delta);

  /// Adds the step to dK and dV, [batch, seqlen_k, kv_heads, head_dim] of unscaled sums, and leaves the partial of dQ, unscaled,
  /// in partial(): rows() x head_dim.
  void run(const Step& step, T* dk, T* dv);

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] const T* partial() const { return partial_.data(); }

 private:
  void load(const Step& step);
  void load_row_statistics(const Step& step);
  [[nodiscard]] bool operands_finite(const Step& step) const;
  void find_visible(const Step& step);
  void find_visible_by_expression(const Step& step);
  void hide_pairs();
  void make_probabilities();
  void multiply(const Step& step, T* dk, T* dv);
  void multiply_visible(T* dk_rows, T* dv_rows);
  void multiply_pairs(T* dk_rows, T* dv_rows);
  void take_magnitudes();

  const Task& task_;
  const std::vector<T>& all_delta_;
  std::int64_t dim_, row_;  ///< head_dim; padded rows of a Q tile
  std::int64_t rows_ = 0, keys_ = 0;
  bool masked_ = false;                           ///< the mask hides some pair of the tile
  bool hidden_ = false;                           ///< the mask hides every pair of the tile
  bool dead_rows_ = false;                        ///< some row sees nothing
  std::vector<T> q_, d_o_, k_, v_;                ///< [rows or keys][head_dim]
  std::vector<T> q_transposed_, d_o_transposed_;  ///< [head_dim][row_]
  std::vector<T> p_, ds_;                         ///< [keys][row_]: S then P, dP then dS
  std::vector<T> lse_, delta_;                    ///< [row_]; lse_ of floats holds -LSE * log2(e)
  std::vector<std::uint8_t> dead_;                ///< [row_]
  std::vector<std::int32_t> first_visible_;       ///< [keys]: the first row that sees the key
  std::vector<std::uint8_t> pairs_;               ///< [keys][row_], masks by expression: 1 where the pair is visible
  std::vector<T> partial_;
};

extern template class Tile<float>;
extern template class Tile<double>;

}  // namespace ordo::reference
