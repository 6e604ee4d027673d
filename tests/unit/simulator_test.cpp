// The simulator against closed forms, against an exhaustive search, and by properties on random shapes.
#include "codegen/schedule/simulator.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "codegen/schedule/gantt.hpp"
#include "codegen/schedule/proof.hpp"
#include "codegen/schedule/rules.hpp"
#include "tests/unit/geometries.hpp"
#include "tests/unit/optimum.hpp"

using namespace ordo;
using namespace ordo::testing;
using schedule::Kind;

namespace {

SimulationRequest request(Kind kind, Mask mask, int kv_tiles, int q_tiles, int heads, int workers, double compute,
                          double reduce) {
  SimulationRequest r;
  r.schedule = kind;
  r.mask = mask;
  r.kv_tiles = kv_tiles;
  r.q_tiles = q_tiles;
  r.heads = heads;
  r.workers = workers;
  r.costs.compute = {compute, compute, compute};
  r.costs.reduce = reduce;
  return r;
}

SimulationReport run(const SimulationRequest& r) {
  auto report = simulate(r);
  if (!report) FAIL(report.error().message);
  return *std::move(report);
}

double makespan(Kind kind, Mask mask, int kv_tiles, int q_tiles, int heads, int workers, double compute, double reduce) {
  return run(request(kind, mask, kv_tiles, q_tiles, heads, workers, compute, reduce)).makespan;
}

void check_refused(const SimulationRequest& r, const std::string& expected) {
  const auto report = simulate(r);
  REQUIRE_FALSE(report);
  CAPTURE(report.error().message);
  CHECK(report.error().message.find(expected) != std::string::npos);
}

/// Everything that must hold of any simulation.
void check_report(const schedule::Geometry& g, const SimulationCosts& costs, const SimulationReport& report) {
  const double eps = 1e-9 * std::max(1.0, report.makespan);
  CHECK(report.makespan >= report.lower_bound - eps);
  // Each worker does one thing at a time; each live task once.
  std::map<int, double> free_at;
  std::set<std::tuple<int, int, int>> tasks;
  std::map<std::pair<int, int>, std::vector<Interval>> adds;
  double stalls = 0;
  std::map<int, double> adder_free_at;
  double waits = 0;
  for (const Interval& interval : report.intervals) {
    const bool adder = interval.activity == Activity::reduce || interval.activity == Activity::wait;
    double& free = costs.staging > 0 && adder ? adder_free_at[interval.worker] : free_at[interval.worker];
    CHECK(interval.start >= free - eps);
    CHECK(interval.end >= interval.start);
    free = interval.end;
    if (interval.activity == Activity::stall) stalls += interval.end - interval.start;
    if (interval.activity == Activity::wait) waits += interval.end - interval.start;
    if (interval.activity != Activity::reduce) continue;
    CHECK(tasks.insert({interval.head, interval.kv, interval.q}).second);
    adds[{interval.head, interval.q}].push_back(interval);
  }
  CHECK(stalls == doctest::Approx(report.stall_total));
  CHECK((costs.staging > 0 ? waits : stalls) == doctest::Approx(report.wait_total));
  CHECK(static_cast<std::int64_t>(tasks.size()) == live_tiles(TileMap(g)) * g.walks * g.heads);
  CHECK(report.proof.tasks == static_cast<std::int64_t>(tasks.size()));
  // Adds into one dQ tile never overlap.
  for (auto& [tile, chain] : adds) {
    std::sort(chain.begin(), chain.end(), [](const Interval& a, const Interval& b) { return a.start < b.start; });
    CHECK(static_cast<int>(chain.size()) == schedule::contributors(g, tile.second));
    for (std::size_t i = 1; i < chain.size(); ++i) CHECK(chain[i].start >= chain[i - 1].end + costs.handover - eps);
  }
  // The critical path starts at 0, ends with the makespan, and has no gap but hand-overs.
  REQUIRE_FALSE(report.critical_path.empty());
  CHECK(report.critical_path.front().start == 0);
  CHECK(report.critical_path.back().end == report.makespan);
  for (std::size_t i = 1; i < report.critical_path.size(); ++i) {
    const Interval& before = report.critical_path[i - 1];
    const Interval& after = report.critical_path[i];
    const auto adds_to = [](const Interval& x) { return std::tuple(x.activity == Activity::reduce, x.head, x.q); };
    const bool hop = before.activity == Activity::reduce && adds_to(before) == adds_to(after);
    CHECK((hop || before.worker == after.worker));
    CHECK(after.start == doctest::Approx(before.end + (hop ? costs.handover : 0)));
  }
}

}  // namespace

TEST_CASE("simulator: closed forms for as many workers as KV tiles") {
  for (const int n : {1, 2, 3, 4, 7, 8, 16, 33}) {
    for (const int m : {1, 2, 3, 6}) {
      for (const auto& [c, r] : {std::pair{5.0, 1.0}, std::pair{1.0, 1.0}, std::pair{3.0, 8.0}, std::pair{1.0, 0.0}}) {
        CAPTURE(n);
        CAPTURE(m);
        CHECK(makespan(Kind::ascending, Mask::full, n, n, m, n, c, r) == m * n * (c + r) + (n - 1) * r);
        CHECK(makespan(Kind::descending, Mask::full, n, n, m, n, c, r) == m * n * (c + r) + (n - 1) * r);
        const SimulationReport shift = run(request(Kind::shift, Mask::full, n, n, m, n, c, r));
        CHECK(shift.makespan == m * n * (c + r));
        CHECK(shift.stall_total == 0);
        CHECK(shift.lower_bound == shift.makespan);
        if (n % 2 != 0 || m % 2 != 0) continue;
        const SimulationReport symmetric = run(request(Kind::symmetric_shift, Mask::causal, n, n, m, n, c, r));
        CHECK(symmetric.makespan == m * (n + 1) * (c + r) / 2);
        CHECK(symmetric.stall_total == 0);
        // alternate balances as well with one KV tile a worker.
        CHECK(makespan(Kind::alternate, Mask::causal, n, n, m, n, c, r) == m * (n + 1) * (c + r) / 2);
        // ascending on causal stalls at every head: each head lasts as long as its longest KV tile.
        if (n > 2) CHECK(makespan(Kind::ascending, Mask::causal, n, n, m, n, c, r) >= m * n * (c + r));
      }
    }
  }
}

TEST_CASE("simulator: costs that are no binary fractions do not make stalls") {
  const SimulationReport shift = run(request(Kind::shift, Mask::full, 8, 8, 3, 8, 0.7, 0.1));
  CHECK(shift.stall_total == 0);
  CHECK(shift.makespan == doctest::Approx(3 * 8 * 0.8));
  const SimulationReport symmetric = run(request(Kind::symmetric_shift, Mask::causal, 8, 8, 4, 8, 0.7, 0.1));
  CHECK(symmetric.stall_total == 0);
  CHECK(symmetric.makespan == doctest::Approx(4 * 9 * 0.8 / 2));
}

TEST_CASE("simulator: symmetric_shift with a worker a pair never stalls, odd counts included") {
  for (int n = 1; n <= 24; ++n) {
    CAPTURE(n);
    const SimulationReport report = run(request(Kind::symmetric_shift, Mask::causal, n, n, 1, (n + 1) / 2, 3, 1));
    CHECK(report.stall_total == 0);
    CHECK(report.makespan == (n == 1 ? 1 : n + 1) * 4);
  }
}

TEST_CASE("simulator: a hand-over costs ascending at every worker, and a stride hides it from shift") {
  SimulationRequest r = request(Kind::ascending, Mask::full, 8, 32, 1, 8, 3, 1);
  r.costs.handover = 5;
  CHECK(run(r).makespan == 32 * 4 + 7 * 6);
  r.schedule = Kind::shift;
  CHECK(run(r).makespan > 32 * 4);
  r.shift_stride = 4;  // 16 time units of slack for an add and a hand-over of 6
  CHECK(run(r).makespan == 32 * 4);
  CHECK(run(r).stall_total == 0);
}

TEST_CASE("simulator: tile kinds have costs of their own") {
  SimulationRequest r = request(Kind::descending, Mask::causal, 4, 4, 1, 1, 2, 1);
  r.costs.compute.diagonal = 10;
  CHECK(run(r).makespan == 6 * 3 + 4 * 11);
  // Tiles of 4x4 over lengths 10 and 6: the last of each is cut off, one of them on the causal boundary.
  Simulation s;
  s.geometry = make_grid(Kind::ascending, true, 10, 6, 4, 4, 1, 1, 1);
  s.costs = {{1, 10, 100}, 0, 0};
  // Rows 0-3 see nothing; Q tile 1 (rows 4-7) and KV 0: diagonal. Q tile 2 (rows 8, 9): KV 0 partial, KV 1 (keys 4, 5) diagonal.
  const auto report = simulate(s);
  REQUIRE(report);
  CHECK(report->makespan == 10 + 100 + 10);
}

namespace {

/// Costs of a round: with and without hand-over, adding by the worker itself and by a store warp.
SimulationCosts costs_of_round(int round) {
  SimulationCosts costs;
  costs.compute = {2, 3, 1.5};
  costs.reduce = round % 3;
  costs.handover = round % 2;
  costs.unit = round % 5 == 0 ? 4 : 0;
  costs.staging = round % 4;
  return costs;
}

/// Simulates, holds the report against everything that must be true of any, and the totals against a run without records.
void check_simulation(Simulation s) {
  CAPTURE(describe(s.geometry));
  CAPTURE(s.workers);
  CAPTURE(s.geometry.heads);
  const auto report = simulate(s);
  if (!report) FAIL(report.error().message);
  check_report(s.geometry, s.costs, *report);
  s.record = false;
  const auto again = simulate(s);
  REQUIRE(again);
  CHECK(again->makespan == report->makespan);
  CHECK(again->stall_total == report->stall_total);
  CHECK(again->wait_total == report->wait_total);
  CHECK(again->intervals.empty());
}

}  // namespace

TEST_CASE("simulator: properties on random shapes") {
  std::mt19937 random(3);
  for (int round = 0; round < 120; ++round) {
    for (const Kind kind : kClosedKinds) {
      const RandomGrid grid = random_grid(random, kind);
      Simulation s;
      s.geometry = grid.geometry;
      s.workers = grid.workers;
      s.geometry.heads = 1 + round % 3;
      s.costs = costs_of_round(round);
      check_simulation(s);
    }
  }
}

TEST_CASE("simulator: arrival on random shapes, masks, heads and workers is proved and ends") {
  std::mt19937 random(4);
  for (int round = 0; round < 150; ++round) {
    RandomGrid grid = random_grid(random, Kind::arrival);
    Simulation s;
    s.geometry = grid.geometry;
    s.workers = grid.workers;
    s.geometry.heads = 1 + round % 3;
    s.costs = costs_of_round(round);
    const ArrivalVisits visits = kAllVisits[random() % std::size(kAllVisits)];  // apart from heads and costs
    CAPTURE(to_string(visits));
    const auto table = make_arrival(s.geometry, s.workers, s.costs, visits, TileMap(s.geometry));
    REQUIRE(table);
    s.table = &*table;
    check_simulation(s);
    // The same again gives the same.
    const auto again = make_arrival(s.geometry, s.workers, s.costs, visits, TileMap(s.geometry));
    CHECK(again->words == table->words);
    CHECK(again->hash() == table->hash());
  }
}

TEST_CASE("simulator: arrival on masks that no closed form knows") {
  std::mt19937 random(6);
  for (int round = 0; round < 100; ++round) {
    const RandomGrid grid = random_grid(random, Kind::arrival);
    const int window = 1 + round % 5, documents = 2 + round % 3;
    // A window of tiles around the diagonal, blocks of documents, or holes at random: rows and units without any tile included.
    std::vector<TileKind> kinds;
    for (int unit = 0; unit < grid.geometry.units; ++unit) {
      for (int q = 0; q < grid.geometry.q_tiles; ++q) {
        const bool live = round % 3 == 0   ? std::abs(unit - q) < window
                          : round % 3 == 1 ? unit / documents == q / documents
                                           : random() % 3 == 0;
        kinds.push_back(!live ? TileKind::none : random() % 2 == 0 ? TileKind::full : TileKind::diagonal);
      }
    }
    const int q_tiles = grid.geometry.q_tiles;
    const auto mask = [&kinds, q_tiles](int unit, int q) { return kinds[static_cast<std::size_t>(unit * q_tiles + q)]; };
    Simulation s;
    s.geometry = grid.geometry;
    s.workers = grid.workers;
    s.geometry.heads = 1 + round % 2;
    s.costs = costs_of_round(round);
    s.mask = mask;
    const TileMap tiles(s.geometry, mask);
    const ArrivalVisits visits = kAllVisits[random() % std::size(kAllVisits)];  // apart from heads and costs
    CAPTURE(describe(s.geometry));
    CAPTURE(to_string(visits));
    const auto table = make_arrival(s.geometry, s.workers, s.costs, visits, tiles);
    REQUIRE(table);
    s.table = &*table;
    const auto report = simulate(s);
    if (!report) FAIL(report.error().message);
    CHECK(report->proof.tasks == live_tiles(tiles) * s.geometry.walks * s.geometry.heads);
    CHECK(report->makespan >= report->lower_bound * (1 - 1e-9));
    // A table of another mask is refused: it visits what is masked, or leaves out what is not.
    if (live_tiles(tiles) != live_tiles(TileMap(s.geometry))) CHECK_FALSE(prove_schedule(s.geometry, s.workers, &*table));
  }
}

TEST_CASE("simulator: arrival finds the closed forms by itself") {
  for (const int n : {2, 3, 4, 8, 16}) {
    for (const auto& [c, r] : {std::pair{5.0, 1.0}, std::pair{1.0, 1.0}}) {
      CAPTURE(n);
      SimulationRequest full = request(Kind::arrival, Mask::full, n, n, 3, n, c, r);
      full.visits = ArrivalVisits::rotate;
      const SimulationReport rotating = run(full);
      CHECK(rotating.makespan == 3 * n * (c + r));  // as shift
      CHECK(rotating.stall_total == 0);
      if (n % 2 != 0) continue;
      SimulationRequest causal = request(Kind::arrival, Mask::causal, n, n, 4, n, c, r);
      causal.visits = ArrivalVisits::up_and_down;
      CHECK(run(causal).makespan == 4 * (n + 1) * (c + r) / 2);  // as alternate
    }
  }
}

TEST_CASE("simulator: arrivals with a turn are alternate's, for each query head") {
  const SimulationCosts costs{.compute = {3630, 2967, 2967}, .reduce = 1100, .handover = 3534, .unit = 2185, .staging = 2};
  for (const int heads : {1, 2, 3, 4, 5}) {
    CAPTURE(heads);
    const schedule::Geometry g = make_grid(Kind::arrival, true, 8192, 8192, 64, 256, 8, 2, 66, 1, heads);
    const auto table = make_arrival(g, 66, costs, ArrivalVisits::turn, TileMap(g));
    REQUIRE(table);
    REQUIRE(prove_schedule(g, 66, &*table));
    schedule::Geometry closed = g;
    closed.kind = Kind::alternate;
    REQUIRE(prove_schedule(closed, 66));
    const ScheduleRules read(g, table->words.data()), alternate(closed);
    for (int unit = 0; unit < g.units; ++unit) {
      for (const bool flipped : {false, true}) {
        for (int head = 0; head < heads; ++head) {
          bool same = true;
          ItemWalk there(read, {0, unit, flipped}, head, head + 1);
          for (ItemWalk here(alternate, {0, unit, flipped}, head, head + 1); !here.done(); here.advance(alternate)) {
            same = same && here.at().q == there.at().q && alternate.rank(here.at()) == read.rank(there.at());
            there.advance(read);
          }
          CHECK(same);
          CHECK(there.done());
        }
      }
    }
  }
}

TEST_CASE("simulator: arrival refuses tables beyond its words and its size") {
  const schedule::Geometry wide = make_tiles(Kind::arrival, true, 4, (1 << 16) + 1, 1, 4);
  const auto too_many = make_arrival(wide, 4, {}, ArrivalVisits::up, TileMap(wide));
  REQUIRE_FALSE(too_many);
  CHECK(too_many.error().code == ErrorCode::unsupported);
  CHECK(too_many.error().message.find("65537") != std::string::npos);
  const schedule::Geometry large = make_tiles(Kind::arrival, false, 3000, 3000, 1, 4);
  const auto too_large = make_arrival(large, 4, {}, ArrivalVisits::up, TileMap(large));
  REQUIRE_FALSE(too_large);
  CHECK(too_large.error().message.find("9000000 visits") != std::string::npos);
  // Many query heads share the orders of the first.
  schedule::Geometry g = make_tiles(Kind::arrival, true, 64, 64, 2, 64);
  g.heads = 4096;
  const auto shared = make_arrival(g, 64, {}, ArrivalVisits::up_and_down, TileMap(g));
  REQUIRE(shared);
  CHECK(shared->words[1] < 4096);
  CHECK(shared->words.size() < (1u << 19));
  CHECK(prove_schedule(g, 64, &*shared));
  // A table fits only its own tiles, and no other schedule takes one.
  CHECK_FALSE(prove_schedule(make_tiles(Kind::arrival, true, 63, 64, 2, 64), 64, &*shared));
  CHECK_FALSE(prove_schedule(make_tiles(Kind::arrival, true, 64, 64, 2, 64), 64));
  CHECK_FALSE(prove_schedule(make_tiles(Kind::descending, true, 64, 64, 2, 64), 64, &*shared));
}

TEST_CASE("simulator: a store warp beside the worker hides adds, and its queue holds the worker back") {
  // One worker: with a store warp only the last add shows.
  SimulationRequest r = request(Kind::ascending, Mask::full, 1, 6, 1, 1, 4, 1);
  CHECK(run(r).makespan == 6 * 5);
  r.costs.staging = 1;
  CHECK(run(r).makespan == 6 * 4 + 1);
  CHECK(run(r).stall_total == 0);
  // Adds slower than computing: the worker is held by its single buffer, then by two.
  r.costs.reduce = 10;
  CHECK(run(r).makespan == 4 + 6 * 10);
  CHECK(run(r).stall_total == 5 * 6);
  r.costs.staging = 2;
  CHECK(run(r).makespan == 4 + 6 * 10);
  CHECK(run(r).stall_total == 2 + 3 * 6);
  // Two workers on the same tiles: the second waits to add, which costs it nothing while its tile may stay staged.
  SimulationRequest two = request(Kind::ascending, Mask::full, 2, 4, 1, 2, 5, 1);
  two.costs.handover = 3;
  two.costs.staging = 1;
  const SimulationReport report = run(two);
  CHECK(report.makespan == 4 * 5 + 1 + 3 + 1);
  CHECK(report.wait_total == 4 + 3 * 4);
  CHECK(report.stall_total == 0);
  two.costs.handover = 6;  // longer than a step: now it is held back, once
  CHECK(run(two).stall_total == 3);
}

TEST_CASE("simulator: symmetric_shift with query heads of a group walks the long unit for all of them first") {
  SimulationRequest r = request(Kind::symmetric_shift, Mask::causal, 4, 4, 4, 2, 1, 1);
  r.kv_heads = 2;
  const SimulationReport report = run(r);
  std::vector<int> units;  // of worker 0, as they come
  for (const Interval& interval : report.intervals) {
    if (interval.worker == 0 && interval.activity == Activity::compute && (units.empty() || units.back() != interval.kv))
      units.push_back(interval.kv);
  }
  CHECK(units == std::vector{0, 3, 0, 3});  // of two walks
  CHECK(report.proof.tasks == 4 * 10);
}

TEST_CASE("simulator: query heads of a walk follow one another") {
  Simulation s;
  s.geometry = make_tiles(Kind::shift, false, 4, 4, 2, 4);
  s.workers = 4;
  s.geometry.heads = 3;
  s.costs.reduce = 1;
  const auto report = simulate(s);
  REQUIRE(report);
  CHECK(report->makespan == 2 * 3 * 4 * 2);
  CHECK(report->proof.tasks == 2 * 3 * 16);
  std::set<int> heads;
  for (const Interval& interval : report->intervals) heads.insert(interval.head);
  CHECK(heads.size() == 6);
}

TEST_CASE("simulator: which schedules are optimal, by exhaustive search") {
  struct Case {
    Mask mask;
    int kv_tiles, q_tiles, workers;
    double compute, reduce;
  };
  const auto of = [](Kind kind, const Case& p) {
    return makespan(kind, p.mask, p.kv_tiles, p.q_tiles, 1, p.workers, p.compute, p.reduce);
  };
  const auto arrival = [](ArrivalVisits visits, const Case& p) {
    SimulationRequest r = request(Kind::arrival, p.mask, p.kv_tiles, p.q_tiles, 1, p.workers, p.compute, p.reduce);
    r.visits = visits;
    return run(r).makespan;
  };
  // Starting from what `kind` attains, the search finds only what beats it.
  const auto optimum = [&](const Case& p, std::optional<Kind> kind = {}) {
    return exhaustive_optimum(p.kv_tiles, p.q_tiles, p.mask == Mask::causal, p.workers, p.compute, p.reduce,
                              kind ? of(*kind, p) : 1e300);
  };
  for (const auto& [c, r] : {std::pair{2.0, 1.0}, std::pair{1.0, 1.0}, std::pair{1.0, 2.0}}) {
    for (int n = 2; n <= 4; ++n) {
      CAPTURE(n);
      CAPTURE(c);
      CAPTURE(r);
      // Full, a worker a KV tile: shift is optimal, ascending never.
      const Case full{Mask::full, n, n, n, c, r};
      CHECK(of(Kind::shift, full) == optimum(full, Kind::shift));
      CHECK(of(Kind::ascending, full) > optimum(full, Kind::ascending));
      CHECK(arrival(ArrivalVisits::rotate, full) == optimum(full, Kind::shift));
      // Full, more Q tiles than KV tiles.
      const Case tall{Mask::full, n, n + 1, n, c, r};
      CHECK(of(Kind::shift, tall) == optimum(tall, Kind::shift));
      CHECK(arrival(ArrivalVisits::rotate, tall) == optimum(tall, Kind::shift));
      // Causal, a worker a KV tile, one head: the longest KV tile decides, and descending meets it; ascending does not.
      const Case causal{Mask::causal, n, n, n, c, r};
      CHECK(of(Kind::descending, causal) == optimum(causal, Kind::descending));
      CHECK(of(Kind::ascending, causal) > optimum(causal, Kind::ascending));
      CHECK(arrival(ArrivalVisits::up, causal) == optimum(causal, Kind::descending));
      CHECK(arrival(ArrivalVisits::down, causal) == optimum(causal, Kind::descending));
      // Causal, a worker a pair: symmetric_shift is optimal for even counts.
      const Case pairs{Mask::causal, n, n, (n + 1) / 2, c, r};
      if (n % 2 == 0) CHECK(of(Kind::symmetric_shift, pairs) == optimum(pairs, Kind::symmetric_shift));
      for (const ArrivalVisits visits : kAllVisits) CHECK(arrival(visits, pairs) >= optimum(pairs, Kind::symmetric_shift));
    }
  }
  // An odd count leaves the middle KV tile by itself: here 3 + 1 tiles on one worker where the best is 3.
  const Case odd{Mask::causal, 3, 3, 2, 1, 1};
  CHECK(optimum(odd) == 6);
  CHECK(of(Kind::symmetric_shift, odd) == 8);
  // No schedule beats the search, whatever the shape.
  for (const Kind kind : kClosedKinds) {
    for (int n = 1; n <= 3; ++n) {
      for (int q = 1; q <= 4; ++q) {
        const bool causal = kind == Kind::alternate || kind == Kind::symmetric_shift;
        const Case any{causal ? Mask::causal : Mask::full, n, q, n, 2, 1};
        CHECK(of(kind, any) >= optimum(any));
        CHECK(optimum(any, kind) == optimum(any));
      }
    }
  }
}

TEST_CASE("simulator: requests that are refused") {
  const SimulationRequest good = request(Kind::shift, Mask::full, 4, 4, 1, 4, 1, 1);
  CHECK(simulate(good));
  const auto with = [&](auto&& change) {
    SimulationRequest r = good;
    change(r);
    return r;
  };
  check_refused(with([](auto& r) { r.kv_tiles = 0; }), "kv-tiles is 0");
  check_refused(with([](auto& r) { r.q_tiles = -1; }), "q-tiles is -1");
  check_refused(with([](auto& r) { r.heads = 0; }), "heads is 0");
  check_refused(with([](auto& r) { r.workers = 0; }), "workers is 0");
  check_refused(with([](auto& r) { r.workers = std::numeric_limits<std::int64_t>::max(); }), "workers is");
  check_refused(with([](auto& r) { r.kv_tiles = r.q_tiles = 4096; }), "are more than");
  check_refused(with([](auto& r) { r.costs.reduce = -1; }), "a cost is -1");
  check_refused(with([](auto& r) { r.costs.compute.full = std::nan(""); }), "a cost is nan");
  check_refused(with([](auto& r) { r.costs.handover = std::numeric_limits<double>::infinity(); }), "a cost is inf");
  check_refused(with([](auto& r) { r.mask = Mask::causal; }), "shift is for mask full");
  check_refused(with([](auto& r) { r.schedule = Kind::symmetric_shift; }), "for mask causal");
  check_refused(with([](auto& r) { r.schedule = Kind::alternate; }), "for mask causal");
  check_refused(request(Kind::alternate, Mask::causal, 6, 6, 2, 5, 1, 1), "only 5 are resident");
  CHECK_FALSE(parse_schedule_kind("zigzag"));
  for (const Kind kind : kClosedKinds) CHECK(*parse_schedule_kind(to_string(kind)) == kind);
  CHECK(*parse_schedule_kind("arrival") == Kind::arrival);
  check_refused(with([](auto& r) { r.heads = 4, r.kv_heads = 3; }), "kv-heads is 3");
  check_refused(with([](auto& r) { r.costs.staging = 9; }), "staging is 9");
  check_refused(with([](auto& r) { r.costs.unit = -1; }), "a cost is -1");
}

TEST_CASE("simulator: nothing to do costs nothing") {
  CHECK(makespan(Kind::ascending, Mask::full, 3, 3, 1, 100, 0, 0) == 0);
  const SimulationReport idle = run(request(Kind::ascending, Mask::full, 1, 1, 1, 100, 1, 1));
  CHECK(idle.makespan == 2);
  CHECK(idle.workers.size() == 100);
  CHECK(idle.workers[99].busy == 0);
}

TEST_CASE("gantt: one bar an interval, well-formed, critical path outlined") {
  const SimulationRequest r = request(Kind::ascending, Mask::causal, 4, 4, 1, 4, 2, 1);
  const SimulationReport report = run(r);
  const auto svg = render_gantt_svg(r, report);
  REQUIRE(svg);
  const auto count = [&](const std::string& what) {
    std::size_t n = 0;
    for (std::size_t at = svg->find(what); at != std::string::npos; at = svg->find(what, at + 1)) ++n;
    return n;
  };
  CHECK(count("<title>") == report.intervals.size());
  CHECK(count("<title>worker 3: stall of KV tile 3, Q tile 3, head 0, ") == 1);
  CHECK(count("<svg ") == 1);
  CHECK(svg->ends_with("</svg>\n"));
  CHECK(count("<text") == count("</text>"));
  CHECK(count("<g") == count("</g>"));
  CHECK(svg->find("nan") == std::string::npos);
  // An empty makespan draws too.
  const SimulationRequest nothing = request(Kind::ascending, Mask::full, 1, 1, 1, 1, 0, 0);
  CHECK(render_gantt_svg(nothing, run(nothing))->find("nan") == std::string::npos);
}

TEST_CASE("gantt: a chart that no viewer opens is refused") {
  const SimulationRequest r = request(Kind::shift, Mask::full, 64, 256, 8, 64, 2, 1);
  const auto svg = render_gantt_svg(r, run(r));
  REQUIRE_FALSE(svg);
  CHECK(svg.error().message.find("fewer heads or tiles") != std::string::npos);
}

TEST_CASE("occupancy: cells show what a worker mostly does") {
  const std::string chart = render_occupancy(run(request(Kind::ascending, Mask::full, 2, 1, 1, 2, 10, 10)), 30, true);
  // Worker 0 computes and adds for 20 of 30, worker 1 computes, waits, adds.
  CHECK(chart.find("    0 |##########++++++++++          |  66.7 %\n") == 0);
  CHECK(chart.find("    1 |##########..........++++++++++|  66.7 %\n") != std::string::npos);
  CHECK(chart.find("30\n") != std::string::npos);
  const std::string many = render_occupancy(run(request(Kind::shift, Mask::full, 66, 66, 1, 132, 3, 1)), 1000, false);
  CHECK(std::count(many.begin(), many.end(), '\n') <= 42);
  CHECK(render_occupancy(run(request(Kind::ascending, Mask::full, 1, 1, 1, 1, 0, 0))).find("nothing to show") == 0);
}
