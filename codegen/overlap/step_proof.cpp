#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "codegen/overlap/steps.hpp"

namespace ordo::overlap {
namespace {

class Proof {
 public:
  explicit Proof(const StepSchedule& schedule) : s_(schedule), pattern_(pattern_of(schedule.exchange)) {}

  StepProof run() {
    for (const auto& steps : s_.steps) out_.steps += static_cast<int>(steps.size());
    out_.transfers = static_cast<int>(s_.transfers.size());
    check_steps();
    if (check_references()) {
      check_consumers();
      check_order();
      check_last_steps();
      check_cycles();
      count_hidden_slots();
    }
    return std::move(out_);
  }

 private:
  template <class... Args>
  void violate(fmt::format_string<Args...> text, Args&&... args) {
    out_.violations.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  [[nodiscard]] int last_step(int rank) const { return static_cast<int>(s_.steps_of(rank).size()) - 1; }
  [[nodiscard]] std::string name(const Transfer& t) const {
    return fmt::format("the transfer of slice {}.{} from rank {} to {}", t.slice, t.sub, t.from, t.to);
  }
  [[nodiscard]] bool closing(const Transfer& t) const { return s_.exchange == Exchange::all_reduce && t.needed_by == kAtEnd; }

  // 1. Each chunk once.
  void check_steps() {
    for (int rank = 0; rank < s_.ranks; ++rank) {
      std::map<std::pair<int, int>, int> times;
      for (const Step& step : s_.steps_of(rank)) ++times[{step.slice, step.sub}];
      for (int slice = 0; slice < s_.ranks; ++slice) {
        for (int sub = 0; sub < s_.sub_slices; ++sub) {
          const int found = times[{slice, sub}];
          if (found != 1) violate("rank {} computes slice {}.{} {} times, not once", rank, slice, sub, found);
        }
      }
      if (times.size() != static_cast<std::size_t>(s_.ranks) * static_cast<std::size_t>(s_.sub_slices))
        violate("rank {} computes chunks that do not exist", rank);
    }
  }

  // Every index names something.
  bool check_references() {
    const auto rank_ok = [&](int rank) { return rank >= 0 && rank < s_.ranks; };
    bool sound = s_.steps.size() == static_cast<std::size_t>(s_.ranks);
    for (const Transfer& t : s_.transfers) {
      const bool ranks = rank_ok(t.from) && rank_ok(t.to) && t.from != t.to;
      const bool steps = ranks && (t.after_step == kNone || (t.after_step >= 0 && t.after_step <= last_step(t.from))) &&
                         (t.needed_by == kAtEnd || (t.needed_by >= 0 && t.needed_by <= last_step(t.to)));
      const bool before = t.after_transfer == kNone || (t.after_transfer >= 0 && t.after_transfer < out_.transfers);
      if (!steps || !before) violate("{} refers to a rank, step or transfer that does not exist", name(t));
      sound = sound && steps && before;
    }
    return sound;
  }

  // 2. The consumer computes with that chunk; every step gets what it needs, once.
  void check_consumers() {
    std::map<std::pair<int, int>, std::multiset<int>> sources;  // (rank, step): the ranks that bring it something
    std::map<std::pair<int, int>, std::multiset<int>> ends;     // (rank, sub): the ranks that bring something for the end
    for (const Transfer& t : s_.transfers) {
      if (t.needed_by == kAtEnd) {
        ends[{t.to, t.sub}].insert(t.from);
        continue;
      }
      const Step& step = s_.steps_of(t.to)[static_cast<std::size_t>(t.needed_by)];
      if (step != Step{t.slice, t.sub})
        violate("{} is for step {} of its receiver, which computes slice {}.{}", name(t), t.needed_by, step.slice, step.sub);
      sources[{t.to, t.needed_by}].insert(t.from);
    }
    for (int rank = 0; rank < s_.ranks; ++rank) {
      for (int step = 0; step <= last_step(rank); ++step) {
        const std::multiset<int> wanted = wanted_sources(rank, s_.steps_of(rank)[static_cast<std::size_t>(step)]);
        const std::multiset<int> found = sources[{rank, step}];
        if (found != wanted)
          violate("step {} of rank {} gets {} transfers where it needs {}, or from other ranks", step, rank, found.size(),
                  wanted.size());
      }
      for (int sub = 0; sub < s_.sub_slices; ++sub) {
        const std::multiset<int> wanted = wanted_at_end(rank), found = ends[{rank, sub}];
        if (found != wanted)
          violate("rank {} ends with {} arrivals of sub-slice {} where {} are due, or from other ranks", rank, found.size(), sub,
                  wanted.size());
      }
    }
  }

  [[nodiscard]] std::multiset<int> others(int rank) const {
    std::multiset<int> out;
    for (int other = 0; other < s_.ranks; ++other) {
      if (other != rank) out.insert(other);
    }
    return out;
  }

  [[nodiscard]] std::multiset<int> wanted_sources(int rank, const Step& step) const {
    if (s_.ranks == 1 || pattern_ == Pattern::scatter) return {};
    const int left = wrap(rank - 1, s_.ranks);
    if (pattern_ == Pattern::gather) {
      if (step.slice == rank) return {};
      return {s_.route == Route::ring ? left : step.slice};
    }
    if (s_.route == Route::direct) return step.slice == rank ? others(rank) : std::multiset<int>{};
    // The running sum starts at the first rank behind the owner.
    return wrap(rank - 1, s_.ranks) == step.slice ? std::multiset<int>{} : std::multiset<int>{left};
  }

  [[nodiscard]] std::multiset<int> wanted_at_end(int rank) const {
    if (s_.exchange == Exchange::all_reduce || pattern_ == Pattern::scatter) return others(rank);
    return {};
  }

  // 3. Results travel forward in time.
  void check_order() {
    for (const Transfer& t : s_.transfers) {
      if (t.after_step != kNone) {
        const Step& made = s_.steps_of(t.from)[static_cast<std::size_t>(t.after_step)];
        if (made != Step{t.slice, t.sub})
          violate("{} leaves after step {}, which computes slice {}.{}", name(t), t.after_step, made.slice, made.sub);
        if (t.needed_by != kAtEnd && t.after_step >= t.needed_by) {
          violate("{} is needed by step {} but leaves only after step {}", name(t), t.needed_by, t.after_step);
        }
      } else if (pattern_ != Pattern::gather) {
        violate("{} leaves before anything is computed", name(t));
      }
      if (t.after_transfer != kNone) {
        const Transfer& brought = s_.transfers[static_cast<std::size_t>(t.after_transfer)];
        if (brought.to != t.from || brought.slice != t.slice || brought.sub != t.sub)
          violate("{} passes on what {} did not bring", name(t), name(brought));
        if (brought.needed_by != kAtEnd && t.needed_by != kAtEnd && brought.needed_by >= t.needed_by) {
          violate("{} passes on what is needed later than itself", name(t));
        }
      } else if (pattern_ == Pattern::gather && t.slice != t.from) {
        violate("{} sends what its sender does not hold", name(t));
      }
    }
  }

  // 4. Nothing is left to send when the last step ends. A gather's step needs hops that take as many steps before it.
  void check_last_steps() {
    for (const Transfer& t : s_.transfers) {
      if (closing(t)) continue;
      if (t.after_step == last_step(t.from)) violate("the last step of rank {} starts {}", t.from, name(t));
      if (pattern_ != Pattern::gather) continue;
      int hops = 1;
      for (int index = t.after_transfer; index != kNone; index = s_.transfers[static_cast<std::size_t>(index)].after_transfer) {
        if (++hops > s_.ranks) break;  // a cycle, which check_cycles names
      }
      const Step& step = s_.steps_of(t.to)[static_cast<std::size_t>(t.needed_by)];
      const int round = step_of_slice(pattern_, s_.route, t.to, s_.ranks, step.slice);
      if (hops > round) violate("{} takes {} hops but is needed in round {}", name(t), hops, round);
    }
  }

  // 5. Steps of a rank and the transfers of its queue are done in order; what a step needs comes before it.
  void check_cycles() {
    std::vector<int> first(static_cast<std::size_t>(s_.ranks) + 1, 0);
    for (int rank = 0; rank < s_.ranks; ++rank)
      first[static_cast<std::size_t>(rank) + 1] = first[static_cast<std::size_t>(rank)] + last_step(rank) + 1;
    const auto step_node = [&](int rank, int step) { return first[static_cast<std::size_t>(rank)] + step; };
    const int steps = first.back(), nodes = steps + out_.transfers;
    std::vector<std::vector<int>> next(static_cast<std::size_t>(nodes));
    std::vector<int> waits(static_cast<std::size_t>(nodes), 0);
    const auto edge = [&](int before, int after) {
      next[static_cast<std::size_t>(before)].push_back(after);
      ++waits[static_cast<std::size_t>(after)];
    };
    for (int rank = 0; rank < s_.ranks; ++rank) {
      for (int step = 1; step <= last_step(rank); ++step) edge(step_node(rank, step - 1), step_node(rank, step));
    }
    std::map<int, int> queue;  // by rank: its last transfer
    for (int i = 0; i < out_.transfers; ++i) {
      const Transfer& t = s_.transfers[static_cast<std::size_t>(i)];
      if (t.after_step != kNone) edge(step_node(t.from, t.after_step), steps + i);
      if (t.after_transfer != kNone) edge(steps + t.after_transfer, steps + i);
      if (t.needed_by != kAtEnd) edge(steps + i, step_node(t.to, t.needed_by));
      if (const auto before = queue.find(t.from); before != queue.end()) edge(steps + before->second, steps + i);
      queue[t.from] = i;
    }
    std::vector<int> ready;
    for (int node = 0; node < nodes; ++node) {
      if (waits[static_cast<std::size_t>(node)] == 0) ready.push_back(node);
    }
    int done = 0;
    while (!ready.empty()) {
      const int node = ready.back();
      ready.pop_back();
      ++done;
      for (const int after : next[static_cast<std::size_t>(node)]) {
        if (--waits[static_cast<std::size_t>(after)] == 0) ready.push_back(after);
      }
    }
    if (done == nodes) return;
    for (int i = 0; i < out_.transfers; ++i) {
      if (waits[static_cast<std::size_t>(steps) + static_cast<std::size_t>(i)] == 0) continue;
      violate("deadlock: {} waits for what waits for it", name(s_.transfers[static_cast<std::size_t>(i)]));
      return;
    }
    violate("deadlock between steps");
  }

  void count_hidden_slots() {
    std::set<int> slots, exposed;
    for (const Transfer& t : s_.transfers) {
      slots.insert(t.slot);
      if (closing(t) || t.after_step == last_step(t.from)) exposed.insert(t.slot);
    }
    out_.slots_behind_compute = static_cast<int>(slots.size() - exposed.size());
  }

  const StepSchedule& s_;
  Pattern pattern_;
  StepProof out_;
};

}  // namespace

StepProof prove_steps(const StepSchedule& schedule) { return Proof(schedule).run(); }

}  // namespace ordo::overlap
