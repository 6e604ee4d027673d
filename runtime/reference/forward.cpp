// O and LSE in fp64, and random inputs.
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/reference/attention.hpp"
#include "runtime/reference/kernels.hpp"
#include "runtime/reference/numbers.hpp"
#include "runtime/reference/visibility.hpp"
#include "runtime/reference/workers.hpp"

namespace ordo::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kTileQ = 64;  // a multiple of kColumns
constexpr std::int64_t kTileK = 128;

// Some rows of one head, softmax running over blocks of keys.
class ForwardTile {
 public:
  ForwardTile(const AttentionBackward& problem, const Visibility* visibility, double scale, const HostInputs& inputs)
      : problem_(problem), visibility_(visibility), scale_(scale), inputs_(inputs), dim_(problem.head_dim) {
    const auto sized = [](std::int64_t n) { return std::vector<double>(static_cast<std::size_t>(n)); };
    q_transposed_ = sized(dim_ * kTileQ), o_ = sized(kTileQ * dim_), k_ = sized(kTileK * dim_), v_ = sized(kTileK * dim_);
    s_ = sized(kTileK * kTileQ), top_ = sized(kTileQ), sum_ = sized(kTileQ);
    pairs_.resize(static_cast<std::size_t>(kTileK * kTileQ));
  }

  void run(std::int64_t b, std::int64_t h, std::int64_t first_row, std::vector<std::uint16_t>* o, std::vector<float>& lse) {
    const std::int64_t rows = std::min(kTileQ, problem_.seqlen_q - first_row), kv_head = h / problem_.group();
    std::fill(q_transposed_.begin(), q_transposed_.end(), 0.0);
    std::fill(o_.begin(), o_.end(), 0.0);
    std::fill(top_.begin(), top_.end(), -kInfinity);
    std::fill(sum_.begin(), sum_.end(), 0.0);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t from = q_offset(b, first_row + r, h);
      for (std::int64_t d = 0; d < dim_; ++d) q_transposed_[index(d * kTileQ + r)] = value(inputs_.q, from + d);
    }
    const std::int64_t shift = problem_.seqlen_k - problem_.seqlen_q;
    const bool causal = problem_.mask == Mask::causal;
    const std::int64_t end =
        causal ? std::clamp<std::int64_t>(first_row + rows + shift, 0, problem_.seqlen_k) : problem_.seqlen_k;
    for (std::int64_t key = 0; key < end; key += kTileK) {
      const std::int64_t keys = std::min(kTileK, problem_.seqlen_k - key);
      if (visibility_ != nullptr && !find_visible(b, h, first_row, rows, key, keys)) continue;
      load_keys(b, key, keys, kv_head);
      std::fill(s_.begin(), s_.end(), 0.0);
      accumulate(Product<double>{s_.data(), kTileQ, k_.data(), dim_, 1, q_transposed_.data(), kTileQ, keys, kTileQ, dim_});
      for (std::int64_t r = 0; r < rows; ++r) {
        if (visibility_ != nullptr) {
          add_visible_keys(r, keys);
          continue;
        }
        const std::int64_t seen = causal ? std::clamp<std::int64_t>(first_row + r + shift - key + 1, 0, keys) : keys;
        if (seen > 0) add_keys(r, 0, seen);
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) store(b, h, first_row + r, r, o, lse);
  }

 private:
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] double value(const std::vector<std::uint16_t>& from, std::int64_t at) const {
    return double{widen(problem_.dtype, from[index(at)])};
  }
  [[nodiscard]] std::int64_t q_offset(std::int64_t b, std::int64_t row, std::int64_t h) const {
    return ((b * problem_.seqlen_q + row) * problem_.heads + h) * dim_;
  }

  void load_keys(std::int64_t b, std::int64_t first, std::int64_t keys, std::int64_t kv_head) {
    for (std::int64_t c = 0; c < keys; ++c) {
      const std::int64_t from = ((b * problem_.seqlen_k + first + c) * problem_.kv_heads + kv_head) * dim_;
      for (std::int64_t d = 0; d < dim_; ++d) {
        k_[index(c * dim_ + d)] = value(inputs_.k, from + d);
        v_[index(c * dim_ + d)] = value(inputs_.v, from + d);
      }
    }
  }

  // Whether any pair of a block is visible.
  bool find_visible(std::int64_t b, std::int64_t h, std::int64_t first_row, std::int64_t rows, std::int64_t key,
                    std::int64_t keys) {
    std::uint8_t any = 0;
    for (std::int64_t c = 0; c < keys; ++c) {
      std::uint8_t* row = pairs_.data() + c * kTileQ;
      visibility_->row(b, h, key + c, first_row, rows, row);
      for (std::int64_t r = 0; r < rows; ++r) any |= row[r];
    }
    return any != 0;
  }

  // Row r meets the visible keys of the block, one run of neighbours after another.
  void add_visible_keys(std::int64_t r, std::int64_t keys) {
    const auto visible = [&](std::int64_t c) { return c < keys && pairs_[index(c * kTileQ + r)] != 0; };
    for (std::int64_t first = 0; first < keys; ++first) {
      if (!visible(first)) continue;
      std::int64_t end = first;
      while (visible(end)) ++end;
      add_keys(r, first, end);
      first = end;
    }
  }

  // Row r meets the keys [first, end) of the block.
  void add_keys(std::int64_t r, std::int64_t first, std::int64_t end) {
    double top = top_[index(r)];
    bool nan = std::isnan(top);
    for (std::int64_t c = first; c < end; ++c) {
      double& s = s_[index(c * kTileQ + r)];
      s *= scale_;
      nan = nan || std::isnan(s);
      top = std::max(top, s);
    }
    if (nan) top = std::numeric_limits<double>::quiet_NaN();  // std::max would drop it
    // A row of -inf alone: exp(-inf - -inf) would be NaN, but its sum is 0.
    const double base = top == -kInfinity ? 0 : top;
    const double shrink = std::exp(top_[index(r)] - base);
    double sum = sum_[index(r)] * shrink;
    for (std::int64_t c = first; c < end; ++c) {
      double& s = s_[index(c * kTileQ + r)];
      s = std::exp(s - base);
      sum += s;
    }
    for (std::int64_t d = 0; d < dim_; ++d) o_[index(r * dim_ + d)] *= shrink;
    accumulate(Product<double>{o_.data() + r * dim_, 0, s_.data() + first * kTileQ + r, 0, kTileQ, v_.data() + first * dim_, dim_,
                               1, dim_, end - first});
    top_[index(r)] = top;
    sum_[index(r)] = sum;
  }

  void store(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t r, std::vector<std::uint16_t>* o,
             std::vector<float>& lse) const {
    const double sum = sum_[index(r)];
    lse[index((b * problem_.heads + h) * problem_.seqlen_q + row)] =
        static_cast<float>(sum == 0 ? -kInfinity : top_[index(r)] + std::log(sum));
    if (o == nullptr) return;
    for (std::int64_t d = 0; d < dim_; ++d) {
      (*o)[index(q_offset(b, row, h) + d)] = sum == 0 ? std::uint16_t{0} : narrow(problem_.dtype, o_[index(r * dim_ + d)] / sum);
    }
  }

  const AttentionBackward& problem_;
  const Visibility* visibility_;
  double scale_;
  const HostInputs& inputs_;
  std::int64_t dim_;
  std::vector<double> q_transposed_, k_, v_, s_, o_;  ///< s_: [key][row]
  std::vector<std::uint8_t> pairs_;                   ///< [key][row], masks by expression: 1 where the pair is visible
  std::vector<double> top_, sum_;                     ///< of each row: the largest S so far, and the sum of exp(S - top)
};

// LSE into `lse`, and O into `o` unless that is null.
void run_forward(const AttentionBackward& problem, float scale, const HostInputs& inputs, std::vector<std::uint16_t>* o,
                 std::vector<float>& lse) {
  Workers workers(0);
  const auto rows = static_cast<std::size_t>(problem.batch * problem.seqlen_q * problem.heads);
  lse.assign(rows, 0);
  if (o != nullptr) o->assign(inputs.q.size(), 0);
  const auto visibility = Visibility::of(problem);
  std::vector<ForwardTile> tiles(static_cast<std::size_t>(workers.count()),
                                 ForwardTile(problem, visibility.get(), double{scale}, inputs));
  const std::int64_t q_tiles = (problem.seqlen_q + kTileQ - 1) / kTileQ;
  workers.run(problem.batch * problem.heads * q_tiles, [&](std::int64_t job, int worker) {
    const std::int64_t head = job / q_tiles;
    tiles[static_cast<std::size_t>(worker)].run(head / problem.heads, head % problem.heads, job % q_tiles * kTileQ, o, lse);
  });
}

}  // namespace

void forward(const AttentionBackward& problem, float scale, HostInputs& inputs) {
  std::vector<std::uint16_t> o;
  std::vector<float> lse;
  run_forward(problem, scale, inputs, &o, lse);
  inputs.o = std::move(o);
  inputs.lse = std::move(lse);
}

double largest_probability_sum(const AttentionBackward& problem, float scale, const HostInputs& inputs) {
  std::vector<float> lse;
  run_forward(problem, scale, inputs, nullptr, lse);
  double largest = 0;
  for (std::size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(inputs.lse[i])) continue;  // P = 0 by contract
    largest = std::max(largest, std::exp(double{lse[i]} - double{inputs.lse[i]}));
  }
  return largest;
}

}  // namespace ordo::reference
