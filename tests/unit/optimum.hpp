// The least makespan of any schedule of one head, by branch and bound: for tiny problems, to hold the schedules against.
#pragma once

#include <algorithm>
#include <vector>

namespace ordo::testing {

/// Searches over which worker takes which KV tile and when, in what order it visits its Q tiles, and in what order KV tiles add
/// into each dQ tile. A KV tile stays on one worker and is finished before the next.
///
/// Tasks are committed one at a time in the order in which their adds start; a task begins as soon as its worker is free and adds
/// as soon as its dQ tile is free. Every schedule that wastes no time is reached so.
class OptimumSearch {
 public:
  OptimumSearch(int kv_tiles, int q_tiles, bool causal, int workers, double compute, double reduce)
      : compute_(compute),
        reduce_(reduce),
        workers_(static_cast<std::size_t>(workers)),
        tile_free_(static_cast<std::size_t>(q_tiles)) {
    for (int kv = 0; kv < kv_tiles; ++kv) {
      unsigned live = 0;
      for (int q = 0; q < q_tiles; ++q) {
        if (!causal || kv <= q + kv_tiles - q_tiles) live |= 1u << q;
      }
      waiting_.push_back(live);
    }
  }

  /// `attained` is a makespan that some schedule has: the search looks only for better ones, and returns it if there are none.
  double run(double attained) {
    best_ = attained;
    search(0);
    return best_;
  }

 private:
  struct Worker {
    double free = 0;
    unsigned left = 0;  ///< Q tiles of the KV tile in hand
  };

  double bound(double last_add) const {
    double all = 0, bound = last_add + reduce_;
    std::vector<double> chain(tile_free_);
    const auto count = [&](unsigned tiles) {
      double tasks = 0;
      for (std::size_t q = 0; q < chain.size(); ++q) {
        if (tiles >> q & 1u) {
          ++tasks;
          chain[q] += reduce_;
        }
      }
      return tasks * (compute_ + reduce_);
    };
    for (const Worker& worker : workers_) {
      const double work = count(worker.left);
      bound = std::max(bound, worker.free + work);
      all += worker.free + work;
    }
    for (const unsigned tiles : waiting_) all += count(tiles);
    for (const double end : chain) bound = std::max(bound, end);
    return std::max(bound, all / static_cast<double>(workers_.size()));
  }

  void search(double last_add) {
    bool done = true;
    for (const Worker& worker : workers_) done = done && worker.left == 0;
    for (const unsigned tiles : waiting_) done = done && tiles == 0;
    if (done) {
      double end = 0;
      for (const Worker& worker : workers_) end = std::max(end, worker.free);
      best_ = std::min(best_, end);
      return;
    }
    if (bound(last_add) >= best_) return;
    for (std::size_t w = 0; w < workers_.size(); ++w) {
      const Worker before = workers_[w];
      if (before.left != 0) {
        commit(w, last_add);
        continue;
      }
      // Free workers with equal clocks are alike: only the first of them takes a new KV tile.
      bool alike = false;
      for (std::size_t other = 0; other < w; ++other)
        alike = alike || (workers_[other].left == 0 && workers_[other].free == before.free);
      if (alike) continue;
      for (unsigned& tiles : waiting_) {
        if (tiles == 0) continue;
        workers_[w].left = tiles;
        const unsigned taken = tiles;
        tiles = 0;
        commit(w, last_add);
        tiles = taken;
        workers_[w] = before;
      }
    }
  }

  /// Tries each Q tile that worker `w` may visit next.
  void commit(std::size_t w, double last_add) {
    const Worker before = workers_[w];
    for (std::size_t q = 0; q < tile_free_.size(); ++q) {
      if (!(before.left >> q & 1u)) continue;
      const double add = std::max(before.free + compute_, tile_free_[q]);
      if (add < last_add) continue;  // reached in the other order
      const double tile_before = tile_free_[q];
      workers_[w] = {add + reduce_, before.left & ~(1u << q)};
      tile_free_[q] = add + reduce_;
      search(add);
      tile_free_[q] = tile_before;
      workers_[w] = before;
    }
  }

  const double compute_, reduce_;
  std::vector<Worker> workers_;
  std::vector<double> tile_free_;
  std::vector<unsigned> waiting_;
  double best_ = 0;
};

inline double exhaustive_optimum(int kv_tiles, int q_tiles, bool causal, int workers, double compute, double reduce,
                                 double attained = 1e300) {
  return OptimumSearch(kv_tiles, q_tiles, causal, workers, compute, reduce).run(attained);
}

}  // namespace ordo::testing
