#include "codegen/schedule/simulator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <queue>
#include <unordered_map>

#include "codegen/fields.hpp"
#include "codegen/schedule/geometry.hpp"
#include "codegen/schedule/proof.hpp"
#include "codegen/schedule/rules.hpp"

namespace ordo {
namespace {

using schedule::Geometry;
using schedule::Kind;

constexpr std::int64_t kMostTasks = std::int64_t{1} << 22;

double compute_cost(const Geometry& g, const TileCosts& costs, int unit, int q) {
  const std::int64_t first_row = std::int64_t{q} * g.tile_q;
  const std::int64_t last_key = std::min<std::int64_t>((unit + std::int64_t{1}) * g.unit_kv, g.seqlen_k) - 1;
  if (g.causal && last_key > first_row + g.seqlen_k - g.seqlen_q) return costs.diagonal;
  const bool cut = first_row + g.tile_q > g.seqlen_q || (unit + std::int64_t{1}) * g.unit_kv > g.seqlen_k;
  return cut ? costs.partial : costs.full;
}

/// A task as it happened: computes in [start, computed], adds in [added, end]; stalls in between.
struct Task {
  int worker, head, kv, q;
  double start, computed, added, end;
  std::int64_t before_on_worker;  ///< index of the worker's previous task, or -1
  std::int64_t before_in_chain;   ///< index of the task that added before it, or -1
};

/// One simulation from the first event to the last.
class Run {
 public:
  explicit Run(const Simulation& simulation)
      : s_(simulation),
        g_(simulation.geometry),
        items_(schedule::items(g_)),
        workers_(static_cast<std::size_t>(simulation.workers)),
        chains_(static_cast<std::size_t>(g_.walks) * static_cast<std::size_t>(s_.query_heads) *
                static_cast<std::size_t>(g_.q_tiles)) {}

  /// False when some task's turn never comes.
  bool run() {
    for (int worker = 0; worker < static_cast<int>(workers_.size()) && next_item_ < items_; ++worker) take_item(worker, 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      Worker& worker = workers_[static_cast<std::size_t>(event.worker)];
      if (worker.adding) {
        finish_add(event.worker, event.time);
      } else {
        worker.task.computed = event.time;
        try_add(event.worker);
      }
    }
    return waiting_.empty();
  }

  std::vector<WorkerTime> totals() const {
    std::vector<WorkerTime> out;
    out.reserve(workers_.size());
    for (const Worker& worker : workers_) out.push_back(worker.time);
    return out;
  }
  double makespan() const { return makespan_; }
  const std::vector<Task>& tasks() const { return tasks_; }

 private:
  struct Event {
    double time;
    int worker;
    bool operator<(const Event& other) const { return time != other.time ? time > other.time : worker > other.worker; }
  };
  struct Worker {
    Cursor at;
    int steps = 0;
    int query_head = 0;
    bool adding = false;
    Task task{};
    std::int64_t last_task = -1;
    WorkerTime time;
  };
  struct Chain {
    int turn = 0;
    double ready = 0;
    std::int64_t last_task = -1;
  };

  void take_item(int worker, double time) {
    Worker& w = workers_[static_cast<std::size_t>(worker)];
    while (next_item_ < items_) {
      const schedule::Item item = schedule::item_at(g_, next_item_++);
      w.steps = ScheduleRules::steps(g_, item.unit);
      if (w.steps == 0) continue;
      w.at = ScheduleRules::begin(g_, item);
      w.query_head = 0;
      start_task(worker, time);
      return;
    }
  }

  void start_task(int worker, double time) {
    Worker& w = workers_[static_cast<std::size_t>(worker)];
    w.adding = false;
    w.task = {worker, w.at.item.walk * s_.query_heads + w.query_head, w.at.unit, w.at.q, time, 0, 0, 0, w.last_task, -1};
    events_.push({time + compute_cost(g_, s_.costs.compute, w.at.unit, w.at.q), worker});
  }

  /// Starts the add of a computed task if its turn has come, else parks the worker.
  void try_add(int worker) {
    Worker& w = workers_[static_cast<std::size_t>(worker)];
    const Chain& chain = chain_of(w.task);
    const int rank = ScheduleRules::rank(g_, w.at);
    if (chain.turn != rank) {
      waiting_.emplace(key(w.task, rank), worker);
      return;
    }
    w.adding = true;
    w.task.added = std::max(w.task.computed, chain.ready);
    w.task.before_in_chain = chain.last_task;
    events_.push({w.task.added + s_.costs.reduce, worker});
  }

  void finish_add(int worker, double time) {
    Worker& w = workers_[static_cast<std::size_t>(worker)];
    w.task.end = time;
    w.time.stall += w.task.added - w.task.computed;
    w.time.busy += (w.task.computed - w.task.start) + (time - w.task.added);
    makespan_ = std::max(makespan_, time);
    if (s_.record) {
      w.last_task = static_cast<std::int64_t>(tasks_.size());
      tasks_.push_back(w.task);
    }
    Chain& chain = chain_of(w.task);
    ++chain.turn;
    chain.ready = time + s_.costs.handover;
    chain.last_task = w.last_task;
    if (auto next = waiting_.find(key(w.task, chain.turn)); next != waiting_.end()) {
      const int waiter = next->second;
      waiting_.erase(next);
      try_add(waiter);
    }
    next_task(worker, time);
  }

  void next_task(int worker, double time) {
    Worker& w = workers_[static_cast<std::size_t>(worker)];
    if (w.at.step + 1 < w.steps) {
      ScheduleRules::advance(g_, w.at);
    } else if (w.query_head + 1 < s_.query_heads) {
      ++w.query_head;
      w.at = ScheduleRules::begin(g_, w.at.item);
    } else {
      take_item(worker, time);
      return;
    }
    start_task(worker, time);
  }

  std::size_t chain_index(const Task& task) const {
    return static_cast<std::size_t>(task.head) * static_cast<std::size_t>(g_.q_tiles) + static_cast<std::size_t>(task.q);
  }
  Chain& chain_of(const Task& task) { return chains_[chain_index(task)]; }
  std::uint64_t key(const Task& task, int rank) const {
    return static_cast<std::uint64_t>(chain_index(task)) * (static_cast<std::uint64_t>(g_.units) + 1) +
           static_cast<std::uint64_t>(rank);
  }

  const Simulation& s_;
  const Geometry& g_;
  const int items_;
  int next_item_ = 0;
  double makespan_ = 0;
  std::vector<Worker> workers_;
  std::vector<Chain> chains_;
  std::unordered_map<std::uint64_t, int> waiting_;  ///< worker by the turn it waits for
  std::priority_queue<Event> events_;               ///< earliest first, then lowest worker
  std::vector<Task> tasks_;                         ///< in order of their ends
};

Interval interval(const Task& task, Activity activity) {
  const double start = activity == Activity::compute ? task.start : activity == Activity::stall ? task.computed : task.added;
  const double end = activity == Activity::compute ? task.computed : activity == Activity::stall ? task.added : task.end;
  return {task.worker, activity, task.head, task.kv, task.q, start, end};
}

/// Worker by worker; the tasks of one worker are in time order already.
std::vector<Interval> all_intervals(const std::vector<Task>& tasks, std::size_t workers) {
  std::vector<std::vector<Interval>> of_worker(workers);
  for (const Task& task : tasks) {
    std::vector<Interval>& line = of_worker[static_cast<std::size_t>(task.worker)];
    line.push_back(interval(task, Activity::compute));
    if (task.added > task.computed) line.push_back(interval(task, Activity::stall));
    line.push_back(interval(task, Activity::reduce));
  }
  std::vector<Interval> out;
  for (const std::vector<Interval>& line : of_worker) out.insert(out.end(), line.begin(), line.end());
  return out;
}

/// From the last end backwards: a task that stalled was held up by the add before it, any other by its own worker's past.
std::vector<Interval> critical_path(const std::vector<Task>& tasks) {
  std::vector<Interval> path;
  if (tasks.empty()) return path;
  const auto last = std::max_element(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.end < b.end; });
  for (std::int64_t index = last - tasks.begin(); index >= 0;) {
    const Task& task = tasks[static_cast<std::size_t>(index)];
    path.push_back(interval(task, Activity::reduce));
    if (task.added > task.computed) {
      index = task.before_in_chain;
    } else {
      path.push_back(interval(task, Activity::compute));
      index = task.before_on_worker;
    }
  }
  std::reverse(path.begin(), path.end());
  return path;
}

/// Fills the bounds from the tiles of one query head; all heads are alike.
void fill_bounds(const Simulation& s, SimulationReport& report) {
  const Geometry& g = s.geometry;
  double head_work = 0, longest_unit = 0;
  std::vector<double> shortest_compute(static_cast<std::size_t>(g.q_tiles), INFINITY);
  for (int unit = 0; unit < g.units; ++unit) {
    double work = 0;
    for (int q = schedule::first_q(g, unit); q < g.q_tiles; ++q) {
      const double compute = compute_cost(g, s.costs.compute, unit, q);
      double& shortest = shortest_compute[static_cast<std::size_t>(q)];
      shortest = std::min(shortest, compute);
      work += compute + s.costs.reduce;
    }
    head_work += work;
    longest_unit = std::max(longest_unit, work);
  }
  for (int q = 0; q < g.q_tiles; ++q) {
    const int adds = schedule::contributors(g, q);
    if (adds == 0) continue;
    report.chain_bound = std::max(report.chain_bound, shortest_compute[static_cast<std::size_t>(q)] + adds * s.costs.reduce +
                                                          (adds - 1) * s.costs.handover);
  }
  const double all_work = head_work * s.query_heads * g.walks;
  report.work_bound = std::max(all_work / static_cast<double>(s.workers), longest_unit * s.query_heads);
  report.lower_bound = std::max(report.work_bound, report.chain_bound);
}

void fill_proof(const Simulation& s, SimulationReport& report) {
  const Geometry& g = s.geometry;
  report.proof.tasks = live_tiles(g) * s.query_heads * g.walks;
  report.proof.items = schedule::items(g);
  for (int index = 0; index < schedule::items(g);) {
    const schedule::Residents set = schedule::residents(g, index);
    report.proof.resident_set = std::max<std::int64_t>(report.proof.resident_set, set.end - set.begin);
    index = set.end;
  }
}

Result<void> check_request(const SimulationRequest& r) {
  const auto bad = [](std::string message) { return Error{ErrorCode::invalid_argument, "simulate: " + std::move(message)}; };
  constexpr std::int64_t kMost = 1 << 16;
  const std::pair<std::string_view, std::int64_t> sizes[] = {{"kv-tiles", r.kv_tiles},     {"q-tiles", r.q_tiles},
                                                             {"heads", r.heads},           {"workers", r.workers},
                                                             {"head-group", r.head_group}, {"shift-stride", r.shift_stride}};
  for (const auto& [name, value] : sizes) {
    if (value < 1 || value > kMost) return bad(fmt::format("{} is {}; it must be within 1 .. {}", name, value, kMost));
  }
  const TileCosts& c = r.costs.compute;
  for (const double cost : {c.full, c.diagonal, c.partial, r.costs.reduce, r.costs.handover}) {
    if (!std::isfinite(cost) || cost < 0) return bad(fmt::format("a cost is {}; costs are finite and not negative", cost));
  }
  const bool causal = r.mask == Mask::causal;
  if (r.schedule == Kind::shift && causal)
    return bad("schedule shift is for mask full; causal has symmetric_shift and alternate");
  if ((r.schedule == Kind::symmetric_shift || r.schedule == Kind::alternate) && !causal) {
    return bad(fmt::format("schedule {} is for mask causal; full has shift", to_string(r.schedule)));
  }
  const double tasks = static_cast<double>(r.kv_tiles) * static_cast<double>(r.q_tiles) * static_cast<double>(r.heads);
  if (tasks > static_cast<double>(kMostTasks)) {
    return bad(fmt::format("{} tiles are more than {}; a few waves of heads show the same pattern", tasks, kMostTasks));
  }
  return {};
}

}  // namespace

Result<Kind> parse_schedule_kind(std::string_view text) {
  return text::read_name(text, "schedule",
                         std::array{Kind::ascending, Kind::descending, Kind::shift, Kind::alternate, Kind::symmetric_shift});
}

std::string_view to_string(Activity activity) {
  switch (activity) {
    case Activity::compute:
      return "compute";
    case Activity::reduce:
      return "reduce";
    case Activity::stall:
      return "stall";
  }
  return "unknown";
}

std::int64_t live_tiles(const Geometry& g) {
  std::int64_t tiles = 0;
  for (int unit = 0; unit < g.units; ++unit) tiles += schedule::steps(g, unit);
  return tiles;
}

Result<SimulationReport> simulate(const Simulation& simulation) {
  SimulationReport report;
  if (simulation.prove) {
    if (auto proved = prove_schedule(simulation.geometry, simulation.workers); !proved) return proved.error();
    fill_proof(simulation, report);
  }
  Run run(simulation);
  if (!run.run()) {
    return Error{ErrorCode::internal,
                 fmt::format("schedule {} passed its proof but stopped in the simulation", to_string(simulation.geometry.kind))};
  }
  report.makespan = run.makespan();
  report.workers = run.totals();
  for (const WorkerTime& worker : report.workers) report.stall_total += worker.stall;
  fill_bounds(simulation, report);
  if (simulation.record) {
    report.intervals = all_intervals(run.tasks(), report.workers.size());
    report.critical_path = critical_path(run.tasks());
  }
  return report;
}

Result<SimulationReport> simulate(const SimulationRequest& request) {
  if (auto checked = check_request(request); !checked) return checked.error();
  Geometry g{};
  g.kind = request.schedule;
  g.causal = request.mask == Mask::causal;
  g.tile_q = g.unit_kv = 2;  // two rows by two keys, so that the causal boundary crosses the diagonal tiles
  g.q_tiles = static_cast<int>(request.q_tiles);
  g.units = static_cast<int>(request.kv_tiles);
  g.seqlen_q = g.q_tiles * g.tile_q;
  g.seqlen_k = g.units * g.unit_kv;
  g.walks = static_cast<int>(request.heads);
  g.head_group = static_cast<int>(std::min(request.head_group, request.heads));
  set_waves(g, request.workers, static_cast<int>(request.shift_stride));
  Simulation simulation;
  simulation.geometry = g;
  simulation.workers = request.workers;
  simulation.costs = request.costs;
  return simulate(simulation);
}

}  // namespace ordo
