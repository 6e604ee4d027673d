#include "runtime/reference/traverse.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codegen/schedule/rules.hpp"

namespace ordo::reference {
namespace {

class Traversal {
 public:
  Traversal(const schedule::Geometry& geometry, const ScheduleRules& rules, int group)
      : geometry_(geometry),
        rules_(rules),
        group_(group),
        turns_(static_cast<std::size_t>(geometry.walks) * static_cast<std::size_t>(group) *
               static_cast<std::size_t>(geometry.q_tiles)) {
    for (int index = 0; index < schedule::items(geometry); ++index) {
      const schedule::Item item = rules.item_at(index);
      total_ += rules.steps(item);
      if (rules.has_second_half(item)) total_ += rules.steps(rules.second_half(item));
      if (const ItemWalk walk(rules, item, 0, group); !walk.done()) active_.push_back(walk);
    }
    total_ *= group;
  }

  [[nodiscard]] bool finished() const { return active_.empty(); }
  [[nodiscard]] double share() const { return static_cast<double>(done_) / static_cast<double>(total_); }
  [[nodiscard]] const std::vector<std::size_t>& ready() const { return ready_; }
  [[nodiscard]] Step step(std::size_t index) const {
    const Cursor& at = active_[index].at();
    return {at.item.walk, at.head, at.item.unit, at.q};
  }

  // The visit of a walker that the schedule sends off the grid; nullptr when there is none.
  [[nodiscard]] const Cursor* strayed() const {
    for (const ItemWalk& walker : active_) {
      const Cursor& at = walker.at();
      if (at.q < 0 || at.q >= geometry_.q_tiles || at.item.unit < 0 || at.item.unit >= geometry_.units) return &at;
    }
    return nullptr;
  }

  // The walkers whose turn it is. A tile that has been given away is marked, so that a second one of the same rank waits for ever
  // (and is reported) instead of racing.
  void find_ready() {
    ready_.clear();
    for (std::size_t i = 0; i < active_.size(); ++i) {
      int& turn = turn_of(active_[i].at());
      if (turn != rules_.rank(active_[i].at())) continue;
      turn = -1 - turn;
      ready_.push_back(i);
    }
  }

  void advance_ready() {
    for (const std::size_t i : ready_) {
      int& turn = turn_of(active_[i].at());
      turn = -turn;  // -(-1 - turn) is the next turn
      active_[i].advance(rules_);
    }
    done_ += static_cast<std::int64_t>(ready_.size());
    std::erase_if(active_, [](const ItemWalk& walker) { return walker.done(); });
  }

 private:
  int& turn_of(const Cursor& at) {
    const std::int64_t head = std::int64_t{at.item.walk} * group_ + at.head;
    return turns_[static_cast<std::size_t>(head * geometry_.q_tiles + at.q)];
  }

  const schedule::Geometry& geometry_;
  const ScheduleRules& rules_;
  int group_;
  std::vector<int> turns_;  ///< [walk][head][Q tile]: the rank that may add next
  std::vector<ItemWalk> active_;
  std::vector<std::size_t> ready_;
  std::int64_t total_ = 0, done_ = 0;
};

}  // namespace

Result<void> traverse(const schedule::Geometry& geometry, const ArrivalTable* table, int group, Workers& workers,
                      const std::function<void(const Step&, int)>& step, const std::function<void(double)>& progress) {
  const ScheduleRules rules(geometry, table != nullptr ? table->words.data() : nullptr);
  Traversal traversal(geometry, rules, group);
  while (!traversal.finished()) {
    if (const Cursor* at = traversal.strayed()) {
      return Error{ErrorCode::internal,
                   fmt::format("the schedule leaves the grid: KV unit {} at Q tile {}, of {} units and {} Q tiles", at->item.unit,
                               at->q, geometry.units, geometry.q_tiles)};
    }
    traversal.find_ready();
    const std::vector<std::size_t>& ready = traversal.ready();
    if (ready.empty()) {
      const Step stuck = traversal.step(0);
      return Error{ErrorCode::internal,
                   fmt::format("the schedule stands still: KV unit {} of walk {} waits for its turn at Q tile {}", stuck.unit,
                               stuck.walk, stuck.q)};
    }
    workers.run(static_cast<std::int64_t>(ready.size()),
                [&](std::int64_t index, int worker) { step(traversal.step(ready[static_cast<std::size_t>(index)]), worker); });
    traversal.advance_ready();
    if (progress) progress(traversal.share());
  }
  return {};
}

}  // namespace ordo::reference
