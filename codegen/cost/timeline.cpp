#include "codegen/cost/timeline.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <queue>
#include <ranges>
#include <vector>

#include "codegen/schedule/geometry.hpp"
#include "codegen/schedule/rules.hpp"

namespace ordo::cost {
namespace {

using schedule::Geometry;
using schedule::Kind;

constexpr int kMostBuffers = 4;

/// The first Q tile that `unit` sees whole; those before it, and a last one that the end of Q cuts, need the mask.
int first_whole_q(const Geometry& g, int unit) {
  if ((unit + std::int64_t{1}) * g.unit_kv > g.seqlen_k) return g.q_tiles;
  if (!g.causal) return 0;
  const std::int64_t row = (unit + std::int64_t{1}) * g.unit_kv - 1 - (std::int64_t{g.seqlen_k} - g.seqlen_q);
  return static_cast<int>(std::clamp<std::int64_t>((row + g.tile_q - 1) / g.tile_q, 0, g.q_tiles));
}

/// Items of the first `groups` groups of walks, in dispatch order.
class Run {
 public:
  Run(const Launch& launch, const StepTimes& times, int groups)
      : launch_(launch), g_(launch.geometry), rules_(g_, launch.table), times_(times), groups_(groups) {
    const int walks = std::min(g_.walks, groups * g_.head_group);
    items_ = walks * schedule::walk_items(g_);
    chains_.resize(static_cast<std::size_t>(walks) * static_cast<std::size_t>(g_.heads) * static_cast<std::size_t>(g_.q_tiles));
    whole_from_.reserve(static_cast<std::size_t>(g_.units));
    for (int unit = 0; unit < g_.units; ++unit) whole_from_.push_back(first_whole_q(g_, unit));
    cut_q_ = g_.q_tiles * std::int64_t{g_.tile_q} > g_.seqlen_q ? g_.q_tiles - 1 : g_.q_tiles;
    for (int worker = 0; worker < launch.workers; ++worker) free_.push(0);
  }

  void run() {
    group_busy_.assign(static_cast<std::size_t>(groups_), 0);
    for (int index = 0; index < items_;) {
      const int end = launch_.ordered ? std::min(rules_.residents(index).end, items_) : index + 1;
      run_set(index, end);
      index = end;
    }
  }

  [[nodiscard]] double end() const { return end_; }
  /// What the workers together spend on the groups from `first` on, waiting included.
  [[nodiscard]] double busy_from(int first) const { return std::accumulate(group_busy_.begin() + first, group_busy_.end(), 0.0); }
  [[nodiscard]] double work() const { return work_; }
  [[nodiscard]] double waiting() const { return waiting_; }

 private:
  struct Chain {
    int turn = 0;
    double ready = 0;
  };
  /// One item on its worker.
  struct Walker {
    ItemWalk walk;
    int group = 0;
    int left = 0;                              ///< steps to do
    double computed = 0;                       ///< the consumers are done with the step before
    std::array<double, kMostBuffers> added{};  ///< ends of the last adds, newest first
  };

  /// Items that may wait for each other. The worker that is free first takes the next of them, and who that is may depend on
  /// those in hand: an item is given out when none of them can end before, or when all of them wait for it.
  void run_set(int begin, int end) {
    walkers_.clear();
    std::size_t running = 0;
    for (int next = begin; next < end || running > 0;) {
      double first_end = earliest_end();
      while (next < end && free_.top() <= first_end) running += take(next++, first_end) ? 1 : 0;
      bool moved = false;
      // From the last item: among those that wait on later ones most depend on their neighbour.
      for (Walker& walker : std::views::reverse(walkers_)) {
        if (walker.walk.done()) continue;
        const int left = walker.left;
        if (walk(walker)) --running;
        moved = moved || walker.left != left;
      }
      if (!moved && next < end) running += take(next++, first_end) ? 1 : 0;
    }
  }

  /// Before which no item in hand ends.
  [[nodiscard]] double earliest_end() const {
    double first = std::numeric_limits<double>::infinity();
    for (const Walker& w : walkers_)
      if (!w.walk.done()) first = std::min(first, end_bound(w));
    return first;
  }
  [[nodiscard]] double end_bound(const Walker& w) const {
    return w.computed + w.left * (times_.compute + std::min(0.0, times_.masked));
  }

  /// The worker that is free first takes an item; false where it has nothing to do.
  bool take(int index, double& first_end) {
    const schedule::Item item = rules_.item_at(index);
    Walker w;
    w.walk = ItemWalk(rules_, item, 0, g_.heads);
    if (w.walk.done()) return false;
    w.group = item.walk / g_.head_group;
    w.left = rules_.steps(item);
    if (rules_.has_second_half(item)) w.left += rules_.steps(rules_.second_half(item));
    w.left *= g_.heads;
    w.computed = free_.top();
    w.added.fill(free_.top());
    free_.pop();
    first_end = std::min(first_end, end_bound(w));
    walkers_.push_back(w);
    return true;
  }

  /// As far as turns have come. True at the item's end.
  bool walk(Walker& w) {
    while (true) {
      const Cursor& at = w.walk.at();
      Chain& chain = chains_[(static_cast<std::size_t>(at.item.walk) * static_cast<std::size_t>(g_.heads) +
                              static_cast<std::size_t>(at.head)) *
                                 static_cast<std::size_t>(g_.q_tiles) +
                             static_cast<std::size_t>(at.q)];
      if (launch_.ordered && chain.turn != rules_.rank(at)) return false;
      step(w, chain);
      --w.left;
      w.walk.advance(rules_);
      if (!w.walk.done()) continue;
      finish(w);
      return true;
    }
  }

  /// Whether the mask or the end of a sequence crosses a tile.
  [[nodiscard]] bool crossed(int unit, int q) const {
    if (!launch_.edges.empty())
      return launch_.edges[static_cast<std::size_t>(unit) * static_cast<std::size_t>(g_.q_tiles) + static_cast<std::size_t>(q)] !=
             0;
    return q < whole_from_[static_cast<std::size_t>(unit)] || q >= cut_q_;
  }

  void step(Walker& w, Chain& chain) {
    const Cursor& at = w.walk.at();
    const double began = w.computed;
    if (at.head == 0 && at.step == 0) {  // of a unit, or of the half of a pair
      w.computed += times_.item;
      work_ += times_.item;
    }
    const bool masked = crossed(at.item.unit, at.q);
    const double compute = times_.compute + (masked ? times_.masked : 0);
    double computed = w.computed + compute;
    if (launch_.buffers > 0) computed = std::max(computed, w.added[static_cast<std::size_t>(launch_.buffers) - 1]);
    const double start = std::max({computed, w.added[0], launch_.ordered ? chain.ready : 0});
    const double added = start + times_.add;
    waiting_ += computed - (w.computed + compute);
    work_ += compute;
    if (launch_.buffers == 0) {
      waiting_ += start - computed;
      work_ += times_.add;
      computed = added;
    }
    w.computed = computed;
    group_busy_[static_cast<std::size_t>(w.group)] += computed - began;
    for (std::size_t i = kMostBuffers - 1; i > 0; --i) w.added[i] = w.added[i - 1];
    w.added[0] = added;
    ++chain.turn;
    chain.ready = added + times_.hop;
  }

  void finish(Walker& w) {
    const double end = std::max(w.computed, w.added[0]);
    free_.push(launch_.buffers == 0 ? end : w.computed);
    end_ = std::max(end_, end);
  }

  const Launch& launch_;
  const Geometry& g_;
  ScheduleRules rules_;
  const StepTimes& times_;
  int groups_, items_ = 0;
  std::int64_t cut_q_ = 0;
  std::vector<int> whole_from_;  ///< by unit
  std::vector<Chain> chains_;    ///< by walk, query head and Q tile
  std::vector<double> group_busy_;
  std::vector<Walker> walkers_;
  std::priority_queue<double, std::vector<double>, std::greater<>> free_;
  double work_ = 0, waiting_ = 0, end_ = 0;
};

/// Tasks of one walk, those of very many units by a sample. To begin an item, and to have a Q tile at all, costs time as well.
double walk_tasks(const Launch& launch) {
  constexpr int kMostSampled = 1024;
  const Geometry& g = launch.geometry;
  const ScheduleRules rules(g, launch.table);
  const int every = 1 + g.units / kMostSampled;
  double tasks = 0;
  for (int unit = 0; unit < g.units; unit += every)
    tasks += static_cast<double>(rules.steps({0, unit, false})) * std::min(every, g.units - unit);
  constexpr double kItemTasks = 8, kTileTasks = 0.25;
  return (tasks + kTileTasks * g.q_tiles) * g.heads + kItemTasks * schedule::walk_items(g);
}

/// A launch and its times.
struct Timed {
  Launch launch;
  StepTimes times;
};

constexpr int kGrain = 64;  // rows and keys

/// The same sequences in tiles `rows` times as tall and `keys` times as wide. Neighbours still wait for one hop, not for a whole
/// tile: both compute theirs meanwhile.
Timed coarser(const Launch& launch, const StepTimes& times, int rows, int keys) {
  Timed out{launch, times};
  Geometry& g = out.launch.geometry;
  // Counted in grains, so that no size leaves int: every tile is a whole number of them.
  g.seqlen_q = schedule::ceil_div(g.seqlen_q, kGrain);
  g.seqlen_k = schedule::ceil_div(g.seqlen_k, kGrain);
  g.tile_q = schedule::ceil_div(g.tile_q, kGrain);
  g.unit_kv = schedule::ceil_div(g.unit_kv, kGrain);
  g.tile_q *= rows;
  g.unit_kv *= keys;
  g.q_tiles = schedule::ceil_div(g.seqlen_q, g.tile_q);
  g.units = schedule::ceil_div(g.seqlen_k, g.unit_kv);
  set_waves(g, launch.workers, std::max(1, g.stride / rows));
  out.times.compute *= static_cast<double>(rows) * keys;
  out.times.masked *= keys;
  out.times.item *= keys;
  return out;
}

/// Groups after which the pattern of a launch repeats: alternate, and some arrivals, go up and down in turn.
int period_of(const Launch& launch) { return ScheduleRules(launch.geometry, launch.table).patterns(); }
/// Groups that are timed at least: those that fill the device, and one period.
int fewest_groups(const Launch& launch) { return 2 + period_of(launch); }

/// Coarser tiles where even the fewest groups are too many tasks.
Timed affordable(const Launch& launch, const StepTimes& times, double most_tasks) {
  const Geometry& g = launch.geometry;
  const int groups = schedule::ceil_div(g.walks, g.head_group);
  const double tasks = walk_tasks(launch) * g.head_group * std::min(groups, fewest_groups(launch));
  if (tasks <= most_tasks || launch.table != nullptr) return {launch, times};
  // Units stay several a worker, so that what is left over at the end keeps its share.
  const int keys = std::max(1, std::min(g.units / (4 * launch.workers), static_cast<int>(tasks / most_tasks)));
  // Where units rotate, each needs a Q tile of its own: the waves must stay as they are.
  const int rotating = g.kind == Kind::shift             ? g.q_tiles
                       : g.kind == Kind::symmetric_shift ? g.q_tiles - schedule::first_q(g, schedule::pairs(g) - 1)
                                                         : 0;
  // More rows than half of the Q tiles, or than leave every rotating unit one, are merged only where the launch would still be
  // kMostOver times too many tasks.
  constexpr int kMostOver = 4;
  const double wanted = tasks / most_tasks / keys;
  const int needed = static_cast<int>(std::ceil(wanted / kMostOver / g.heads));
  const int most_rows = std::max({1, needed, rotating > 0 ? rotating / g.wave : g.q_tiles / 2});
  const int rows = std::clamp(static_cast<int>(std::ceil(wanted)), 1, most_rows);
  Timed out = coarser(launch, times, rows, keys);
  // Query heads of a walk together, if that is still too much.
  const double left = wanted / rows;
  const int heads = std::clamp(static_cast<int>(g.heads / std::max(1.0, left)), 1, g.heads);
  out.launch.geometry.heads = heads;
  out.times.compute *= static_cast<double>(g.heads) / heads;
  out.times.masked *= static_cast<double>(g.heads) / heads;
  return out;
}

}  // namespace

Timeline time_launch(const Launch& launch, const StepTimes& times, double most_tasks) {
  const Timed timed = affordable(launch, times, most_tasks);
  const Geometry& g = timed.launch.geometry;
  const int groups = schedule::ceil_div(g.walks, g.head_group);
  const double of_group = walk_tasks(timed.launch) * g.head_group;
  int some = groups;
  if (groups > fewest_groups(launch) && of_group * groups > most_tasks) {
    some = std::max(fewest_groups(launch), static_cast<int>(most_tasks / of_group));
    some += (groups - some) % period_of(launch);  // what is left out is whole periods
  }
  Run run(timed.launch, timed.times, some);
  run.run();
  const double timed_walks = std::min(g.walks, some * g.head_group);
  const double scale = g.walks / timed_walks / launch.workers;
  // No worker is idle before the last items: what is left out takes what the last half of the groups kept the workers busy.
  const int half = std::min(some, std::max(1, some / 2 / period_of(launch)) * period_of(launch));
  const double of_one = run.busy_from(some - half) / launch.workers / half;
  const bool whole = some == groups && g.q_tiles == launch.geometry.q_tiles && g.units == launch.geometry.units;
  return {run.end() + (groups - some) * of_one, run.work() * scale, run.waiting() * scale, whole};
}

}  // namespace ordo::cost
