// The proof itself, over any set of rules, so that tests can hand it wrong ones. prove_schedule() is this with ScheduleRules.
//
// What is proved, tile by tile, and why it is enough:
//  1. Every (unit, Q tile) with a visible pair, found from the mask and not from the schedule, is visited exactly once, and
//     nothing else is. Dispatch numbers name every (walk, item) exactly once.
//  2. The ranks at a Q tile are exactly 0 .. contributors-1.
//  3. No deadlock. Items are taken in order, `workers` of them at a time, and fall into co-resident sets of consecutive items.
//     (a) A set has at most `workers` items. (b) The ranks that a set and all sets before it hold at a Q tile are 0 .. k-1
//     without a gap, so no item waits for a later set. (c) Running one head with as many items as one walk surely has resident,
//     max(1, workers / walks of a group), each item as far as its turns allow, ends with every visit done: there is no cycle.
//     By (a) and (b) the lowest unfinished set always gets all its items started and waits for itself only; by (c) it then ends.
//     Query heads of a walk are visited one after another and have dQ tiles of their own: a wait stays inside its head, and so
//     would a cycle. Those that are walked together see the same Q tiles with the same ranks: where one of them has an order
//     without a cycle, the same with each visit made for all of them, in turn, is one for all. The second half of an item begins
//     again with the first head: (d) at no Q tile does a first half wait for a second half of its own set, so that no cycle leads
//     back from second halves.
// Walks differ only by their group's parity (alternate, arrival), so one walk of each parity stands for all, and so does one
// query head of each order (alternate, arrival).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "codegen/schedule/geometry.hpp"
#include "codegen/schedule/rules.hpp"
#include "codegen/schedule/tiles.hpp"
#include "ordo/error.hpp"

namespace ordo {

/// One proof over `Rules` (see ScheduleRules for what it must have).
template <class Rules>
class Proof {
 public:
  Proof(const Rules& rules, const schedule::Geometry& geometry, std::int64_t workers, const TileMap& tiles)
      : rules_(rules), g_(geometry), workers_(workers), tiles_(tiles), per_walk_(schedule::walk_items(geometry)) {}

  Result<void> run() {
    if (auto checked = check_dispatch(); !checked) return checked;
    if (auto checked = check_together(); !checked) return checked;
    for (int pattern = 0; pattern < rules_.patterns(); ++pattern) {
      for (int member = 0; member < rules_.members(); ++member) {
        flipped_ = pattern == 1;
        head_ = rules_.head_of(member);
        if (auto checked = check_visits(); !checked) return checked;
        if (auto checked = check_progress(); !checked) return checked;
      }
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

  /// That query heads which are walked together begin every item at one Q tile with one rank.
  Result<void> check_together() {
    for (int pattern = 0; pattern < rules_.patterns(); ++pattern) {
      for (int place = 0; place < per_walk_; ++place) {
        const schedule::Item item = rules_.item(0, place, pattern == 1);
        if (rules_.steps(item) <= 0) continue;
        for (int head = 0; head < g_.heads;) {
          const Cursor first = rules_.begin(item, head);
          const int end = rules_.together_to(first);
          if (end <= head) return failure("unit {} walks query head {} together with none", item.unit, head);
          while (++head < std::min(end, g_.heads)) {
            const Cursor other = rules_.begin(item, head);
            if (other.q == first.q && rules_.rank(other) == rules_.rank(first)) continue;
            return failure("unit {} walks query heads {} and {} together, but from Q tiles {} and {}", item.unit, first.head,
                           head, first.q, other.q);
          }
        }
      }
    }
    return {};
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
      const schedule::Item item = rules_.item_at(static_cast<int>(index));
      const std::int64_t slot = (item.walk - first_walk) * per_walk_ + item.unit;
      if (item.unit < 0 || item.unit >= per_walk_ || slot < 0 || slot >= end - begin || seen[static_cast<std::size_t>(slot)]) {
        return failure("item {} is walk {} unit {}, which is out of range or dispatched twice", index, item.walk, item.unit);
      }
      seen[static_cast<std::size_t>(slot)] = true;
      const schedule::Residents set = rules_.residents(static_cast<int>(index));
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

  /// What the items so far hold of one Q tile.
  struct Held {
    int count = 0;
    int highest = -1;      ///< rank
    int last_first = -1;   ///< highest rank of a first half of the set in hand
    int first_second = 0;  ///< lowest rank of a second half of it, from the other end: 0 for none
  };
  struct Seen {
    std::vector<bool> visited, ranked;  ///< [unit or rank][Q tile]
    std::vector<Held> held;             ///< [Q tile]
  };

  /// Statements 1 and 2, (b) and (d).
  Result<void> check_visits() {
    Seen seen;
    seen.held.resize(static_cast<std::size_t>(g_.q_tiles));
    seen.visited.resize(seen.held.size() * static_cast<std::size_t>(g_.units));
    seen.ranked.resize(seen.visited.size());
    int set_end = 0;
    for (int place = 0; place < per_walk_; ++place) {
      const schedule::Item item = rules_.item(0, place, flipped_);
      if (auto checked = check_half(item, true, seen); !checked) return checked;
      if (rules_.has_second_half(item)) {
        if (auto checked = check_half(rules_.second_half(item), false, seen); !checked) return checked;
      }
      if (place >= set_end) set_end = set_end_of(place);
      if (place + 1 != set_end && place + 1 != per_walk_) continue;
      if (auto checked = check_set_end(place, seen); !checked) return checked;
    }
    for (int unit = 0; unit < g_.units; ++unit) {
      for (int q = 0; q < g_.q_tiles; ++q) {
        const bool live = tiles_.live(unit, q);
        if (seen.visited[index_of(unit, q)] == live) continue;
        return failure("unit {} {} Q tile {}", unit, live ? "never visits" : "visits the fully masked", q);
      }
    }
    return {};
  }

  /// (b) and (d), when the item at `place` is the last of its set.
  Result<void> check_set_end(int place, Seen& seen) {
    for (int q = 0; q < g_.q_tiles; ++q) {
      Held& held = seen.held[static_cast<std::size_t>(q)];
      if (held.highest != held.count - 1) {
        return failure(
            "at Q tile {} units up to item {} hold rank {} but are only {}: one of them waits for a unit that may never start", q,
            place, held.highest, held.count);
      }
      if (held.first_second != 0 && held.last_first > g_.units - held.first_second) {
        return failure("at Q tile {} the first half of an item up to item {} has rank {} and so waits for a second half", q,
                       place, held.last_first);
      }
      held.last_first = -1;
      held.first_second = 0;
    }
    return {};
  }

  Result<void> check_half(const schedule::Item& item, bool first_half, Seen& seen) {
    const int steps = rules_.steps(item);
    if (steps <= 0) return {};
    Cursor at = rules_.begin(item, head_);
    for (int step = 0;;) {
      const int unit = at.item.unit;
      if (unit < 0 || unit >= g_.units || at.q < 0 || at.q >= g_.q_tiles) {
        return failure("step {} of unit {} is Q tile {}, outside the grid of {} units and {} Q tiles", step, unit, at.q, g_.units,
                       g_.q_tiles);
      }
      if (seen.visited[index_of(unit, at.q)]) return failure("unit {} visits Q tile {} twice", unit, at.q);
      seen.visited[index_of(unit, at.q)] = true;
      const int rank = rules_.rank(at);
      if (rank < 0 || rank >= g_.units)
        return failure("unit {} has rank {} at Q tile {}, outside 0 .. {}", unit, rank, at.q, g_.units - 1);
      if (seen.ranked[index_of(rank, at.q)]) {
        return failure("units {} and {} both have rank {} at Q tile {}", holder(rank, at.q, unit), unit, rank, at.q);
      }
      seen.ranked[index_of(rank, at.q)] = true;
      Held& held = seen.held[static_cast<std::size_t>(at.q)];
      ++held.count;
      held.highest = std::max(held.highest, rank);
      if (first_half)
        held.last_first = std::max(held.last_first, rank);
      else
        held.first_second = std::max(held.first_second, g_.units - rank);
      if (++step == steps) return {};
      rules_.advance(at);
    }
  }

  /// (c): a run without clocks. Any order of advancing ends in the same state, so this one decides.
  Result<void> check_progress() {
    const std::int64_t walks = std::min(g_.head_group, g_.walks);
    const std::int64_t resident = std::max<std::int64_t>(1, workers_ / walks);
    std::vector<int> turn(static_cast<std::size_t>(g_.q_tiles));
    Waiting waiting;
    std::vector<ItemWalk> runnable;
    int next = 0;
    for (std::int64_t free = resident; free > 0 && next < per_walk_; ++next) {
      const ItemWalk walk = walk_of(next);
      if (walk.done()) continue;
      runnable.push_back(walk);
      --free;
      while (!runnable.empty()) {
        ItemWalk one = runnable.back();
        runnable.pop_back();
        if (advance_while_its_turn(one, turn, waiting, runnable)) ++free;
      }
    }
    if (waiting.empty()) return {};
    const Cursor& stuck = waiting.begin()->second.at();
    const int rank = rules_.rank(stuck);
    return failure(
        "unit {} waits at Q tile {} for unit {} (rank {}), which cannot add before it: a deadlock with {} resident items a walk",
        stuck.item.unit, stuck.q, holder(rank - 1, stuck.q, -1), rank - 1, resident);
  }

  using Waiting = std::unordered_map<std::int64_t, ItemWalk>;  ///< by Q tile and rank

  [[nodiscard]] ItemWalk walk_of(int place) const { return ItemWalk(rules_, rules_.item(0, place, flipped_), head_, head_ + 1); }

  /// Runs one item until it ends (true) or waits. Items that it lets continue become runnable.
  bool advance_while_its_turn(ItemWalk& walk, std::vector<int>& turn, Waiting& waiting, std::vector<ItemWalk>& runnable) {
    for (; !walk.done(); walk.advance(rules_)) {
      const Cursor& at = walk.at();
      int& now = turn[static_cast<std::size_t>(at.q)];
      const int rank = rules_.rank(at);
      if (rank != now) {
        waiting.emplace(key(at.q, rank), walk);
        return false;
      }
      ++now;
      if (waiting.empty()) continue;
      if (auto next = waiting.find(key(at.q, now)); next != waiting.end()) {
        runnable.push_back(next->second);
        waiting.erase(next);
      }
    }
    return true;
  }

  /// One past the last item of this walk in the co-resident set of its item `i`. Walks alternate fastest within a group.
  int set_end_of(int i) const {
    const int walks = std::min(g_.head_group, g_.walks);
    return (rules_.residents(i * walks).end + walks - 1) / walks;
  }

  /// The unit other than `except` with `rank` at Q tile `q`; -1 when none. For messages.
  int holder(int rank, int q, int except) const {
    for (int place = 0; place < per_walk_; ++place) {
      for (ItemWalk walk = walk_of(place); !walk.done(); walk.advance(rules_)) {
        const Cursor& at = walk.at();
        if (at.q == q && at.item.unit != except && rules_.rank(at) == rank) return at.item.unit;
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
  const TileMap& tiles_;
  const int per_walk_;
  bool flipped_ = false;
  int head_ = 0;
};

}  // namespace ordo
