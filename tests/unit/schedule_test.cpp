// The definitions of templates/schedule/schedule.cuh against tables written by hand and against brute force.
#include "templates/schedule/schedule.cuh"

#include <doctest/doctest.h>

#include <array>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "codegen/schedule/proof.hpp"
#include "codegen/schedule/rules.hpp"
#include "tests/unit/geometries.hpp"

using namespace ordo;
using namespace ordo::testing;
using schedule::Geometry;
using schedule::Kind;

namespace {

using Visits = std::vector<std::pair<int, int>>;  // (Q tile, rank)

Visits visits(const Geometry& g, int item, bool flipped = false, int head = 0) {
  Visits out;
  const ScheduleRules rules(g);
  for (ItemWalk walk(rules, {0, item, flipped}, head, head + 1); !walk.done(); walk.advance(rules))
    out.emplace_back(walk.at().q, rules.rank(walk.at()));
  return out;
}

using Step = std::array<int, 3>;  // query head, Q tile, rank

std::vector<Step> steps_of(const ScheduleRules& rules, const schedule::Item& item, int heads) {
  std::vector<Step> out;
  for (ItemWalk walk(rules, item, 0, heads); !walk.done(); walk.advance(rules))
    out.push_back({walk.at().head, walk.at().q, rules.rank(walk.at())});
  return out;
}

}  // namespace

// The table of turns that rank() refers to: 4 KV units, 4 Q tiles.
TEST_CASE("schedule: tables by hand") {
  SUBCASE("ascending, full") {
    const Geometry g = make_tiles(Kind::ascending, false, 4, 4, 1, 4);
    for (int unit = 0; unit < 4; ++unit) CHECK(visits(g, unit) == Visits{{0, unit}, {1, unit}, {2, unit}, {3, unit}});
  }
  SUBCASE("descending, causal") {
    const Geometry g = make_tiles(Kind::descending, true, 4, 4, 1, 4);
    CHECK(visits(g, 0) == Visits{{3, 0}, {2, 0}, {1, 0}, {0, 0}});
    CHECK(visits(g, 2) == Visits{{3, 2}, {2, 2}});
  }
  SUBCASE("shift: unit i starts at Q tile i and the unit after it has been there just before") {
    const Geometry g = make_tiles(Kind::shift, false, 4, 4, 1, 4);
    CHECK(visits(g, 0) == Visits{{0, 0}, {1, 1}, {2, 2}, {3, 3}});
    CHECK(visits(g, 1) == Visits{{1, 0}, {2, 1}, {3, 2}, {0, 3}});
    CHECK(visits(g, 3) == Visits{{3, 0}, {0, 1}, {1, 2}, {2, 3}});
  }
  SUBCASE("shift with stride 2: two steps between neighbours") {
    const Geometry g = make_tiles(Kind::shift, false, 2, 4, 1, 2, 2);
    CHECK(visits(g, 0) == Visits{{0, 0}, {1, 0}, {2, 1}, {3, 1}});
    CHECK(visits(g, 1) == Visits{{2, 0}, {3, 0}, {0, 1}, {1, 1}});
  }
  SUBCASE("shift in waves of two, the last wave short") {
    const Geometry g = make_tiles(Kind::shift, false, 3, 4, 1, 2);
    CHECK(visits(g, 1) == Visits{{1, 0}, {2, 0}, {3, 0}, {0, 1}});
    CHECK(visits(g, 2) == Visits{{0, 2}, {1, 2}, {2, 2}, {3, 2}});
  }
  SUBCASE("alternate: upwards the diagonal adds first, downwards KV 0 does") {
    const Geometry g = make_tiles(Kind::alternate, true, 4, 4, 2, 4);
    CHECK(visits(g, 0) == Visits{{0, 0}, {1, 1}, {2, 2}, {3, 3}});
    CHECK(visits(g, 2) == Visits{{2, 0}, {3, 1}});
    CHECK(visits(g, 0, true) == Visits{{3, 0}, {2, 0}, {1, 0}, {0, 0}});
    CHECK(visits(g, 2, true) == Visits{{3, 2}, {2, 2}});
  }
  SUBCASE("alternate, several query heads: one upwards and the others downwards together; a flipped group is that in reverse") {
    for (const int heads : {2, 3, 5}) {
      CAPTURE(heads);
      const Geometry g = make_grid(Kind::alternate, true, 4, 4, 1, 1, 2, 1, 4, 1, heads);
      const ScheduleRules rules(g);
      std::vector<Step> up{{0, 2, 0}, {0, 3, 1}}, flipped;
      for (const Visits::value_type& visit : {std::pair{3, 1}, std::pair{2, 0}})
        for (int head = 1; head < heads; ++head) up.push_back({head, visit.first, visit.second});
      for (const Visits::value_type& visit : {std::pair{2, 2}, std::pair{3, 2}})
        for (int head = 0; head < heads - 1; ++head) flipped.push_back({head, visit.first, visit.second});
      flipped.push_back({heads - 1, 3, 2});
      flipped.push_back({heads - 1, 2, 2});
      CHECK(steps_of(rules, {0, 2, false}, heads) == up);
      CHECK(steps_of(rules, {0, 2, true}, heads) == flipped);
    }
  }
  SUBCASE("symmetric_shift: rectangle, triangle, then the short unit downwards") {
    const Geometry g = make_tiles(Kind::symmetric_shift, true, 4, 4, 1, 2);
    CHECK(g.wave == 2);
    CHECK(visits(g, 0) == Visits{{1, 0}, {2, 1}, {3, 1}, {0, 0}, {3, 3}});  // the two long units rotate over Q tiles 1, 2, 3
    CHECK(visits(g, 1) == Visits{{2, 0}, {3, 0}, {1, 1}, {3, 2}, {2, 2}});
  }
}

TEST_CASE("schedule: a walk visits for each of its query heads what that head's walk alone does") {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    for (const Kind kind : kClosedKinds) {
      Geometry g = random_grid(random, kind).geometry;
      g.heads = 1 + round % 5;
      CAPTURE(describe(g));
      const ScheduleRules rules(g);
      for (int unit = 0; unit < schedule::walk_items(g); ++unit) {
        for (const bool flipped : {false, true}) {
          if (flipped && kind != Kind::alternate) continue;
          std::vector<Visits> of_head(static_cast<std::size_t>(g.heads));
          for (const Step& step : steps_of(rules, {0, unit, flipped}, g.heads))
            of_head[static_cast<std::size_t>(step[0])].emplace_back(step[1], step[2]);
          for (int head = 0; head < g.heads; ++head)
            CHECK(of_head[static_cast<std::size_t>(head)] == visits(g, unit, flipped, head));
        }
      }
    }
  }
}

TEST_CASE("schedule: symmetric_shift arrives in the order of its ranks, one unit a Q tile at a time") {
  for (int n = 1; n <= 17; ++n) {
    const Geometry g = make_tiles(Kind::symmetric_shift, true, n, n, 1, n);
    std::map<int, std::map<int, int>> step_of_rank;  // Q tile -> rank -> step
    int longest = 0;
    for (int pair = 0; pair < schedule::pairs(g); ++pair) {
      const Visits walk = visits(g, pair);
      longest = std::max(longest, static_cast<int>(walk.size()));
      for (int step = 0; step < static_cast<int>(walk.size()); ++step) step_of_rank[walk[step].first][walk[step].second] = step;
    }
    CAPTURE(n);
    CHECK(longest == (n == 1 ? 1 : n + 1));
    for (const auto& [q, steps] : step_of_rank) {
      CHECK(static_cast<int>(steps.size()) == q + 1);
      int last = -1;
      for (const auto& [rank, step] : steps) {
        CHECK(step > last);
        last = step;
      }
    }
  }
}

TEST_CASE("schedule: first_q and contributors agree with the mask, pair by pair") {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const Geometry g = random_grid(random, Kind::ascending).geometry;
    CAPTURE(describe(g));
    for (int unit = 0; unit < g.units; ++unit) {
      int first = g.q_tiles;
      for (int row = g.seqlen_q - 1; row >= 0; --row) {
        if (!g.causal || unit * g.unit_kv <= row + g.seqlen_k - g.seqlen_q) first = row / g.tile_q;
      }
      CHECK(schedule::first_q(g, unit) == first);
      CHECK(schedule::steps(g, unit) == g.q_tiles - first);
    }
    for (int q = 0; q < g.q_tiles; ++q) {
      int count = 0;
      for (int unit = 0; unit < g.units; ++unit) count += schedule::first_q(g, unit) <= q;
      CHECK(schedule::contributors(g, q) == count);
    }
  }
}

TEST_CASE("schedule, report 66: lengths near 2^31 stay inside int") {
  const int longest = static_cast<int>((std::int64_t{1} << 31) - (std::int64_t{1} << 16));
  const Geometry g = make_grid(Kind::ascending, true, longest, longest, 64, 128, 1, 1, 132);
  CHECK(schedule::contributors(g, g.q_tiles - 1) == g.units);
  CHECK(schedule::contributors(g, 0) == 1);
  CHECK(schedule::first_q(g, g.units - 1) == g.q_tiles - 2);
  const Geometry wide = make_grid(Kind::ascending, true, 1, longest, 64, 128, 1, 1, 132);
  CHECK(schedule::contributors(wide, 0) == wide.units);
  const Geometry tall = make_grid(Kind::ascending, true, longest, 1, 64, 128, 1, 1, 132);
  CHECK(schedule::first_q(tall, 0) == tall.q_tiles - 1);
  CHECK(schedule::contributors(tall, 0) == 0);
}

TEST_CASE("schedule: items name every walk and unit once, walks fastest within a group") {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    for (const Kind kind : kClosedKinds) {
      const Geometry g = random_grid(random, kind).geometry;
      CAPTURE(describe(g));
      std::set<std::pair<int, int>> seen;
      for (int index = 0; index < schedule::items(g); ++index) {
        const schedule::Item item = schedule::item_at(g, index);
        CHECK(item.walk >= 0);
        CHECK(item.walk < g.walks);
        CHECK(item.unit < schedule::walk_items(g));
        CHECK(item.flipped == (kind == Kind::alternate && item.walk / g.head_group % 2 == 1));
        seen.insert({item.walk, item.unit});
        const schedule::Residents set = schedule::residents(g, index);
        CHECK(set.begin <= index);
        CHECK(index < set.end);
      }
      CHECK(static_cast<int>(seen.size()) == schedule::items(g));
    }
  }
}

TEST_CASE("schedule: waves and strides of a plan") {
  AttentionBackward problem;
  problem.batch = 2;
  problem.seqlen_q = problem.seqlen_k = 16384;
  problem.heads = problem.kv_heads = 8;
  Plan plan;
  plan.schedule = Schedule::shift;
  plan.cluster = 2;
  plan.workers = 66;
  plan.shift_stride = 8;
  Geometry g = make_geometry(problem, plan);
  CHECK(g.units == 64);
  CHECK(g.q_tiles == 256);
  CHECK(g.walks == 16);
  CHECK(g.wave == 64);
  CHECK(g.stride == 4);  // 256 Q tiles allow no more
  plan.head_group = 2;
  CHECK(make_geometry(problem, plan).wave == 33);
  CHECK(make_geometry(problem, plan).stride == 7);
  plan.head_group = 100;
  CHECK(make_geometry(problem, plan).head_group == 16);
  CHECK(make_geometry(problem, plan).wave == 4);
  problem.seqlen_q = 100;  // two Q tiles
  CHECK(make_geometry(problem, plan).wave == 2);
  plan.schedule = Schedule::ascending;
  g = make_geometry(problem, plan);
  CHECK(g.wave == 64);
  CHECK(g.stride == 1);
}
