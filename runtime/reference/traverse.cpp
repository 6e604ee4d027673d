#include "runtime/reference/traverse.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codegen/schedule/rules.hpp"

namespace ordo::reference {
namespace {

// Where an item stands.
struct Walker {
  Cursor at;
  int steps = 0;
  int head = 0;
};

class Traversal {
 public:
  Traversal(const schedule::Geometry& geometry, int group)
      : geometry_(geometry),
        group_(group),
        turns_(static_cast<std::size_t>(geometry.walks) * static_cast<std::size_t>(group) *
               static_cast<std::size_t>(geometry.q_tiles)) {
    for (int index = 0; index < schedule::items(geometry); ++index) {
      const schedule::Item item = ScheduleRules::item_at(geometry, index);
      const int steps = ScheduleRules::steps(geometry, item.unit);
      if (steps == 0) continue;
      active_.push_back({ScheduleRules::begin(geometry, item), steps, 0});
      total_ += std::int64_t{steps} * group;
    }
  }

  [[nodiscard]] bool finished() const { return active_.empty(); }
  [[nodiscard]] double share() const { return static_cast<double>(done_) / static_cast<double>(total_); }
  [[nodiscard]] const std::vector<std::size_t>& ready() const { return ready_; }
  [[nodiscard]] Step step(std::size_t index) const {
    const Walker& walker = active_[index];
    return {walker.at.item.walk, walker.head, walker.at.unit, walker.at.q};
  }

  // A walker that the schedule sends off the grid; nullptr when there is none.
  [[nodiscard]] const Walker* strayed() const {
    for (const Walker& walker : active_) {
      if (walker.at.q < 0 || walker.at.q >= geometry_.q_tiles || walker.at.unit < 0 || walker.at.unit >= geometry_.units)
        return &walker;
    }
    return nullptr;
  }

  // The walkers whose turn it is. A tile that has been given away is marked, so that a second one of the same rank waits for ever
  // (and is reported) instead of racing.
  void find_ready() {
    ready_.clear();
    for (std::size_t i = 0; i < active_.size(); ++i) {
      int& turn = turn_of(active_[i]);
      if (turn != ScheduleRules::rank(geometry_, active_[i].at)) continue;
      turn = -1 - turn;
      ready_.push_back(i);
    }
  }

  void advance_ready() {
    for (const std::size_t i : ready_) {
      Walker& walker = active_[i];
      int& turn = turn_of(walker);
      turn = -turn;  // -(-1 - turn) is the next turn
      if (walker.at.step + 1 < walker.steps) {
        ScheduleRules::advance(geometry_, walker.at);
      } else {
        ++walker.head;
        walker.at = ScheduleRules::begin(geometry_, walker.at.item);
      }
    }
    done_ += static_cast<std::int64_t>(ready_.size());
    std::erase_if(active_, [this](const Walker& walker) { return walker.head == group_; });
  }

 private:
  int& turn_of(const Walker& walker) {
    const std::int64_t head = std::int64_t{walker.at.item.walk} * group_ + walker.head;
    return turns_[static_cast<std::size_t>(head * geometry_.q_tiles + walker.at.q)];
  }

  const schedule::Geometry& geometry_;
  int group_;
  std::vector<int> turns_;  ///< [walk][head][Q tile]: the rank that may add next
  std::vector<Walker> active_;
  std::vector<std::size_t> ready_;
  std::int64_t total_ = 0, done_ = 0;
};

}  // namespace

Result<void> traverse(const schedule::Geometry& geometry, int group, Workers& workers,
                      const std::function<void(const Step&, int)>& step, const std::function<void(double)>& progress) {
  Traversal traversal(geometry, group);
  while (!traversal.finished()) {
    if (const Walker* walker = traversal.strayed()) {
      return Error{ErrorCode::internal,
                   fmt::format("the schedule leaves the grid: KV unit {} at Q tile {}, of {} units and {} Q tiles",
                               walker->at.unit, walker->at.q, geometry.units, geometry.q_tiles)};
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
