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

double cost_of(const TileCosts& costs, TileKind kind) {
  return kind == TileKind::diagonal ? costs.diagonal : kind == TileKind::partial ? costs.partial : costs.full;
}

/// A task as it happened: computes in [start, computed], is staged, adds in [added, end].
struct Task {
  int worker = 0, head = 0, kv = 0, q = 0, rank = 0;
  double start = 0, computed = 0, staged = 0, turn = 0, added = 0, end = 0;
  std::int64_t index = -1;             ///< of the task, by its start
  std::int64_t before_on_worker = -1;  ///< the worker's task before it
  std::int64_t before_in_chain = -1;   ///< the task that added before it into the same dQ tile
};

/// One simulation from the first event to the last.
class Run {
 public:
  Run(const Simulation& simulation, const TileMap& tiles)
      : s_(simulation),
        g_(simulation.geometry),
        tiles_(tiles),
        rules_(g_, simulation.table != nullptr ? simulation.table->words.data() : nullptr),
        items_(schedule::items(g_)),
        workers_(static_cast<std::size_t>(simulation.workers)),
        chains_(static_cast<std::size_t>(g_.walks) * static_cast<std::size_t>(g_.heads) * static_cast<std::size_t>(g_.q_tiles)) {}

  /// False when some task's turn never comes.
  bool run() {
    for (int worker = 0; worker < static_cast<int>(workers_.size()) && next_item_ < items_; ++worker) take_item(worker, 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (event.add)
        finish_add(event.worker, event.time);
      else
        finish_compute(event.worker, event.time);
    }
    return waiting_.empty() && next_item_ == items_;
  }

  std::vector<WorkerTime> totals() const {
    std::vector<WorkerTime> out;
    out.reserve(workers_.size());
    for (const Worker& worker : workers_) out.push_back(worker.time);
    return out;
  }
  double makespan() const { return makespan_; }
  /// By their start.
  const std::vector<Task>& tasks() const { return tasks_; }

 private:
  struct Event {
    double time;
    int worker;
    bool add;  ///< the end of an add; else of a compute
    bool operator<(const Event& other) const {
      if (time != other.time) return time > other.time;
      return worker != other.worker ? worker > other.worker : !add && other.add;
    }
  };
  struct Worker {
    ItemWalk walk;
    Task task{};               ///< being computed, or computed and without room
    bool blocked = false;      ///< `task` is computed and cannot be staged
    std::vector<Task> staged;  ///< oldest first; the first is being added, or next to be
    bool adding = false;
    double adder_free = 0;
    std::int64_t last_task = -1;
    int set_end = 0;  ///< of the resident set of the item in hand
    double idle_since = 0;
    WorkerTime time;
  };
  struct Chain {
    int turn = 0;
    double ready = 0;
    std::int64_t last_task = -1;
  };

  Worker& worker_of(int worker) { return workers_[static_cast<std::size_t>(worker)]; }

  void take_item(int worker, double time) {
    Worker& w = worker_of(worker);
    while (next_item_ < items_) {
      w.set_end = rules_.residents(next_item_).end;
      w.walk = ItemWalk(rules_, rules_.item_at(next_item_++), 0, g_.heads);
      if (w.walk.done()) continue;
      start_task(worker, time);
      break;
    }
    // The first whose set has now been taken; its own item may free the next.
    const auto freed = std::find_if(idle_.begin(), idle_.end(), [&](int idle) { return next_item_ >= worker_of(idle).set_end; });
    if (freed != idle_.end()) end_idle(freed, time);
  }

  /// As a cluster does: an item of the set that its last tiles still wait for could be one that they wait for.
  void take_item_when_safe(int worker, double time) {
    Worker& w = worker_of(worker);
    if (w.staged.empty() || next_item_ >= w.set_end) {
      take_item(worker, time);
    } else {
      w.idle_since = time;
      idle_.push_back(worker);
    }
  }

  void end_idle(std::vector<int>::iterator idle, double time) {
    const int worker = *idle;
    idle_.erase(idle);
    Worker& w = worker_of(worker);
    const double since = w.idle_since;
    take_item(worker, time);
    if (!w.walk.done()) w.time.stall += time - since;
  }

  void start_task(int worker, double time) {
    Worker& w = worker_of(worker);
    const Cursor& at = w.walk.at();
    w.task = {};
    w.task.worker = worker;
    w.task.head = at.item.walk * g_.heads + at.head;
    w.task.kv = at.item.unit;
    w.task.q = at.q;
    w.task.rank = rules_.rank(at);
    w.task.start = time;
    w.task.index = count_++;
    w.task.before_on_worker = w.last_task;
    w.last_task = w.task.index;
    const double unit = at.head == 0 && at.step == 0 ? s_.costs.unit : 0;
    events_.push({time + (unit + cost_of(s_.costs.compute, tiles_(at.item.unit, at.q))), worker, false});
  }

  void finish_compute(int worker, double time) {
    Worker& w = worker_of(worker);
    w.task.computed = time;
    w.time.busy += time - w.task.start;
    if (s_.costs.staging > 0 && w.staged.size() >= static_cast<std::size_t>(s_.costs.staging))
      w.blocked = true;
    else
      stage(worker, time);
  }

  void stage(int worker, double time) {
    Worker& w = worker_of(worker);
    w.task.staged = time;
    if (s_.costs.staging > 0) w.time.stall += time - w.task.computed;
    w.staged.push_back(w.task);
    if (s_.costs.staging > 0) next_task(worker, time);
    try_add(worker);
  }

  /// Starts the add of the oldest staged tile if its turn has come, else leaves it waiting.
  void try_add(int worker) {
    Worker& w = worker_of(worker);
    if (w.adding || w.staged.empty()) return;
    Task& task = w.staged.front();
    const Chain& chain = chain_of(task);
    if (chain.turn != task.rank) {
      waiting_.emplace(key(task, task.rank), worker);
      return;
    }
    w.adding = true;
    task.turn = chain.ready;
    task.added = std::max({task.staged, w.adder_free, chain.ready});
    task.before_in_chain = chain.last_task;
    events_.push({task.added + s_.costs.reduce, worker, true});
  }

  void finish_add(int worker, double time) {
    Worker& w = worker_of(worker);
    Task task = w.staged.front();
    if (w.staged.size() == 1)
      w.staged.clear();
    else
      w.staged.erase(w.staged.begin());
    task.end = time;
    w.time.wait += task.added - std::max(task.staged, w.adder_free);
    if (s_.costs.staging == 0) {
      w.time.stall += task.added - task.computed;
      w.time.busy += time - task.added;
    }
    w.adding = false;
    w.adder_free = time;
    makespan_ = std::max(makespan_, time);
    record(task);
    Chain& chain = chain_of(task);
    ++chain.turn;
    chain.ready = time + s_.costs.handover;
    chain.last_task = task.index;
    if (waiting_.empty()) {
      // nobody to wake
    } else if (auto next = waiting_.find(key(task, chain.turn)); next != waiting_.end()) {
      const int waiter = next->second;
      waiting_.erase(next);
      try_add(waiter);
    }
    if (s_.costs.staging == 0) {
      next_task(worker, time);
      return;
    }
    if (w.blocked) {
      w.blocked = false;
      stage(worker, time);
    } else {
      try_add(worker);
    }
    if (!w.staged.empty()) return;
    if (const auto idle = std::find(idle_.begin(), idle_.end(), worker); idle != idle_.end()) end_idle(idle, time);
  }

  void next_task(int worker, double time) {
    Worker& w = worker_of(worker);
    w.walk.advance(rules_);
    if (w.walk.done())
      take_item_when_safe(worker, time);
    else
      start_task(worker, time);
  }

  void record(const Task& task) {
    if (!s_.record) return;
    if (tasks_.size() <= static_cast<std::size_t>(task.index)) tasks_.resize(static_cast<std::size_t>(task.index) + 1);
    tasks_[static_cast<std::size_t>(task.index)] = task;
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
  const TileMap& tiles_;
  const ScheduleRules rules_;
  const int items_;
  int next_item_ = 0;
  std::int64_t count_ = 0;
  double makespan_ = 0;
  std::vector<Worker> workers_;
  std::vector<Chain> chains_;
  std::vector<int> idle_;                           ///< workers that may not take an item yet
  std::unordered_map<std::uint64_t, int> waiting_;  ///< worker by the turn it waits for
  std::priority_queue<Event> events_;               ///< earliest first, then lowest worker
  std::vector<Task> tasks_;
};

Interval interval(const Task& task, Activity activity, double start, double end) {
  return {task.worker, activity, task.head, task.kv, task.q, start, end};
}

/// Worker by worker; the tasks of one worker are in time order already.
std::vector<Interval> all_intervals(const std::vector<Task>& tasks, std::size_t workers, bool staging) {
  std::vector<std::vector<Interval>> of_worker(workers);
  std::vector<double> adder_free(workers), free(workers);
  for (const Task& task : tasks) {
    const auto worker = static_cast<std::size_t>(task.worker);
    std::vector<Interval>& line = of_worker[worker];
    if (staging && task.start > free[worker]) line.push_back(interval(task, Activity::stall, free[worker], task.start));
    line.push_back(interval(task, Activity::compute, task.start, task.computed));
    const double held = staging ? task.staged : task.added;
    free[worker] = held;
    if (held > task.computed) line.push_back(interval(task, Activity::stall, task.computed, held));
    const double wait = std::max(task.staged, adder_free[worker]);
    if (staging && task.added > wait) line.push_back(interval(task, Activity::wait, wait, task.added));
    line.push_back(interval(task, Activity::reduce, task.added, task.end));
    adder_free[worker] = task.end;
  }
  std::vector<Interval> out;
  for (const std::vector<Interval>& line : of_worker) out.insert(out.end(), line.begin(), line.end());
  return out;
}

/// From the last end backwards: each part of a task was held up by what ended last of all it needed.
class CriticalPath {
 public:
  CriticalPath(const std::vector<Task>& tasks, int staging) : tasks_(tasks), staging_(staging) {}

  std::vector<Interval> find() {
    if (tasks_.empty()) return {};
    const auto last = std::max_element(tasks_.begin(), tasks_.end(), [](const Task& a, const Task& b) { return a.end < b.end; });
    for (std::int64_t index = last - tasks_.begin(); index >= 0;) index = before_add(index);
    std::reverse(path_.begin(), path_.end());
    return std::move(path_);
  }

 private:
  const Task& task(std::int64_t index) const { return tasks_[static_cast<std::size_t>(index)]; }

  /// Appends the add of a task, then what held it up until the end of another add, whose task it returns; -1 at the start.
  std::int64_t before_add(std::int64_t index) {
    const Task& add = task(index);
    path_.push_back(interval(add, Activity::reduce, add.added, add.end));
    if (staging_ > 0 && add.before_on_worker >= 0) {
      const double adder_free = task(add.before_on_worker).end;
      if (adder_free == add.added && adder_free > add.staged && adder_free >= add.turn) return add.before_on_worker;
    }
    if (add.turn == add.added && add.turn > add.staged) return add.before_in_chain;
    return before_staged(index);
  }

  /// The same for the compute of a task and those before it on the worker.
  std::int64_t before_staged(std::int64_t index) {
    for (;;) {
      const Task& compute = task(index);
      if (compute.staged > compute.computed) {  // for want of room: until the add `staging_` tasks ago ended
        std::int64_t freed = index;
        for (int i = 0; i < staging_; ++i) freed = task(freed).before_on_worker;
        return freed;
      }
      path_.push_back(interval(compute, Activity::compute, compute.start, compute.computed));
      if (staging_ == 0 || compute.before_on_worker < 0) return compute.before_on_worker;
      index = compute.before_on_worker;
      if (const double idle = task(index).staged; compute.start > idle)
        path_.push_back(interval(compute, Activity::stall, idle, compute.start));
    }
  }

  const std::vector<Task>& tasks_;
  const int staging_;
  std::vector<Interval> path_;
};

/// Fills the bounds from the tiles of one query head; all heads are alike.
void fill_bounds(const Simulation& s, const TileMap& tiles, SimulationReport& report) {
  const bool apart = s.costs.staging > 0;  // adds beside the computing
  double all_compute = 0, all_reduce = 0, longest_unit = 0;
  std::vector<double> shortest_compute(static_cast<std::size_t>(tiles.q_tiles()), INFINITY);
  std::vector<int> adds(shortest_compute.size());
  for (int unit = 0; unit < tiles.units(); ++unit) {
    double compute = 0, reduce = 0;
    for (int q = 0; q < tiles.q_tiles(); ++q) {
      const TileKind kind = tiles(unit, q);
      if (kind == TileKind::none) continue;
      const double cost = cost_of(s.costs.compute, kind);
      double& shortest = shortest_compute[static_cast<std::size_t>(q)];
      shortest = std::min(shortest, cost);
      ++adds[static_cast<std::size_t>(q)];
      compute += cost;
      reduce += s.costs.reduce;
    }
    const double setup = reduce > 0 || compute > 0 ? s.costs.unit : 0;
    all_compute += compute * s.geometry.heads + setup;
    all_reduce += reduce * s.geometry.heads;
    longest_unit = std::max(longest_unit, (apart ? std::max(compute, reduce) : compute + reduce) * s.geometry.heads + setup);
  }
  for (std::size_t q = 0; q < adds.size(); ++q) {
    if (adds[q] == 0) continue;
    report.proof.adds = std::max<std::int64_t>(report.proof.adds, adds[q]);
    report.chain_bound =
        std::max(report.chain_bound, shortest_compute[q] + adds[q] * s.costs.reduce + (adds[q] - 1) * s.costs.handover);
  }
  const double all_work = apart ? std::max(all_compute, all_reduce) : all_compute + all_reduce;
  report.work_bound = std::max(all_work * s.geometry.walks / static_cast<double>(s.workers), longest_unit);
  report.lower_bound = std::max(report.work_bound, report.chain_bound);
}

void fill_proof(const Simulation& s, const TileMap& tiles, SimulationReport& report) {
  const Geometry& g = s.geometry;
  report.proof.tasks = live_tiles(tiles) * s.geometry.heads * g.walks;
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
  if (r.kv_heads < 0 || r.kv_heads > r.heads || (r.kv_heads > 0 && r.heads % r.kv_heads != 0))
    return bad(fmt::format("kv-heads is {}; it must divide heads, {}", r.kv_heads, r.heads));
  if (r.costs.staging < 0 || r.costs.staging > 8)
    return bad(fmt::format("staging is {}; it must be within 0 .. 8", r.costs.staging));
  const TileCosts& c = r.costs.compute;
  for (const double cost : {c.full, c.diagonal, c.partial, r.costs.reduce, r.costs.handover, r.costs.unit}) {
    if (!std::isfinite(cost) || cost < 0) return bad(fmt::format("a cost is {}; costs are finite and not negative", cost));
  }
  const bool causal = r.mask == Mask::causal;
  if (r.schedule == Kind::shift && causal)
    return bad("schedule shift is for mask full; causal has symmetric_shift, alternate and arrival");
  if ((r.schedule == Kind::symmetric_shift || r.schedule == Kind::alternate) && !causal) {
    return bad(fmt::format("schedule {} is for mask causal; full has shift and arrival", to_string(r.schedule)));
  }
  const double tasks = static_cast<double>(r.kv_tiles) * static_cast<double>(r.q_tiles) * static_cast<double>(r.heads);
  if (tasks > static_cast<double>(kMostTasks)) {
    return bad(fmt::format("{} tiles are more than {}; a few waves of heads show the same pattern", tasks, kMostTasks));
  }
  return {};
}

}  // namespace

Result<Kind> parse_schedule_kind(std::string_view text) {
  return text::read_name(
      text, "schedule",
      std::array{Kind::ascending, Kind::descending, Kind::shift, Kind::alternate, Kind::symmetric_shift, Kind::arrival});
}

std::string_view to_string(Activity activity) {
  switch (activity) {
    case Activity::compute:
      return "compute";
    case Activity::reduce:
      return "reduce";
    case Activity::stall:
      return "stall";
    case Activity::wait:
      return "wait";
  }
  return "unknown";
}

std::int64_t live_tiles(const TileMap& map) {
  std::int64_t tiles = 0;
  for (int unit = 0; unit < map.units(); ++unit) {
    for (int q = 0; q < map.q_tiles(); ++q) tiles += map.live(unit, q) ? 1 : 0;
  }
  return tiles;
}

Result<SimulationReport> simulate(const Simulation& simulation) {
  SimulationReport report;
  const TileMap tiles = simulation.mask ? TileMap(simulation.geometry, simulation.mask) : TileMap(simulation.geometry);
  if (simulation.prove) {
    if (auto proved = prove_schedule(simulation.geometry, simulation.workers, simulation.table, simulation.mask); !proved)
      return proved.error();
    fill_proof(simulation, tiles, report);
  }
  Run run(simulation, tiles);
  if (!run.run()) {
    return Error{ErrorCode::internal,
                 fmt::format("schedule {} passed its proof but stopped in the simulation", to_string(simulation.geometry.kind))};
  }
  report.makespan = run.makespan();
  report.adds_apart = simulation.costs.staging > 0;
  report.workers = run.totals();
  for (const WorkerTime& worker : report.workers) {
    report.stall_total += worker.stall;
    report.wait_total += worker.wait;
  }
  fill_bounds(simulation, tiles, report);
  if (simulation.record) {
    report.intervals = all_intervals(run.tasks(), report.workers.size(), simulation.costs.staging > 0);
    report.critical_path = CriticalPath(run.tasks(), simulation.costs.staging).find();
  }
  return report;
}

Result<SimulationReport> simulate(const SimulationRequest& request) {
  if (auto checked = check_request(request); !checked) return checked.error();
  const std::int64_t walks = request.kv_heads > 0 ? request.kv_heads : request.heads;
  Geometry g{};
  g.kind = request.schedule;
  g.causal = request.mask == Mask::causal;
  g.tile_q = g.unit_kv = 2;  // two rows by two keys, so that the causal boundary crosses the diagonal tiles
  g.q_tiles = static_cast<int>(request.q_tiles);
  g.units = static_cast<int>(request.kv_tiles);
  g.seqlen_q = g.q_tiles * g.tile_q;
  g.seqlen_k = g.units * g.unit_kv;
  g.walks = static_cast<int>(walks);
  g.heads = static_cast<int>(request.heads / walks);
  g.head_group = static_cast<int>(std::min(request.head_group, walks));
  set_waves(g, request.workers, static_cast<int>(request.shift_stride));
  Simulation simulation;
  simulation.geometry = g;
  simulation.workers = request.workers;
  simulation.costs = request.costs;
  if (request.schedule != Kind::arrival) return simulate(simulation);
  const auto table = make_arrival(g, request.workers, request.costs, request.visits, TileMap(g));
  if (!table) return table.error();
  simulation.table = &*table;
  return simulate(simulation);
}

}  // namespace ordo
