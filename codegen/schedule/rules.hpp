// A schedule as a list of visits: the one view of templates/schedule/schedule.cuh that proof, fingerprint, simulator and CPU
// executor share.
#pragma once

#include <algorithm>

#include "templates/schedule/schedule.cuh"

namespace ordo {

/// Where an item is in its walk over the Q tiles of its query heads.
struct Cursor {
  schedule::Item item;  ///< the unit, or the half of a pair, that is walked
  int head = 0;         ///< query head within the walk
  int step = 0;
  int q = 0;  ///< the Q tile of this step
};

/// The definitions, from the header that the kernels include. Tests put wrong ones in their place to see the proof refuse them.
/// An item visits, for each half of it and for the query heads of its walk in turn, the Q tiles from begin() on, steps() of them.
/// The heads from one up to together_to() are walked together: each Q tile for all of them before the next.
class ScheduleRules {
 public:
  /// Both must outlive the rules. `table` is arrival's and null for every other kind.
  explicit ScheduleRules(const schedule::Geometry& geometry, const unsigned* table = nullptr) : g_(&geometry), table_(table) {}

  /// Kinds of walk groups that follow one another in turn, and query heads of a walk with an order of their own.
  [[nodiscard]] int patterns() const {
    return g_->kind == schedule::Kind::alternate ? 2 : table_ != nullptr ? static_cast<int>(table_[0]) : 1;
  }
  [[nodiscard]] int members() const {
    if (table_ != nullptr) return static_cast<int>(table_[1]);
    return g_->kind == schedule::Kind::alternate ? std::clamp(g_->heads, 1, 2) : 1;
  }
  /// The query head that stands for order number `member`.
  [[nodiscard]] int head_of(int member) const { return table_ == nullptr && member == 1 ? g_->heads - 1 : member; }

  /// The item that a walk's `place`-th number in dispatch order stands for: its first half.
  [[nodiscard]] schedule::Item item(int walk, int place, bool flipped) const {
    const schedule::Item at{walk, place, flipped};
    return table_ != nullptr ? schedule::arrival_item(*g_, table_, at) : at;
  }
  /// The same by the number in the whole launch.
  [[nodiscard]] schedule::Item item_at(int index) const {
    const schedule::Item at = schedule::item_at(*g_, index);
    return table_ != nullptr ? schedule::arrival_item(*g_, table_, at) : at;
  }
  [[nodiscard]] schedule::Residents residents(int index) const { return schedule::residents(*g_, index); }
  [[nodiscard]] bool has_second_half(const schedule::Item& item) const { return schedule::has_second_half(*g_, item); }
  [[nodiscard]] schedule::Item second_half(const schedule::Item& item) const { return schedule::second_half(*g_, item); }

  /// Visits for each query head.
  [[nodiscard]] int steps(const schedule::Item& item) const {
    return table_ != nullptr ? schedule::arrival_steps(*g_, table_, item) : schedule::steps(*g_, item.unit);
  }
  /// The first visit. Only for items with steps() > 0.
  [[nodiscard]] Cursor begin(const schedule::Item& item, int head) const {
    Cursor at{item, head, 0, 0};
    at.q = table_ != nullptr ? visit(at).q : schedule::start_q(*g_, item, head);
    return at;
  }
  /// The next visit. Only while at.step + 1 < steps().
  void advance(Cursor& at) const {
    ++at.step;
    at.q = table_ != nullptr ? visit(at).q : schedule::next_q(*g_, at.item, at.head, at.q);
  }
  [[nodiscard]] int together_to(const Cursor& at) const { return schedule::together_with(*g_, at.item, at.head).end; }
  [[nodiscard]] int rank(const Cursor& at) const {
    return table_ != nullptr ? visit(at).rank : schedule::rank(*g_, at.item, at.q);
  }

 private:
  [[nodiscard]] schedule::Visit visit(const Cursor& at) const {
    return schedule::unpack_visit(schedule::arrival_visits(*g_, table_, at.item, at.head)[at.step]);
  }

  const schedule::Geometry* g_;
  const unsigned* table_;
};

/// The visits of a whole item: both halves, each for a range of query heads.
class ItemWalk {
 public:
  ItemWalk() = default;
  /// Walks `item` for the heads first_head .. last_head-1; done() at once when there is nothing to visit.
  template <class Rules>
  ItemWalk(const Rules& rules, const schedule::Item& item, int first_head, int last_head)
      : first_head_(first_head), last_head_(last_head) {
    enter(rules, item);
  }

  [[nodiscard]] bool done() const { return left_ == 0; }
  [[nodiscard]] const Cursor& at() const { return at_; }

  template <class Rules>
  void advance(const Rules& rules) {
    if (++at_.head < to_) return;
    if (--left_ > 0) {
      at_.head = from_;
      rules.advance(at_);
    } else if (to_ < last_head_) {
      start(rules, at_.item, to_);
    } else if (rules.has_second_half(at_.item)) {
      enter(rules, rules.second_half(at_.item));
    }
  }

 private:
  template <class Rules>
  void enter(const Rules& rules, schedule::Item item) {
    while (rules.steps(item) <= 0) {
      if (!rules.has_second_half(item)) return;
      item = rules.second_half(item);
    }
    start(rules, item, first_head_);
  }

  template <class Rules>
  void start(const Rules& rules, const schedule::Item& item, int head) {
    left_ = rules.steps(item);
    at_ = rules.begin(item, head);
    from_ = head;
    to_ = std::min(rules.together_to(at_), last_head_);
  }

  Cursor at_{};
  int first_head_ = 0, last_head_ = 1;
  int from_ = 0, to_ = 1;  ///< the query heads that are walked together now
  int left_ = 0;           ///< Q tiles of this half for them, this one included
};

}  // namespace ordo
