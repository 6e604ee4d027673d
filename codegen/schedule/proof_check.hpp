// The proof itself, over any set of rules, so that tests can hand it wrong ones. prove_schedule() is this with ScheduleRules.
//
// What is proved, tile by tile, and why it is enough:
//  1. Every (unit, Q tile) with a visible pair, found from the mask and not from the schedule, is visited exactly once; nothing
//  else
//     is. Dispatch numbers name every (walk, item) exactly once.
//  2. The ranks at a Q tile are exactly 0 .. contributors-1.
//  3. No deadlock. Items are taken in order, `workers` of them at a time, and fall into co-resident sets of consecutive items.
//     (a) A set has at most `workers` items. (b) The ranks that a set and all sets before it hold at a Q tile are 0 .. k-1
//     without a gap, so no item waits for a later set. (c) Running one head with as many items as one walk surely has resident,
//     max(1, workers / walks of a group), each item as far as its turns allow, ends with every visit done: there is no cycle.
//     By (a) and (b) the lowest unfinished set always gets all its items started and waits for itself only; by (c) it then ends.
//     Query heads of a walk are visited one after another and have dQ tiles of their own, so the same order holds for each.
// Walks differ only by their group's parity (alternate), so one walk of each parity stands for all.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "codegen/schedule/geometry.hpp"
#include "codegen/schedule/rules.hpp"
#include "ordo/error.hpp"

namespace ordo {

/// Whether any row of Q tile `q` sees any key of `unit`, from the definition of the mask.
inline bool is_live(const schedule::Geometry& g, int unit, int q) {
  if (!g.causal) return true;
  const std::int64_t last_row = std::min<std::int64_t>((q + std::int64_t{1}) * g.tile_q, g.seqlen_q) - 1;
  return std::int64_t{unit} * g.unit_kv <= last_row + g.seqlen_k - g.seqlen_q;
}

/// One proof over `Rules` (see ScheduleRules for what it must have).
template <class Rules>
class Proof {
 public:
  Proof(const Rules& rules, const schedule::Geometry& geometry, std::int64_t workers)
      : rules_(rules), g_(geometry), workers_(workers), per_walk_(schedule::walk_items(geometry)) {}

  Result<void> run() {
    if (auto checked = check_dispatch(); !checked) return checked;
    const int parities = g_.kind == schedule::Kind::alternate ? 2 : 1;
    for (int parity = 0; parity < parities; ++parity) {
      flipped_ = parity == 1;
      if (auto checked = check_visits(); !checked) return checked;
      if (auto checked = check_progress(); !checked) return checked;
    }
    return {};
  }

 private:
  template <class... Args>
  Error failure(fmt::format_string<Args...> text, Args&&... args) const {
    return {ErrorCode::invalid_plan,
            fmt::format("schedule {}{} is refused: {}", to_string(g_.kind), flipped_ ? " (flipped walks)" : "",
                        fmt::format(text, std::forward<Args>(args)...))};
  }

  /// Statement 1 for items, and (a): the first and the last group, between which all others are copies.
  Result<void> check_dispatch() {
    const std::int64_t group_items = std::int64_t{g_.head_group} * per_walk_;
    const std::int64_t all = std::int64_t{g_.walks} * per_walk_;
    if (auto checked = check_group(0, std::min(group_items, all)); !checked) return checked;
    const std::int64_t last = (all - 1) / group_items * group_items;
    return last == 0 ? Result<void>{} : check_group(last, all);
  }

  Result<void> check_group(std::int64_t begin, std::int64_t end) {
    const std::int64_t first_walk = begin / per_walk_;
    std::vector<bool> seen(static_cast<std::size_t>(end - begin));
    for (std::int64_t index = begin; index < end; ++index) {
      const schedule::Item item = rules_.item_at(g_, static_cast<int>(index));
      const std::int64_t slot = (item.walk - first_walk) * per_walk_ + item.unit;
      if (item.unit < 0 || item.unit >= per_walk_ || slot < 0 || slot >= end - begin || seen[static_cast<std::size_t>(slot)]) {
        return failure("item {} is walk {} unit {}, which is out of range or dispatched twice", index, item.walk, item.unit);
      }
      seen[static_cast<std::size_t>(slot)] = true;
      const schedule::Residents set = rules_.residents(g_, static_cast<int>(index));
      if (set.begin > index || set.end <= index || set.begin < begin || set.end > end) {
        return failure("item {} is not inside its co-resident set {} .. {}", index, set.begin, set.end - 1);
      }
      if (set.end - set.begin > workers_) {
        const std::string_view hint = g_.head_group > 1 ? "lower head_group, or take" : "take";
        return failure(
            "{} items (head_group {}) wait for each other, but only {} are resident at once; {} a schedule that waits on earlier "
            "items "
            "only (ascending, descending)",
            set.end - set.begin, g_.head_group, workers_, hint);
      }
    }
    return {};
  }

  /// Statements 1 and 2, and (b).
  Result<void> check_visits() {
    const auto q_tiles = static_cast<std::size_t>(g_.q_tiles);
    std::vector<bool> visited(q_tiles * static_cast<std::size_t>(g_.units));
    std::vector<bool> ranked(visited.size());
    std::vector<int> count(q_tiles), highest(q_tiles, -1);
    int set_end = 0;
    for (int i = 0; i < per_walk_; ++i) {
      if (auto checked = check_item(i, visited, ranked, count, highest); !checked) return checked;
      if (i >= set_end) set_end = set_end_of(i);
      if (i + 1 != set_end && i + 1 != per_walk_) continue;
      for (int q = 0; q < g_.q_tiles; ++q) {
        const auto at = static_cast<std::size_t>(q);
        if (highest[at] == count[at] - 1) continue;
        return failure(
            "at Q tile {} units up to item {} hold rank {} but are only {}: one of them waits for a unit that may never start", q,
            i, highest[at], count[at]);
      }
    }
    for (int unit = 0; unit < g_.units; ++unit) {
      for (int q = 0; q < g_.q_tiles; ++q) {
        if (visited[index_of(unit, q)] == is_live(g_, unit, q)) continue;
        return failure("unit {} {} Q tile {}", unit, is_live(g_, unit, q) ? "never visits" : "visits the fully masked", q);
      }
    }
    return {};
  }

  Result<void> check_item(int i, std::vector<bool>& visited, std::vector<bool>& ranked, std::vector<int>& count,
                          std::vector<int>& highest) {
    const schedule::Item item{0, i, flipped_};
    const int steps = rules_.steps(g_, i);
    if (steps <= 0) return {};
    Cursor at = rules_.begin(g_, item);
    for (int step = 0;;) {
      if (at.unit < 0 || at.unit >= g_.units || at.q < 0 || at.q >= g_.q_tiles) {
        return failure("step {} of item {} is unit {} Q tile {}, outside the grid of {} units and {} Q tiles", step, i, at.unit,
                       at.q, g_.units, g_.q_tiles);
      }
      if (visited[index_of(at.unit, at.q)]) return failure("unit {} visits Q tile {} twice", at.unit, at.q);
      visited[index_of(at.unit, at.q)] = true;
      const int rank = rules_.rank(g_, at);
      const auto q = static_cast<std::size_t>(at.q);
      if (rank < 0 || rank >= g_.units)
        return failure("unit {} has rank {} at Q tile {}, outside 0 .. {}", at.unit, rank, at.q, g_.units - 1);
      if (ranked[index_of(rank, at.q)]) {
        return failure("units {} and {} both have rank {} at Q tile {}", holder(rank, at.q, at.unit), at.unit, rank, at.q);
      }
      ranked[index_of(rank, at.q)] = true;
      ++count[q];
      highest[q] = std::max(highest[q], rank);
      if (++step == steps) return {};
      rules_.advance(g_, at);
    }
  }

  /// (c): a run without clocks. Any order of advancing ends in the same state, so this one decides.
  Result<void> check_progress() {
    const std::int64_t walks = std::min(g_.head_group, g_.walks);
    const std::int64_t resident = std::max<std::int64_t>(1, workers_ / walks);
    std::vector<int> turn(static_cast<std::size_t>(g_.q_tiles));
    std::unordered_map<std::int64_t, Cursor> waiting;  // by Q tile and rank
    std::vector<Cursor> runnable;
    int next = 0;
    for (std::int64_t free = resident; free > 0 && next < per_walk_; ++next) {
      if (rules_.steps(g_, next) <= 0) continue;  // ends at once
      runnable.push_back(rules_.begin(g_, {0, next, flipped_}));
      --free;
      while (!runnable.empty()) {
        Cursor at = runnable.back();
        runnable.pop_back();
        if (advance_while_its_turn(at, turn, waiting, runnable)) ++free;
      }
    }
    if (waiting.empty()) return {};
    const Cursor& stuck = waiting.begin()->second;
    const int rank = rules_.rank(g_, stuck);
    return failure(
        "unit {} waits at Q tile {} for unit {} (rank {}), which cannot add before it: a deadlock with {} resident items a walk",
        stuck.unit, stuck.q, holder(rank - 1, stuck.q, -1), rank - 1, resident);
  }

  /// Runs one item until it ends (true) or waits. Items that it lets continue become runnable.
  bool advance_while_its_turn(Cursor& at, std::vector<int>& turn, std::unordered_map<std::int64_t, Cursor>& waiting,
                              std::vector<Cursor>& runnable) {
    for (const int steps = rules_.steps(g_, at.item.unit);;) {
      int& now = turn[static_cast<std::size_t>(at.q)];
      const int rank = rules_.rank(g_, at);
      if (rank != now) {
        waiting.emplace(key(at.q, rank), at);
        return false;
      }
      ++now;
      if (!waiting.empty()) {
        if (auto next = waiting.find(key(at.q, now)); next != waiting.end()) {
          runnable.push_back(next->second);
          waiting.erase(next);
        }
      }
      if (at.step + 1 >= steps) return true;
      rules_.advance(g_, at);
    }
  }

  /// One past the last item of this walk in the co-resident set of its item `i`. Walks alternate fastest within a group.
  int set_end_of(int i) const {
    const int walks = std::min(g_.head_group, g_.walks);
    return (rules_.residents(g_, i * walks).end + walks - 1) / walks;
  }

  /// The unit other than `except` with `rank` at Q tile `q`; -1 when none. For messages.
  int holder(int rank, int q, int except) const {
    for (int i = 0; i < per_walk_; ++i) {
      const int steps = rules_.steps(g_, i);
      if (steps <= 0) continue;
      Cursor at = rules_.begin(g_, {0, i, flipped_});
      for (int step = 0; step < steps; ++step) {
        if (step > 0) rules_.advance(g_, at);
        if (at.q == q && at.unit != except && rules_.rank(g_, at) == rank) return at.unit;
      }
    }
    return -1;
  }

  std::size_t index_of(int unit, int q) const {
    return static_cast<std::size_t>(unit) * static_cast<std::size_t>(g_.q_tiles) + static_cast<std::size_t>(q);
  }
  std::int64_t key(int q, int rank) const { return std::int64_t{q} * (std::int64_t{g_.units} + 1) + rank; }

  const Rules& rules_;
  const schedule::Geometry& g_;
  const std::int64_t workers_;
  const int per_walk_;
  bool flipped_ = false;
};

}  // namespace ordo
