#include "codegen/schedule/arrival.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>
#include <span>
#include <unordered_map>

#include "codegen/hash/sha256.hpp"
#include "codegen/schedule/proof.hpp"
#include "codegen/schedule/visit_table.hpp"

namespace ordo {
namespace {

using schedule::Geometry;

constexpr std::int64_t kMostVisits = std::int64_t{1} << 22;
constexpr int kMostPatterns = 2;

/// Whether groups of walks go up and down in turn.
bool in_turns(ArrivalVisits visits) { return visits == ArrivalVisits::up_and_down || visits == ArrivalVisits::turn; }

/// A live tile of a unit.
struct Tile {
  int q;
  double cost;
};

/// Where a pattern's walk stands at one Q tile of one query head.
struct Chain {
  double ready = 0;  ///< the next add may start
  int added = 0;     ///< ranks given away
  int wave = 0;      ///< the wave whose turn it is
  int left = 0;      ///< its units that have not come yet
};

/// A unit on a worker.
struct Worker {
  int pattern = 0, place = 0, unit = -1;
  int head = 0;
  std::size_t step = 0;  ///< visits made for this head
  std::size_t at = 0;    ///< greedy: where in the unit's tiles it is
  double adder_free = 0;
  std::vector<double> staged;  ///< ends of the last `staging` adds, oldest at `oldest`
  std::size_t oldest = 0;
};

class Run {
 public:
  Run(const Geometry& geometry, std::int64_t workers, const SimulationCosts& costs, ArrivalVisits visits)
      : g_(geometry), costs_(costs), visits_(visits) {
    const int walks = std::min(g_.head_group, g_.walks);
    patterns_ = g_.walks > walks && in_turns(visits) ? kMostPatterns : 1;
    const std::int64_t resident = std::clamp<std::int64_t>(workers / walks, 1, std::int64_t{patterns_} * g_.units);
    workers_.resize(static_cast<std::size_t>(resident));
  }

  /// Errors when the table would be too large.
  Result<void> read(const TileMap& tiles) {
    if (auto fits = check_table_size(g_, 0); !fits) return fits;
    tiles_.resize(static_cast<std::size_t>(g_.units));
    std::int64_t live = 0;
    for (int unit = 0; unit < g_.units; ++unit) {
      std::vector<Tile>& of_unit = tiles_[static_cast<std::size_t>(unit)];
      for (int q = 0; q < g_.q_tiles; ++q) {
        const TileKind kind = tiles(unit, q);
        if (kind == TileKind::none) continue;
        const TileCosts& c = costs_.compute;
        of_unit.push_back({q, kind == TileKind::full ? c.full : kind == TileKind::diagonal ? c.diagonal : c.partial});
      }
      live += static_cast<std::int64_t>(of_unit.size());
    }
    // Heads beyond what a table of a sensible size holds repeat the orders of the first.
    constexpr std::int64_t kManyVisits = 1 << 18;
    members_ = static_cast<int>(std::clamp<std::int64_t>(kManyVisits / std::max<std::int64_t>(live * patterns_, 1), 1, g_.heads));
    if (auto fits = check_table_size(g_, live * patterns_ * members_); !fits) return fits;
    order_.resize(tiles_.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [this](int a, int b) {
      return tiles_[static_cast<std::size_t>(a)].size() > tiles_[static_cast<std::size_t>(b)].size();
    });
    lay_out();
    count_waves();
    return {};
  }

  ArrivalTable run() {
    for (int worker = 0; worker < static_cast<int>(workers_.size()); ++worker) {
      Worker& w = workers_[static_cast<std::size_t>(worker)];
      w.staged.resize(static_cast<std::size_t>(costs_.staging));
      take_item(worker, 0);
    }
    while (!free_.empty()) {
      const auto [time, worker] = free_.top();
      free_.pop();
      visit(worker, time);
    }
    table_.makespan = makespan_;
    return std::move(table_);
  }

 private:
  struct Free {
    double time;
    int worker;
    bool operator<(const Free& other) const { return time != other.time ? time > other.time : worker > other.worker; }
  };

  [[nodiscard]] const std::vector<Tile>& tiles_of(int unit) const { return tiles_[static_cast<std::size_t>(unit)]; }

  void lay_out() {
    std::vector<std::uint32_t>& words = table_.words;
    table_.units = g_.units;
    table_.q_tiles = g_.q_tiles;
    words = {static_cast<std::uint32_t>(patterns_), static_cast<std::uint32_t>(members_)};
    for (int pattern = 0; pattern < patterns_; ++pattern) words.insert(words.end(), order_.begin(), order_.end());
    auto next = static_cast<std::uint32_t>(words.size() + static_cast<std::size_t>(patterns_) * (tiles_.size() + 1));
    for (int pattern = 0; pattern < patterns_; ++pattern) {
      for (const std::vector<Tile>& of_unit : tiles_) {
        words.push_back(next);
        next += static_cast<std::uint32_t>(of_unit.size()) * static_cast<std::uint32_t>(members_);
      }
      words.push_back(next);
    }
    words.resize(next + std::size_t{1});  // one more: the kernels read ahead
    visited_.resize(next);
  }

  void count_waves() {
    const int waves = schedule::ceil_div(g_.units, g_.wave);
    in_wave_.assign(static_cast<std::size_t>(waves) * static_cast<std::size_t>(g_.q_tiles), 0);
    for (int place = 0; place < g_.units; ++place) {
      for (const Tile& tile : tiles_of(order_[static_cast<std::size_t>(place)])) ++in_wave(place / g_.wave, tile.q);
    }
    chains_.resize(static_cast<std::size_t>(patterns_ * members_) * static_cast<std::size_t>(g_.q_tiles));
    for (std::size_t i = 0; i < chains_.size(); ++i) open_wave(chains_[i], static_cast<int>(i) % g_.q_tiles);
  }
  int& in_wave(int wave, int q) {
    return in_wave_[static_cast<std::size_t>(wave) * static_cast<std::size_t>(g_.q_tiles) + static_cast<std::size_t>(q)];
  }
  /// Moves on to the first wave from `chain.wave` on that has units to come.
  void open_wave(Chain& chain, int q) {
    const int waves = schedule::ceil_div(g_.units, g_.wave);
    while (chain.wave < waves && (chain.left = in_wave(chain.wave, q)) == 0) ++chain.wave;
  }
  std::size_t chain_index(const Worker& w, int q) const {
    return static_cast<std::size_t>(w.pattern * members_ + w.head) * static_cast<std::size_t>(g_.q_tiles) +
           static_cast<std::size_t>(q);
  }
  Chain& chain_of(const Worker& w, int q) { return chains_[chain_index(w, q)]; }

  void take_item(int worker, double time) {
    Worker& w = workers_[static_cast<std::size_t>(worker)];
    while (next_item_ < patterns_ * g_.units) {
      w.pattern = next_item_ / g_.units;
      w.place = next_item_ % g_.units;
      w.unit = order_[static_cast<std::size_t>(w.place)];
      ++next_item_;
      if (tiles_of(w.unit).empty()) continue;
      w.head = 0;
      begin_head(w);
      free_.push({time + costs_.unit, worker});
      return;
    }
  }

  [[nodiscard]] bool goes_down(const Worker& w) const {
    if (visits_ == ArrivalVisits::turn) return w.head >= schedule::first_down(w.pattern == 1, members_);
    return visits_ == ArrivalVisits::down || (visits_ == ArrivalVisits::up_and_down && w.pattern == 1);
  }

  void begin_head(Worker& w) const {
    const std::size_t count = tiles_of(w.unit).size();
    const auto in_wave = static_cast<std::size_t>(w.place % g_.wave);
    w.step = 0;
    w.at = 0;
    if (goes_down(w)) w.at = count - 1;
    // Starts evenly apart, so that neighbours follow one another as late as they can.
    if (visits_ == ArrivalVisits::rotate || visits_ == ArrivalVisits::greedy)
      w.at = in_wave * count / static_cast<std::size_t>(g_.wave);
  }

  std::size_t next_at(const Worker& w) const {
    const std::size_t count = tiles_of(w.unit).size();
    if (goes_down(w)) return w.at - 1;
    return w.at + 1 == count ? 0 : w.at + 1;
  }

  std::uint32_t word_of(const Worker& w, std::size_t step) const {
    const auto units = static_cast<std::size_t>(g_.units), pattern = static_cast<std::size_t>(w.pattern);
    const std::uint32_t begin =
        table_.words[2 + static_cast<std::size_t>(patterns_) * units + pattern * (units + 1) + static_cast<std::size_t>(w.unit)];
    return begin + static_cast<std::uint32_t>(static_cast<std::size_t>(w.head) * tiles_of(w.unit).size() + step);
  }

  /// Greedy: of the tiles left, the first from w.at on whose turn would come without waiting, else the one that waits least.
  bool choose(Worker& w, double time) {
    const std::vector<Tile>& tiles = tiles_of(w.unit);
    double least = std::numeric_limits<double>::infinity();
    std::size_t best = tiles.size();
    for (std::size_t i = 0, at = w.at; i < tiles.size(); ++i, at = at + 1 == tiles.size() ? 0 : at + 1) {
      if (visited_[word_of(w, at)]) continue;
      const Chain& chain = chain_of(w, tiles[at].q);
      if (chain.wave != w.place / g_.wave) continue;
      const double wait = chain.ready - (time + tiles[at].cost);
      if (wait < least) {
        least = wait;
        best = at;
      }
      if (wait <= 0) break;
    }
    if (best == tiles.size()) return false;
    w.at = best;
    visited_[word_of(w, best)] = true;
    return true;
  }

  /// The worker computes its next tile from `time` on, and takes its turn there.
  void visit(int worker, double time) {
    Worker& w = workers_[static_cast<std::size_t>(worker)];
    const bool greedy = visits_ == ArrivalVisits::greedy;
    if (greedy && !choose(w, time)) {
      any_tile_.push_back({time, worker});
      return;
    }
    const Tile tile = tiles_of(w.unit)[w.at];
    Chain& chain = chain_of(w, tile.q);
    if (chain.wave != w.place / g_.wave) {  // an earlier wave adds here first
      parked_[chain_index(w, tile.q)].push_back({time, worker});
      return;
    }
    table_.words[word_of(w, w.step)] = schedule::pack_visit({tile.q, chain.added++});
    const double end = add(w, chain, time + tile.cost);
    if (--chain.left == 0) {
      ++chain.wave;
      open_wave(chain, tile.q);
      wake(any_tile_, time);
      if (!parked_.empty()) {
        if (const auto parked = parked_.find(chain_index(w, tile.q)); parked != parked_.end()) {
          wake(parked->second, time);
          parked_.erase(parked);
        }
      }
    }
    if (++w.step < tiles_of(w.unit).size()) {
      w.at = next_at(w);
    } else if (++w.head < members_) {
      begin_head(w);
    } else {
      take_item(worker, end);
      return;
    }
    free_.push({end, worker});
  }

  void wake(std::vector<Free>& parked, double time) {
    for (const Free& one : parked) free_.push({std::max(one.time, time), one.worker});
    parked.clear();
  }

  /// Adds a tile that is computed at `computed`; returns when the worker can go on.
  double add(Worker& w, Chain& chain, double computed) {
    double staged = computed;
    if (costs_.staging > 0) staged = std::max(computed, w.staged[w.oldest]);
    const double end = std::max({staged, w.adder_free, chain.ready}) + costs_.reduce;
    chain.ready = end + costs_.handover;
    w.adder_free = end;
    makespan_ = std::max(makespan_, end);
    if (costs_.staging == 0) return end;
    w.staged[w.oldest] = end;
    w.oldest = (w.oldest + 1) % w.staged.size();
    return staged;
  }

  const Geometry& g_;
  const SimulationCosts& costs_;
  const ArrivalVisits visits_;
  int patterns_ = 1, members_ = 1;
  std::vector<std::vector<Tile>> tiles_;  ///< of each unit, upwards
  std::vector<int> order_;                ///< units in dispatch order
  std::vector<int> in_wave_;              ///< [wave][Q tile] units of the wave that visit it
  std::vector<Chain> chains_;             ///< [pattern][member][Q tile]
  std::vector<bool> visited_;             ///< greedy: by the word that the tile's place among the unit's tiles names
  std::vector<Worker> workers_;
  std::unordered_map<std::size_t, std::vector<Free>> parked_;  ///< wait for an earlier wave, by chain
  std::vector<Free> any_tile_;                                 ///< greedy: the same at all their tiles
  std::priority_queue<Free> free_;
  int next_item_ = 0;
  double makespan_ = 0;
  ArrivalTable table_;
};

}  // namespace

std::uint64_t ArrivalTable::hash() const {
  const std::string hex = sha256_hex(std::as_bytes(std::span(words)));
  return std::stoull(hex.substr(0, 16), nullptr, 16);
}

Result<void> check_table_size(const Geometry& g, std::int64_t visits) {
  if (g.q_tiles > schedule::kMostVisited || g.units > schedule::kMostVisited) {
    return Error{
        ErrorCode::unsupported,
        fmt::format("schedule arrival, and a mask by expression, number at most {} Q tiles and units, and a head has {} and {}; "
                    "use another schedule, or shorter sequences",
                    schedule::kMostVisited, g.q_tiles, g.units)};
  }
  if (visits > kMostVisits) {
    return Error{
        ErrorCode::unsupported,
        fmt::format("schedule arrival, or a mask by expression, would need a table of {} visits; {} are the most. Use another "
                    "schedule, or shorter sequences",
                    visits, kMostVisits)};
  }
  return {};
}

Result<ArrivalTable> make_arrival(const Geometry& geometry, std::int64_t workers, const SimulationCosts& costs,
                                  ArrivalVisits visits, const TileMap& tiles) {
  Run run(geometry, workers, costs, visits);
  if (auto read = run.read(tiles); !read) return read.error();
  return run.run();
}

SimulationCosts costs_of(const Arrival& a) {
  return {.compute = {static_cast<double>(a.compute), static_cast<double>(a.diagonal), static_cast<double>(a.partial)},
          .reduce = static_cast<double>(a.reduce),
          .handover = static_cast<double>(a.handover),
          .unit = static_cast<double>(a.unit),
          .staging = a.staging};
}

namespace {
Result<ArrivalTable> simulate_arrival(const AttentionBackward& problem, const Geometry& g, const Plan& plan) {
  auto table = make_arrival(g, plan.workers, costs_of(*plan.arrival), plan.arrival->visits, TileMap(g, mask_of(problem, plan)));
  if (table) add_mask(problem, plan, *table);
  return table;
}
}  // namespace

Result<Plan> with_arrival_hash(const AttentionBackward& problem, Plan plan) {
  if (!plan.arrival) return plan;
  const auto table = simulate_arrival(problem, make_geometry(problem, plan), plan);
  if (!table) return table.error();
  plan.arrival->hash = table->hash();
  return plan;
}

Result<ArrivalTable> arrival_of(const AttentionBackward& problem, const Plan& plan) {
  const Geometry g = make_geometry(problem, plan);
  auto table = simulate_arrival(problem, g, plan);
  if (!table || table->hash() == plan.arrival->hash) return table;
  return Error{
      ErrorCode::invalid_plan,
      fmt::format(
          "schedule arrival: the orders of adds for batch {}, {} KV heads, seqlen_q {}, seqlen_k {}, {} workers and head_group "
          "{} hash to {:016x}, and the plan says {:016x}: it was made for another problem, or edited; make a plan for this one, "
          "or write hash:{:016x} to take these",
          problem.batch, problem.kv_heads, problem.seqlen_q, problem.seqlen_k, plan.workers, g.head_group, table->hash(),
          plan.arrival->hash, table->hash())};
}

}  // namespace ordo
