#include "codegen/expression/mask_tiles.hpp"

#include <algorithm>

#include "codegen/expression/mask.hpp"

namespace ordo::expression {
namespace {

/// Evaluates the mask over boxes of one problem.
class Boxes {
 public:
  explicit Boxes(const AttentionBackward& problem)
      : problem_(problem),
        domain_(mask_domain(problem)),
        expression_(fold(problem.mask.expression()->expression, domain_)),
        ranges_(expression_) {}

  /// Pairs outside the sequences do not count; the box holds at least one that does.
  Visible operator()(std::int64_t first_q, std::int64_t rows, std::int64_t first_k, std::int64_t keys) {
    domain_[Variable::q] = {first_q, std::min(first_q + rows, problem_.seqlen_q) - 1};
    domain_[Variable::k] = {first_k, std::min(first_k + keys, problem_.seqlen_k) - 1};
    const Interval value = ranges_(domain_);
    return value.high == 0 ? Visible::none : value.low == 1 ? Visible::all : Visible::some;
  }

  bool pair(std::int64_t q, std::int64_t k, std::int64_t head, std::int64_t batch) {
    values_[static_cast<std::size_t>(Variable::q)] = static_cast<std::int32_t>(q);
    values_[static_cast<std::size_t>(Variable::k)] = static_cast<std::int32_t>(k);
    values_[static_cast<std::size_t>(Variable::head)] = static_cast<std::int32_t>(head);
    values_[static_cast<std::size_t>(Variable::batch)] = static_cast<std::int32_t>(batch);
    return evaluate(expression_, values_) != 0;
  }

  [[nodiscard]] bool depends_on_head() const { return expression_.uses(Variable::head) || expression_.uses(Variable::batch); }

 private:
  const AttentionBackward& problem_;
  Domain domain_;
  Expression expression_;
  RangeEvaluator ranges_;
  Values values_{};
};

/// splitmix64: the same sample everywhere.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

constexpr std::int64_t kMostPairs = std::int64_t{1} << 20;
constexpr std::int64_t kMostLeaves = std::int64_t{1} << 20;
constexpr std::int64_t kSamples = 64;  ///< of a leaf

/// Rows by keys of one head.
struct Box {
  std::int64_t q, rows, k, keys;
};

/// Halves the problem down to boxes that are visible or hidden as a whole, or leaves.
class Share {
 public:
  explicit Share(const AttentionBackward& problem) : problem_(problem), boxes_(problem) {
    while (leaves_of(problem.seqlen_q) * leaves_of(problem.seqlen_k) > kMostLeaves) leaf_ *= 2;
  }

  double run() {
    double pairs = 0;
    std::vector<Box> partly;
    std::vector<Box> open{{0, leaves_of(problem_.seqlen_q) * leaf_, 0, leaves_of(problem_.seqlen_k) * leaf_}};
    while (!open.empty()) {
      const Box box = open.back();
      open.pop_back();
      const Visible visible = boxes_(box.q, box.rows, box.k, box.keys);
      if (visible == Visible::all) pairs += area(box);
      if (visible != Visible::some) continue;
      if (box.rows == leaf_ && box.keys == leaf_)
        partly.push_back(box);
      else
        halve(box, open);
    }
    return (pairs + partly_visible(partly)) / area({0, problem_.seqlen_q, 0, problem_.seqlen_k});
  }

 private:
  [[nodiscard]] std::int64_t leaves_of(std::int64_t length) const { return (length + leaf_ - 1) / leaf_; }
  [[nodiscard]] std::int64_t rows_of(const Box& box) const { return std::min(box.rows, problem_.seqlen_q - box.q); }
  [[nodiscard]] std::int64_t keys_of(const Box& box) const { return std::min(box.keys, problem_.seqlen_k - box.k); }
  [[nodiscard]] double area(const Box& box) const {
    return static_cast<double>(rows_of(box)) * static_cast<double>(keys_of(box));
  }

  void halve(const Box& box, std::vector<Box>& out) const {
    if (box.rows >= box.keys) {
      const std::int64_t half = leaves_of(box.rows / 2) * leaf_;
      out.push_back({box.q, half, box.k, box.keys});
      out.push_back({box.q + half, box.rows - half, box.k, box.keys});
    } else {
      const std::int64_t half = leaves_of(box.keys / 2) * leaf_;
      out.push_back({box.q, box.rows, box.k, half});
      out.push_back({box.q, box.rows, box.k + half, box.keys - half});
    }
  }

  /// Visible pairs of leaves. Beyond some thousands of leaves every so many stand for all.
  double partly_visible(const std::vector<Box>& leaves) {
    double all = 0;
    for (const Box& leaf : leaves) all += area(leaf);
    if (leaves.empty()) return 0;
    const bool exact = !boxes_.depends_on_head() && all <= static_cast<double>(kMostPairs);
    const std::size_t every = 1 + leaves.size() / static_cast<std::size_t>(kMostPairs / kSamples);
    double visible = 0, looked_at = 0;
    for (std::size_t i = 0; i < leaves.size(); i += every) {
      visible += area(leaves[i]) * (exact ? counted(leaves[i]) : sampled(leaves[i]));
      looked_at += area(leaves[i]);
    }
    return visible * all / looked_at;
  }

  double counted(const Box& leaf) {
    double seen = 0;
    for (std::int64_t q = leaf.q; q < leaf.q + rows_of(leaf); ++q)
      for (std::int64_t k = leaf.k; k < leaf.k + keys_of(leaf); ++k) seen += boxes_.pair(q, k, 0, 0) ? 1 : 0;
    return seen / area(leaf);
  }

  double sampled(const Box& leaf) {
    std::uint64_t state = mix(static_cast<std::uint64_t>(leaf.q) << 32 | static_cast<std::uint64_t>(leaf.k));
    const auto below = [&state](std::int64_t count) {
      state = mix(state);
      return static_cast<std::int64_t>(state % static_cast<std::uint64_t>(count));
    };
    int seen = 0;
    for (std::int64_t i = 0; i < kSamples; ++i) {
      const std::int64_t q = leaf.q + below(rows_of(leaf)), k = leaf.k + below(keys_of(leaf));
      const std::int64_t head = below(problem_.heads), batch = below(problem_.batch);
      seen += boxes_.pair(q, k, head, batch) ? 1 : 0;
    }
    return static_cast<double>(seen) / static_cast<double>(kSamples);
  }

  const AttentionBackward& problem_;
  Boxes boxes_;
  std::int64_t leaf_ = 64;
};

}  // namespace

MaskTiles::MaskTiles(const AttentionBackward& problem, int tile_q)
    : q_tiles_(static_cast<int>((problem.seqlen_q + tile_q - 1) / tile_q)),
      runs_(static_cast<std::size_t>((problem.seqlen_k + kSliceKeys - 1) / kSliceKeys)) {
  Boxes boxes(problem);
  for (std::size_t slice = 0; slice < runs_.size(); ++slice) {
    std::vector<Run>& runs = runs_[slice];
    const std::int64_t first_key = static_cast<std::int64_t>(slice) * kSliceKeys;
    const bool cut = first_key + kSliceKeys > problem.seqlen_k;
    const auto append = [&](int end, Visible visible) {
      if (cut && visible == Visible::all) visible = Visible::some;
      if (!runs.empty() && runs.back().visible == visible)
        runs.back().end = end;
      else
        runs.push_back({end, visible});
    };
    // Halves what is undecided.
    std::vector<std::pair<int, int>> open{{0, q_tiles_}};
    while (!open.empty()) {
      const auto [begin, end] = open.back();
      open.pop_back();
      const Visible visible = boxes(std::int64_t{begin} * tile_q, std::int64_t{end - begin} * tile_q, first_key, kSliceKeys);
      if (visible != Visible::some || end - begin == 1) {
        append(end, visible);
        continue;
      }
      const int middle = begin + (end - begin) / 2;
      open.emplace_back(middle, end);
      open.emplace_back(begin, middle);
    }
  }
}

Visible MaskTiles::at(int slice, int q) const {
  const std::vector<Run>& runs = runs_[static_cast<std::size_t>(slice)];
  return std::upper_bound(runs.begin(), runs.end(), q, [](int tile, const Run& run) { return tile < run.end; })->visible;
}

double visible_share(const AttentionBackward& problem) {
  const bool empty = std::min({problem.batch, problem.heads, problem.seqlen_q, problem.seqlen_k}) < 1;
  return empty ? 0 : Share(problem).run();
}

}  // namespace ordo::expression
