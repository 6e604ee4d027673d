#include "codegen/overlap/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <random>

namespace ordo::overlap {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Simulation {
 public:
  Simulation(const StepSchedule& schedule, const TimelineCosts& costs)
      : s_(schedule), c_(costs), gather_(pattern_of(schedule.exchange) == Pattern::gather), random_(costs.seed) {
    const auto ranks = static_cast<std::size_t>(s_.ranks);
    out_.ranks.resize(ranks);
    next_step_.assign(ranks, 0);
    free_.resize(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) free_[rank].compute = start_of(static_cast<int>(rank));
    queue_.resize(ranks);
    step_end_.resize(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) step_end_[rank].assign(s_.steps[rank].size(), kNever);
    arrived_.assign(s_.transfers.size(), kNever);
    inbound_.resize(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) inbound_[rank].resize(s_.steps[rank].size());
    for (std::size_t i = 0; i < s_.transfers.size(); ++i) {
      const Transfer& t = s_.transfers[i];
      queue_[static_cast<std::size_t>(t.from)].push(static_cast<int>(i));
      if (t.needed_by != kAtEnd)
        inbound_[static_cast<std::size_t>(t.to)][static_cast<std::size_t>(t.needed_by)].push_back(static_cast<int>(i));
    }
    // Random numbers are drawn up front, in the list's order, so that they do not depend on the course of events.
    for (int rank = 0; rank < s_.ranks; ++rank) {
      step_time_.emplace_back();
      for (const Step& step : s_.steps_of(rank)) step_time_.back().push_back(c_.compute(rank, step) * factor());
    }
    for (const Transfer& t : s_.transfers) {
      transfer_time_.push_back(t.bytes > 0 ? (c_.transfer_latency + static_cast<double>(t.bytes) / c_.bytes_per_second) * factor()
                                           : 0);
    }
  }

  Timeline run() {
    // Each round does whatever can be done now, the earliest first; the proof says that something always can.
    while (advance_steps() || start_transfer()) {
    }
    finish();
    return std::move(out_);
  }

 private:
  struct Engines {
    double compute = 0, send = 0, receive = 0;
  };
  double factor() { return 1 + c_.jitter * std::uniform_real_distribution<double>(0, 1)(random_); }
  [[nodiscard]] double start_of(int rank) const { return c_.start.empty() ? 0 : c_.start[static_cast<std::size_t>(rank)]; }
  Engines& engines(int rank) { return free_[static_cast<std::size_t>(rank)]; }
  void record(int rank, Lane lane, int index, double start, double end) {
    if (end > start) out_.spans.push_back({rank, lane, index, start, end});
  }

  // All steps whose transfers have arrived.
  bool advance_steps() {
    bool any = false;
    for (int rank = 0; rank < s_.ranks; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      while (next_step_[r] < s_.steps[r].size()) {
        double arrival = 0;
        for (const int index : inbound_[r][next_step_[r]]) arrival = std::max(arrival, arrived_[static_cast<std::size_t>(index)]);
        if (arrival == kNever) break;
        compute(rank, arrival);
        any = true;
      }
    }
    return any;
  }

  void compute(int rank, double arrival) {
    const auto r = static_cast<std::size_t>(rank);
    const auto step = static_cast<int>(next_step_[r]);
    RankTime& time = out_.ranks[r];
    const double begin = engines(rank).compute, length = step_time_[r][next_step_[r]];
    const double wait = std::max(0.0, gather_ ? arrival - begin : arrival - (begin + length));
    const double start = gather_ ? begin + wait : begin;
    record(rank, Lane::stall, step, gather_ ? begin : begin + length, (gather_ ? begin : begin + length) + wait);
    record(rank, Lane::compute, step, start, start + length);
    time.compute += length;
    time.stall += wait;
    engines(rank).compute = step_end_[r][next_step_[r]] = begin + length + wait;
    ++next_step_[r];
  }

  // When the transfer could start, were its turn now; kNever while what it carries is not there.
  double possible(int index) {
    const Transfer& t = s_.transfers[static_cast<std::size_t>(index)];
    double at = std::max({engines(t.from).send, engines(t.to).receive, start_of(t.from)});
    if (t.after_step != kNone)
      at = std::max(at, step_end_[static_cast<std::size_t>(t.from)][static_cast<std::size_t>(t.after_step)]);
    if (t.after_transfer != kNone) at = std::max(at, arrived_[static_cast<std::size_t>(t.after_transfer)]);
    return at;
  }

  bool start_transfer() {
    int best = -1;
    double at = kNever;
    for (const auto& queue : queue_) {
      if (queue.empty()) continue;
      if (const double when = possible(queue.front()); when < at) {
        at = when;
        best = queue.front();
      }
    }
    if (best < 0) return false;
    const Transfer& t = s_.transfers[static_cast<std::size_t>(best)];
    const double length = transfer_time_[static_cast<std::size_t>(best)], end = at + length;
    queue_[static_cast<std::size_t>(t.from)].pop();
    arrived_[static_cast<std::size_t>(best)] = engines(t.from).send = engines(t.to).receive = end;
    out_.ranks[static_cast<std::size_t>(t.from)].send += length;
    out_.ranks[static_cast<std::size_t>(t.to)].receive += length;
    record(t.from, Lane::send, best, at, end);
    record(t.to, Lane::receive, best, at, end);
    return true;
  }

  void finish() {
    for (int rank = 0; rank < s_.ranks; ++rank) out_.ranks[static_cast<std::size_t>(rank)].end = engines(rank).compute;
    for (std::size_t i = 0; i < s_.transfers.size(); ++i) {
      if (s_.transfers[i].needed_by != kAtEnd) continue;
      RankTime& receiver = out_.ranks[static_cast<std::size_t>(s_.transfers[i].to)];
      receiver.end = std::max(receiver.end, arrived_[i]);
    }
    double latest_start = 0;
    for (int rank = 0; rank < s_.ranks; ++rank) {
      const RankTime& time = out_.ranks[static_cast<std::size_t>(rank)];
      out_.makespan = std::max(out_.makespan, time.end);
      out_.compute = std::max(out_.compute, time.compute);
      out_.communication = std::max({out_.communication, time.send, time.receive});
      latest_start = std::max(latest_start, start_of(rank));
    }
    out_.exposed = std::max(0.0, out_.makespan - out_.compute - latest_start);
    out_.hidden = out_.communication > 0 ? std::clamp(1 - out_.exposed / out_.communication, 0.0, 1.0) : 1;
    out_.sequential = out_.communication + out_.compute;
    std::stable_sort(out_.spans.begin(), out_.spans.end(),
                     [](const Span& a, const Span& b) { return a.rank != b.rank ? a.rank < b.rank : a.start < b.start; });
  }

  const StepSchedule& s_;
  const TimelineCosts& c_;
  bool gather_;
  std::mt19937_64 random_;
  Timeline out_;
  std::vector<Engines> free_;                           ///< by rank: when each engine is free
  std::vector<std::size_t> next_step_;                  ///< by rank
  std::vector<std::queue<int>> queue_;                  ///< by rank: transfers not yet begun
  std::vector<std::vector<double>> step_end_;           ///< by rank and step
  std::vector<std::vector<double>> step_time_;          ///< by rank and step
  std::vector<double> arrived_, transfer_time_;         ///< by transfer
  std::vector<std::vector<std::vector<int>>> inbound_;  ///< by rank and step: transfers
};

Result<void> check_costs(const StepSchedule& schedule, const TimelineCosts& costs) {
  const auto bad = [](double value) { return !std::isfinite(value) || value < 0; };
  const bool starts = costs.start.empty() || costs.start.size() == static_cast<std::size_t>(schedule.ranks);
  if (!starts)
    return Error{ErrorCode::invalid_argument, fmt::format("{} starts for {} ranks", costs.start.size(), schedule.ranks)};
  if (!costs.compute) return Error{ErrorCode::invalid_argument, "the time of a step is not given"};
  if (!(costs.bytes_per_second > 0) || bad(costs.transfer_latency) || bad(costs.jitter) ||
      std::any_of(costs.start.begin(), costs.start.end(), bad)) {
    return Error{ErrorCode::invalid_argument, "bandwidth must be above 0; latency, jitter and starts finite and at least 0"};
  }
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    for (const Step& step : schedule.steps_of(rank)) {
      if (bad(costs.compute(rank, step)))
        return Error{ErrorCode::invalid_argument, "the time of a step is negative or not finite"};
    }
  }
  return {};
}

}  // namespace

Result<Timeline> simulate_steps(const StepSchedule& schedule, const TimelineCosts& costs) {
  const StepProof proof = prove_steps(schedule);
  if (!proof.violations.empty()) return Error{ErrorCode::invalid_plan, proof.violations.front()};
  if (auto checked = check_costs(schedule, costs); !checked) return checked.error();
  return Simulation(schedule, costs).run();
}

}  // namespace ordo::overlap
