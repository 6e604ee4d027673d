#include "runtime/reference/tile.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "runtime/reference/kernels.hpp"
#include "runtime/reference/numbers.hpp"

namespace ordo::reference {
namespace {

constexpr float kLog2e = 1.4426950408889634f;

template <DType dtype, class T>
void widen_row(const std::uint16_t* from, std::int64_t count, T* to) {
  for (std::int64_t d = 0; d < count; ++d) to[d] = static_cast<T>(widen<dtype>(from[d]));
}

template <class T>
void widen_rows(DType dtype, const std::uint16_t* from, std::int64_t stride, std::int64_t rows, std::int64_t dim, T* to) {
  for (std::int64_t r = 0; r < rows; ++r) {
    if (dtype == DType::bf16) {
      widen_row<DType::bf16>(from + r * stride, dim, to + r * dim);
    } else {
      widen_row<DType::fp16>(from + r * stride, dim, to + r * dim);
    }
  }
}

bool rows_finite(DType dtype, const std::uint16_t* from, std::int64_t stride, std::int64_t rows, std::int64_t dim) {
  const int exponent = dtype == DType::bf16 ? 0x7f80 : 0x7c00;
  int bad = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t d = 0; d < dim; ++d) bad |= (from[r * stride + d] & exponent) == exponent ? 1 : 0;
  }
  return bad == 0;
}

template <class T>
void transpose(const T* from, std::int64_t rows, std::int64_t dim, std::int64_t row, T* to) {
  std::fill_n(to, dim * row, T{0});
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t d = 0; d < dim; ++d) to[d * row + r] = from[r * dim + d];
  }
}

template <class T>
void absolute(std::vector<T>& x) {
  for (T& value : x) value = std::fabs(value);
}

// The float kernels compute every pair of a tile; rows that see nothing are cleared behind them.
void rounded_probabilities(DType dtype, const Probabilities& x, const std::vector<std::uint8_t>* dead) {
  if (dtype == DType::bf16) {
    kernels().probabilities_bf16(x);
  } else {
    kernels().probabilities_fp16(x);
  }
  if (dead == nullptr) return;
  for (std::int64_t c = 0; c < x.keys; ++c) {
    for (std::int64_t r = 0; r < x.row; ++r) {
      if ((*dead)[static_cast<std::size_t>(r)]) x.s[c * x.row + r] = x.dp[c * x.row + r] = 0;
    }
  }
}

}  // namespace

template <class T>
std::vector<T> row_deltas(const Task& task, Workers& workers) {
  const AttentionBackward& problem = task.problem;
  std::vector<T> deltas(task.inputs.lse.size());
  const DType dtype = problem.dtype;
  workers.run(problem.batch * problem.heads, [&](std::int64_t index, int) {
    const std::int64_t b = index / problem.heads, h = index % problem.heads;
    for (std::int64_t row = 0; row < problem.seqlen_q; ++row) {
      const auto at = static_cast<std::size_t>(task.lse_index(b, row, h));
      if (sees_nothing(task.inputs.lse[at])) continue;
      const std::int64_t from = task.q_offset(b, row, h);
      T sum = 0;
      for (std::int64_t d = from; d < from + problem.head_dim; ++d) {
        const auto d_o = static_cast<T>(widen(dtype, task.inputs.d_o[static_cast<std::size_t>(d)]));
        const auto o = static_cast<T>(widen(dtype, task.inputs.o[static_cast<std::size_t>(d)]));
        sum = std::fma(d_o, task.magnitudes ? std::copysign(o, d_o) : o, sum);
      }
      deltas[at] = sum;
    }
  });
  return deltas;
}

template <class T>
Tile<T>::Tile(const Task& task, const std::vector<T>& delta)
    : task_(task),
      all_delta_(delta),
      dim_(task.problem.head_dim),
      row_((task.geometry.tile_q + kColumns - 1) / kColumns * kColumns) {
  const auto sized = [](std::int64_t a, std::int64_t b) { return std::vector<T>(static_cast<std::size_t>(a * b)); };
  const std::int64_t rows = task.geometry.tile_q, keys = task.geometry.unit_kv;
  q_ = sized(rows, dim_), d_o_ = sized(rows, dim_), k_ = sized(keys, dim_), v_ = sized(keys, dim_);
  q_transposed_ = sized(dim_, row_), d_o_transposed_ = sized(dim_, row_);
  p_ = sized(keys, row_), ds_ = sized(keys, row_), partial_ = sized(rows, dim_);
  lse_ = sized(row_, 1), delta_ = sized(row_, 1);
  dead_.resize(static_cast<std::size_t>(row_));
  first_visible_.resize(static_cast<std::size_t>(keys));
  if (task.visibility != nullptr) pairs_.resize(static_cast<std::size_t>(keys * row_));
}

template <class T>
void Tile<T>::make_probabilities() {
  if constexpr (std::is_same_v<T, float>) {
    rounded_probabilities(
        task_.problem.dtype,
        {p_.data(), ds_.data(), row_, keys_, lse_.data(), delta_.data(), first_visible_.data(), task_.scale * kLog2e},
        dead_rows_ ? &dead_ : nullptr);
    if (task_.visibility != nullptr && masked_) hide_pairs();
  } else {
    const T sign = task_.magnitudes ? 1 : -1;
    for (std::int64_t c = 0; c < keys_; ++c) {
      for (std::int64_t r = 0; r < rows_; ++r) {
        T& p = p_[static_cast<std::size_t>(c * row_ + r)];
        T& ds = ds_[static_cast<std::size_t>(c * row_ + r)];
        const bool seen = task_.visibility != nullptr ? pairs_[static_cast<std::size_t>(c * row_ + r)] != 0
                                                      : r >= first_visible_[static_cast<std::size_t>(c)];
        const bool visible = seen && !dead_[static_cast<std::size_t>(r)];
        p = visible ? std::exp(T{task_.scale} * p - lse_[static_cast<std::size_t>(r)]) : 0;
        ds = visible ? p * (ds + sign * delta_[static_cast<std::size_t>(r)]) : 0;
      }
    }
  }
}

template <class T>
void Tile<T>::run(const Step& step, T* dk, T* dv) {
  rows_ = std::min<std::int64_t>(task_.geometry.tile_q, task_.problem.seqlen_q - task_.first_row(step));
  keys_ = std::min<std::int64_t>(task_.geometry.unit_kv, task_.problem.seqlen_k - task_.first_key(step));
  find_visible(step);
  if (hidden_) {
    std::fill(partial_.begin(), partial_.end(), T{0});
    return;
  }
  load(step);
  load_row_statistics(step);
  transpose(q_.data(), rows_, dim_, row_, q_transposed_.data());
  transpose(d_o_.data(), rows_, dim_, row_, d_o_transposed_.data());
  std::fill(p_.begin(), p_.end(), T{0});
  std::fill(ds_.begin(), ds_.end(), T{0});
  std::fill(partial_.begin(), partial_.end(), T{0});

  // S = Q K^T and dP = dO V^T, both transposed, so that the vectors run over queries.
  accumulate(Product<T>{p_.data(), row_, k_.data(), dim_, 1, q_transposed_.data(), row_, keys_, row_, dim_});
  if (task_.magnitudes) take_magnitudes();
  accumulate(Product<T>{ds_.data(), row_, v_.data(), dim_, 1, d_o_transposed_.data(), row_, keys_, row_, dim_});
  make_probabilities();
  multiply(step, dk, dv);
}

template <class T>
void Tile<T>::load(const Step& step) {
  const AttentionBackward& problem = task_.problem;
  const std::int64_t b = task_.batch(step);
  const std::int64_t q_from = task_.q_offset(b, task_.first_row(step), task_.head(step));
  const std::int64_t k_from = task_.k_offset(b, task_.first_key(step), task_.kv_head(step));
  widen_rows(problem.dtype, task_.inputs.q.data() + q_from, task_.q_stride(), rows_, dim_, q_.data());
  widen_rows(problem.dtype, task_.inputs.d_o.data() + q_from, task_.q_stride(), rows_, dim_, d_o_.data());
  widen_rows(problem.dtype, task_.inputs.k.data() + k_from, task_.k_stride(), keys_, dim_, k_.data());
  widen_rows(problem.dtype, task_.inputs.v.data() + k_from, task_.k_stride(), keys_, dim_, v_.data());
}

// delta and LSE of the tile's rows; a row that sees nothing gets zeros for Q and dO, so that nothing of it reaches dK and dV.
template <class T>
void Tile<T>::load_row_statistics(const Step& step) {
  dead_rows_ = false;
  for (std::int64_t r = 0; r < row_; ++r) {
    const auto at = static_cast<std::size_t>(r);
    const auto from = static_cast<std::size_t>(task_.lse_index(task_.batch(step), task_.first_row(step) + r, task_.head(step)));
    dead_[at] = r >= rows_ || sees_nothing(task_.inputs.lse[from]);
    if (!dead_[at]) {
      const float lse = task_.inputs.lse[from];
      lse_[at] = std::is_same_v<T, float> ? static_cast<T>(-lse * kLog2e) : static_cast<T>(lse);
      delta_[at] = all_delta_[from];
      continue;
    }
    lse_[at] = std::is_same_v<T, float> ? -std::numeric_limits<T>::infinity() : T{0};
    delta_[at] = 0;
    if (r >= rows_) continue;
    dead_rows_ = true;
    std::fill_n(q_.data() + r * dim_, dim_, T{0});
    std::fill_n(d_o_.data() + r * dim_, dim_, T{0});
  }
}

template <class T>
bool Tile<T>::operands_finite(const Step& step) const {
  const std::int64_t b = task_.batch(step);
  const std::int64_t q_from = task_.q_offset(b, task_.first_row(step), task_.head(step));
  const std::int64_t k_from = task_.k_offset(b, task_.first_key(step), task_.kv_head(step));
  const DType dtype = task_.problem.dtype;
  return rows_finite(dtype, task_.inputs.q.data() + q_from, task_.q_stride(), rows_, dim_) &&
         rows_finite(dtype, task_.inputs.d_o.data() + q_from, task_.q_stride(), rows_, dim_) &&
         rows_finite(dtype, task_.inputs.k.data() + k_from, task_.k_stride(), keys_, dim_);
}

template <class T>
void Tile<T>::find_visible(const Step& step) {
  if (task_.visibility != nullptr) return find_visible_by_expression(step);
  // Query i sees key j when j <= i + seqlen_k - seqlen_q.
  const std::int64_t diagonal = task_.first_key(step) - (task_.problem.seqlen_k - task_.problem.seqlen_q) - task_.first_row(step);
  for (std::int64_t c = 0; c < keys_; ++c) {
    const std::int64_t first = task_.geometry.causal ? std::clamp<std::int64_t>(diagonal + c, 0, rows_) : 0;
    first_visible_[static_cast<std::size_t>(c)] = static_cast<std::int32_t>(first);
  }
  masked_ = first_visible_[static_cast<std::size_t>(keys_ - 1)] > 0;
}

template <class T>
void Tile<T>::find_visible_by_expression(const Step& step) {
  std::int64_t seen = 0;
  for (std::int64_t c = 0; c < keys_; ++c) {
    std::uint8_t* row = pairs_.data() + c * row_;
    task_.visibility->row(task_.batch(step), task_.head(step), task_.first_key(step) + c, task_.first_row(step), rows_, row);
    for (std::int64_t r = 0; r < rows_; ++r) seen += row[r];
  }
  masked_ = seen < keys_ * rows_;
  hidden_ = seen == 0;
}

// The float kernels compute every pair of a tile; those that the mask hides are cleared behind them.
template <class T>
void Tile<T>::hide_pairs() {
  for (std::int64_t c = 0; c < keys_; ++c) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      const auto at = static_cast<std::size_t>(c * row_ + r);
      if (pairs_[at] == 0) p_[at] = ds_[at] = 0;
    }
  }
}

template <class T>
void Tile<T>::take_magnitudes() {
  absolute(q_), absolute(d_o_), absolute(d_o_transposed_), absolute(k_), absolute(v_);
}

template <class T>
void Tile<T>::multiply(const Step& step, T* dk, T* dv) {
  const std::int64_t to = task_.k_offset(task_.batch(step), task_.first_key(step), task_.kv_head(step));
  if ((masked_ || dead_rows_) && !operands_finite(step)) return multiply_visible(dk + to, dv + to);
  // dV += P^T dO, dK += dS^T Q, partial dQ = dS K
  accumulate(Product<T>{dv + to, task_.k_stride(), p_.data(), row_, 1, d_o_.data(), dim_, keys_, dim_, rows_});
  accumulate(Product<T>{dk + to, task_.k_stride(), ds_.data(), row_, 1, q_.data(), dim_, keys_, dim_, rows_});
  accumulate(Product<T>{partial_.data(), dim_, ds_.data(), 1, row_, k_.data(), dim_, rows_, dim_, keys_});
}

// The same three products without the hidden pairs, whose zeros would turn an infinity into NaN and pass a NaN on.
template <class T>
void Tile<T>::multiply_visible(T* dk_rows, T* dv_rows) {
  if (task_.visibility != nullptr) return multiply_pairs(dk_rows, dv_rows);
  for (std::int64_t c = 0; c < keys_; ++c) {
    const std::int64_t first = first_visible_[static_cast<std::size_t>(c)], from = c * row_ + first;
    const std::int64_t count = rows_ - first;
    accumulate(
        Product<T>{dv_rows + c * task_.k_stride(), 0, p_.data() + from, 0, 1, d_o_.data() + first * dim_, dim_, 1, dim_, count});
    accumulate(
        Product<T>{dk_rows + c * task_.k_stride(), 0, ds_.data() + from, 0, 1, q_.data() + first * dim_, dim_, 1, dim_, count});
  }
  for (std::int64_t r = 0; r < rows_; ++r) {
    if (dead_[static_cast<std::size_t>(r)]) continue;
    // Keys become visible in order, so a row sees the first `seen` of them.
    const auto seen = std::upper_bound(first_visible_.begin(), first_visible_.begin() + keys_, static_cast<std::int32_t>(r)) -
                      first_visible_.begin();
    accumulate(Product<T>{partial_.data() + r * dim_, 0, ds_.data() + r, 0, row_, k_.data(), dim_, 1, dim_, seen});
  }
}

// The same for a mask that follows no order: pair by pair.
template <class T>
void Tile<T>::multiply_pairs(T* dk_rows, T* dv_rows) {
  for (std::int64_t c = 0; c < keys_; ++c) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      const std::int64_t at = c * row_ + r;
      if (pairs_[static_cast<std::size_t>(at)] == 0 || dead_[static_cast<std::size_t>(r)]) continue;
      T *dv = dv_rows + c * task_.k_stride(), *dk = dk_rows + c * task_.k_stride();
      accumulate(Product<T>{dv, 0, p_.data() + at, 0, 1, d_o_.data() + r * dim_, dim_, 1, dim_, 1});
      accumulate(Product<T>{dk, 0, ds_.data() + at, 0, 1, q_.data() + r * dim_, dim_, 1, dim_, 1});
      accumulate(Product<T>{partial_.data() + r * dim_, 0, ds_.data() + at, 0, 1, k_.data() + c * dim_, dim_, 1, dim_, 1});
    }
  }
}

template std::vector<float> row_deltas(const Task&, Workers&);
template std::vector<double> row_deltas(const Task&, Workers&);
template class Tile<float>;
template class Tile<double>;

}  // namespace ordo::reference
