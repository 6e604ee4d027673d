// Covering arrays: a few hundred test cells in which every asked-for combination of factor levels occurs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ordo::test {

/// Level of each factor, 0 .. levels-1.
using Levels = std::vector<int>;

/// What a cover has to hold: for each set of factors, every combination of their levels in some cell.
struct CoverRequest {
  std::vector<int> levels;                     ///< how many each factor has
  std::vector<std::vector<int>> interactions;  ///< sets of factors

  /// Adds every pair of factors.
  void add_all_pairs() {
    for (int a = 0; a < static_cast<int>(levels.size()); ++a)
      for (int b = a + 1; b < static_cast<int>(levels.size()); ++b) interactions.push_back({a, b});
  }
};

/// Greedy search, one cell at a time, each the best of several candidates (AETG: Cohen et al., 1997). The same request gives the
/// same cells on any machine.
class Cover {
 public:
  explicit Cover(CoverRequest request) : request_(std::move(request)) {
    for (const std::vector<int>& factors : request_.interactions) {
      std::size_t combinations = 1;
      for (const int factor : factors) combinations *= static_cast<std::size_t>(levels_of(factor));
      missing_.emplace_back(combinations, true);
      left_ += combinations;
    }
  }

  [[nodiscard]] std::vector<Levels> cells() {
    constexpr int kCandidates = 40;
    std::vector<Levels> out;
    while (left_ > 0) {
      Levels best;
      std::size_t best_gain = 0;
      for (int i = 0; i < kCandidates; ++i) {
        Levels cell = candidate();
        const std::size_t gain = gain_of(cell);
        if (gain > best_gain) {
          best = std::move(cell);
          best_gain = gain;
        }
      }
      take(best);
      out.push_back(std::move(best));
    }
    return out;
  }

 private:
  [[nodiscard]] int levels_of(int factor) const { return request_.levels[static_cast<std::size_t>(factor)]; }

  /// splitmix64: std distributions differ between standard libraries.
  int random(int below) {
    state_ += 0x9E3779B97F4A7C15ull;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return static_cast<int>((x ^ (x >> 31)) % static_cast<std::uint64_t>(below));
  }

  /// The number of a combination in missing_, or -1 while one of its factors is open.
  [[nodiscard]] std::ptrdiff_t combination(const std::vector<int>& factors, const Levels& cell) const {
    std::ptrdiff_t number = 0;
    for (const int factor : factors) {
      const int level = cell[static_cast<std::size_t>(factor)];
      if (level < 0) return -1;
      number = number * levels_of(factor) + level;
    }
    return number;
  }

  [[nodiscard]] std::size_t gain_of(const Levels& cell) const {
    std::size_t gain = 0;
    for (std::size_t i = 0; i < missing_.size(); ++i) {
      const std::ptrdiff_t number = combination(request_.interactions[i], cell);
      if (number >= 0 && missing_[i][static_cast<std::size_t>(number)]) ++gain;
    }
    return gain;
  }

  void take(const Levels& cell) {
    for (std::size_t i = 0; i < missing_.size(); ++i) {
      const auto number = static_cast<std::size_t>(combination(request_.interactions[i], cell));
      if (missing_[i][number]) --left_;
      missing_[i][number] = false;
    }
  }

  /// A cell around some missing combination, the other factors set one by one to the level that covers most.
  Levels candidate() {
    Levels cell(request_.levels.size(), -1);
    seed(cell);
    std::vector<int> open;
    for (int factor = 0; factor < static_cast<int>(cell.size()); ++factor)
      if (cell[static_cast<std::size_t>(factor)] < 0) open.push_back(factor);
    for (std::size_t i = open.size(); i > 1; --i)
      std::swap(open[i - 1], open[static_cast<std::size_t>(random(static_cast<int>(i)))]);
    for (const int factor : open) {
      int& level = cell[static_cast<std::size_t>(factor)];
      const int levels = levels_of(factor), first = random(levels);
      int best = first;
      std::size_t best_gain = 0;
      for (int i = 0; i < levels; ++i) {
        level = (first + i) % levels;
        const std::size_t gain = gain_of(cell);
        if (i == 0 || gain > best_gain) {
          best = level;
          best_gain = gain;
        }
      }
      level = best;
    }
    return cell;
  }

  void seed(Levels& cell) {
    const std::size_t sets = missing_.size(), first = static_cast<std::size_t>(random(static_cast<int>(sets)));
    for (std::size_t i = 0; i < sets; ++i) {
      const std::size_t set = (first + i) % sets, size = missing_[set].size();
      const auto offset = static_cast<std::size_t>(random(static_cast<int>(size)));
      for (std::size_t j = 0; j < size; ++j) {
        std::size_t number = (offset + j) % size;
        if (!missing_[set][number]) continue;
        const std::vector<int>& factors = request_.interactions[set];
        for (auto factor = factors.rbegin(); factor != factors.rend(); ++factor) {
          const auto levels = static_cast<std::size_t>(levels_of(*factor));
          cell[static_cast<std::size_t>(*factor)] = static_cast<int>(number % levels);
          number /= levels;
        }
        return;
      }
    }
  }

  CoverRequest request_;
  std::vector<std::vector<bool>> missing_;  ///< by interaction and combination
  std::size_t left_ = 0;
  std::uint64_t state_ = 0;
};

inline std::vector<Levels> cover(CoverRequest request) { return Cover(std::move(request)).cells(); }

}  // namespace ordo::test
