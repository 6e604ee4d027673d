// The proof accepts every schedule on every shape it is meant for, and refuses wrong ones by name of the tile.
#include "codegen/schedule/proof.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <string>

#include "codegen/schedule/proof_check.hpp"
#include "tests/unit/geometries.hpp"

using namespace ordo;
using namespace ordo::testing;
using schedule::Geometry;
using schedule::Kind;

namespace {

void check_refused(const Result<void>& result, const std::string& expected) {
  REQUIRE_FALSE(result);
  CAPTURE(result.error().message);
  CHECK(result.error().code == ErrorCode::invalid_plan);
  CHECK(result.error().message.find(expected) != std::string::npos);
}

/// The real rules with one of them replaced.
struct Mutant : ScheduleRules {
  std::function<int(const Geometry&, int)> other_steps = ScheduleRules::steps;
  std::function<Cursor(const Geometry&, const schedule::Item&)> other_begin = ScheduleRules::begin;
  std::function<void(const Geometry&, Cursor&)> other_advance = ScheduleRules::advance;
  std::function<int(const Geometry&, const Cursor&)> other_rank = ScheduleRules::rank;
  std::function<schedule::Item(const Geometry&, int)> other_item_at = ScheduleRules::item_at;
  std::function<schedule::Residents(const Geometry&, int)> other_residents = ScheduleRules::residents;

  int steps(const Geometry& g, int unit) const { return other_steps(g, unit); }
  Cursor begin(const Geometry& g, const schedule::Item& item) const { return other_begin(g, item); }
  void advance(const Geometry& g, Cursor& at) const { other_advance(g, at); }
  int rank(const Geometry& g, const Cursor& at) const { return other_rank(g, at); }
  schedule::Item item_at(const Geometry& g, int index) const { return other_item_at(g, index); }
  schedule::Residents residents(const Geometry& g, int index) const { return other_residents(g, index); }
};

Result<void> prove(const Mutant& rules, const Geometry& g, std::int64_t workers) {
  return Proof<Mutant>(rules, g, workers).run();
}

}  // namespace

TEST_CASE("proof: every schedule on random shapes") {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    for (const Kind kind : kAllKinds) {
      const RandomGrid grid = random_grid(random, kind);
      CAPTURE(describe(grid.geometry));
      CAPTURE(grid.workers);
      const auto proved = prove_schedule(grid.geometry, grid.workers);
      if (!proved) CAPTURE(proved.error().message);
      CHECK(proved);
    }
  }
}

TEST_CASE("proof: an unchanged mutant passes") {
  const Geometry g = make_tiles(Kind::shift, false, 5, 7, 2, 4);
  CHECK(prove(Mutant{}, g, 4));
}

TEST_CASE("proof: wrong ranks") {
  const Geometry g = make_tiles(Kind::ascending, false, 4, 6, 1, 4);
  Mutant mutant;
  SUBCASE("two units with one rank") {
    mutant.other_rank = [](const Geometry&, const Cursor& at) { return at.unit == 2 && at.q == 3 ? 1 : at.unit; };
    check_refused(prove(mutant, g, 4), "units 1 and 2 both have rank 1 at Q tile 3");
  }
  SUBCASE("a rank beyond the contributors") {
    mutant.other_rank = [](const Geometry&, const Cursor& at) { return at.unit == 3 && at.q == 5 ? 4 : at.unit; };
    check_refused(prove(mutant, g, 4), "unit 3 has rank 4 at Q tile 5");
  }
  SUBCASE("a negative rank") {
    mutant.other_rank = [](const Geometry&, const Cursor& at) { return at.unit - 1; };
    check_refused(prove(mutant, g, 4), "unit 0 has rank -1 at Q tile 0");
  }
  SUBCASE("a wait on a later item that may never start") {
    mutant.other_rank = [](const Geometry&, const Cursor& at) { return 3 - at.unit; };
    check_refused(prove(mutant, g, 4), "at Q tile 0");
  }
  SUBCASE("a gap: causal ranks that count units the tile does not see") {
    const Geometry causal = make_tiles(Kind::ascending, true, 4, 4, 1, 4);
    mutant.other_rank = [](const Geometry&, const Cursor& at) { return at.q == 2 && at.unit == 2 ? 3 : at.unit; };
    check_refused(prove(mutant, causal, 4), "at Q tile 2");
  }
}

TEST_CASE("proof: a cycle among resident units") {
  // shift with its turns reversed: everyone waits for the neighbour that arrives last.
  const Geometry g = make_tiles(Kind::shift, false, 4, 4, 1, 4);
  Mutant mutant;
  mutant.other_rank = [](const Geometry&, const Cursor& at) { return (at.unit - at.q + 1 + 4) % 4; };
  check_refused(prove(mutant, g, 4), "a deadlock");
}

TEST_CASE("proof: wrong visits") {
  const Geometry g = make_tiles(Kind::ascending, true, 4, 6, 1, 4);  // unit 2 sees Q tiles 4 and 5
  Mutant mutant;
  SUBCASE("a tile left out") {
    mutant.other_steps = [](const Geometry& grid, int unit) { return schedule::steps(grid, unit) - (unit == 3 ? 1 : 0); };
    check_refused(prove(mutant, g, 4), "unit 3 never visits Q tile 5");
  }
  SUBCASE("a fully masked tile") {
    mutant.other_begin = [](const Geometry& grid, const schedule::Item& item) {
      Cursor at = ScheduleRules::begin(grid, item);
      if (item.unit == 3) at.q -= 1;
      return at;
    };
    mutant.other_steps = [](const Geometry& grid, int unit) { return schedule::steps(grid, unit) + (unit == 3 ? 1 : 0); };
    check_refused(prove(mutant, g, 4), "Q tile 4");
  }
  SUBCASE("a tile twice") {
    mutant.other_advance = [](const Geometry& grid, Cursor& at) {
      const int before = at.q;
      ScheduleRules::advance(grid, at);
      if (at.unit == 1 && at.step == 2) at.q = before;
    };
    check_refused(prove(mutant, g, 4), "unit 1 visits Q tile 4 twice");
  }
  SUBCASE("outside the grid") {
    mutant.other_steps = [](const Geometry& grid, int unit) { return schedule::steps(grid, unit) + (unit == 1 ? 1 : 0); };
    check_refused(prove(mutant, g, 4), "unit 1 Q tile 6, outside the grid");
  }
}

TEST_CASE("proof: wrong dispatch") {
  const Geometry g = make_tiles(Kind::ascending, false, 4, 4, 3, 4);
  Mutant mutant;
  mutant.other_item_at = [](const Geometry& grid, int index) { return schedule::item_at(grid, index == 2 ? 1 : index); };
  check_refused(prove(mutant, g, 4), "item 2 is walk 0 unit 1");
  mutant = {};
  mutant.other_item_at = [](const Geometry& grid, int index) { return schedule::item_at(grid, index == 11 ? 0 : index); };
  check_refused(prove(mutant, g, 4), "item 11");
  mutant = {};
  mutant.other_residents = [](const Geometry&, int index) { return schedule::Residents{index + 1, index + 2}; };
  check_refused(prove(mutant, g, 4), "co-resident set");
}

TEST_CASE("proof: corrupt geometries") {
  const auto corrupted = [](Geometry g, int workers, const std::function<void(Geometry&)>& change) {
    REQUIRE(prove_schedule(g, workers));
    change(g);
    return prove_schedule(g, workers);
  };
  const Geometry shift = make_tiles(Kind::shift, false, 6, 6, 2, 6);
  check_refused(corrupted(shift, 6, [](Geometry& g) { g.stride = 2; }), "outside the grid");
  check_refused(corrupted(shift, 6, [](Geometry& g) { g.wave = 0; }), "below 1");
  check_refused(corrupted(shift, 6, [](Geometry& g) { g.units = 0; }), "below 1");
  check_refused(corrupted(shift, 6, [](Geometry& g) { g.q_tiles = -1; }), "below 1");
  check_refused(corrupted(make_tiles(Kind::shift, false, 6, 4, 1, 6), 6, [](Geometry& g) { g.wave = 6; }), "outside the grid");
  const Geometry pairs = make_tiles(Kind::symmetric_shift, true, 8, 3, 1, 8);
  CHECK(pairs.wave == 3);
  check_refused(corrupted(pairs, 8, [](Geometry& g) { g.units = 9; }), "do not cover");
  const Geometry causal = make_tiles(Kind::descending, true, 6, 6, 1, 6);
  check_refused(corrupted(causal, 6, [](Geometry& g) { g.q_tiles = 5; }), "do not cover");
  check_refused(corrupted(causal, 6, [](Geometry& g) { g.q_tiles = 7; }), "do not cover");
  check_refused(corrupted(causal, 6, [](Geometry& g) { g.units = 7; }), "do not cover");
  // On a square causal grid shift happens to be alternate's upward half; elsewhere it is no order for that mask.
  CHECK_FALSE(prove_schedule(make_tiles(Kind::shift, true, 6, 9, 1, 6), 6));
  CHECK_FALSE(prove_schedule(make_tiles(Kind::shift, true, 9, 6, 1, 6), 6));
}

TEST_CASE("proof: too few workers") {
  check_refused(prove_schedule(make_tiles(Kind::alternate, true, 6, 6, 2, 6), 5),
                "6 items (head_group 1) wait for each other, but only 5");
  CHECK(prove_schedule(make_tiles(Kind::alternate, true, 6, 6, 2, 6), 6));
  CHECK(prove_schedule(make_tiles(Kind::descending, true, 6, 6, 2, 1), 1));
  CHECK(prove_schedule(make_tiles(Kind::ascending, true, 6, 6, 2, 1), 1));
  // A wave made for six workers needs six.
  check_refused(prove_schedule(make_tiles(Kind::shift, false, 6, 6, 2, 6), 5), "6 items (head_group 1)");
  check_refused(prove_schedule(make_tiles(Kind::ascending, false, 6, 6, 2, 6), 0), "below 1");
}

TEST_CASE("proof: a group that hides from its resident set is still found out") {
  // alternate whose residents() claims singletons: the gap in ranks betrays it.
  Mutant mutant;
  mutant.other_residents = [](const Geometry&, int index) { return schedule::Residents{index, index + 1}; };
  const Geometry g = make_tiles(Kind::alternate, true, 6, 6, 2, 6);
  check_refused(prove(mutant, g, 2), "waits for a unit that may never start");
}

TEST_CASE("proof: grids too large to prove are refused at once, and long ones take seconds at most") {
  Geometry g = make_grid(Kind::ascending, true, 1 << 30, 1 << 30, 64, 128, 1, 1, 132);
  const auto refused = prove_schedule(g, 132);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::unsupported);
  const auto start = std::chrono::steady_clock::now();
  CHECK(prove_schedule(make_grid(Kind::descending, true, 1 << 17, 1 << 17, 64, 256, 8, 1, 66), 66));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
}
