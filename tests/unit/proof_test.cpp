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
  using Rules = ScheduleRules;
  using Item = schedule::Item;
  explicit Mutant(const Geometry& g) : ScheduleRules(g) {}

  std::function<int(const Rules&, const Item&)> other_steps = &Rules::steps;
  std::function<Cursor(const Rules&, const Item&, int)> other_begin = &Rules::begin;
  std::function<void(const Rules&, Cursor&)> other_advance = &Rules::advance;
  std::function<int(const Rules&, const Cursor&)> other_rank = &Rules::rank;
  std::function<int(const Rules&, const Cursor&)> other_together_to = &Rules::together_to;
  std::function<Item(const Rules&, int)> other_item_at = &Rules::item_at;
  std::function<schedule::Residents(const Rules&, int)> other_residents = &Rules::residents;

  int steps(const Item& item) const { return other_steps(*this, item); }
  Cursor begin(const Item& item, int head) const { return other_begin(*this, item, head); }
  void advance(Cursor& at) const { other_advance(*this, at); }
  int rank(const Cursor& at) const { return other_rank(*this, at); }
  int together_to(const Cursor& at) const { return other_together_to(*this, at); }
  Item item_at(int index) const { return other_item_at(*this, index); }
  schedule::Residents residents(int index) const { return other_residents(*this, index); }
};

Result<void> prove(const Mutant& rules, const Geometry& g, std::int64_t workers) {
  return Proof<Mutant>(rules, g, workers, TileMap(g)).run();
}

}  // namespace

TEST_CASE("proof, report 58: every schedule on random shapes") {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    for (const Kind kind : kClosedKinds) {
      const RandomGrid grid = random_grid(random, kind);
      CAPTURE(describe(grid.geometry));
      CAPTURE(grid.workers);
      const auto proved = prove_schedule(grid.geometry, grid.workers);
      if (!proved) CAPTURE(proved.error().message);
      CHECK(proved);
    }
  }
}

TEST_CASE("proof: a first half that waits for a second half") {
  // Two pairs, as many query heads as you like: unit 3 (short, of pair 0) before unit 1 (long, of pair 1) at the last Q tile.
  const Geometry g = make_tiles(Kind::symmetric_shift, true, 4, 4, 1, 2);
  CHECK(prove(Mutant(g), g, 2));
  Mutant mutant(g);
  mutant.other_rank = [](const ScheduleRules& rules, const Cursor& at) {
    const int rank = rules.rank(at);
    if (at.q != 3) return rank;
    const int orders[] = {0, 2, 3, 1};  // units 0, 3, 1, 2
    return orders[at.item.unit];
  };
  check_refused(prove(mutant, g, 2), "at Q tile 3 the first half of an item up to item 1 has rank 2");
}

TEST_CASE("proof: a schedule that is sound but goes in pairs of tiles the mask does not have") {
  // The geometry's own mask is causal; shown a full one, the proof misses the tiles above the diagonal, and the other way round.
  const Geometry causal = make_tiles(Kind::descending, true, 5, 5, 1, 5);
  const auto everything = [](int, int) { return TileKind::full; };
  check_refused(prove_schedule(causal, 5, nullptr, everything), "unit 1 never visits Q tile 0");
  const Geometry full = make_tiles(Kind::descending, false, 5, 5, 1, 5);
  const auto triangle = [](int unit, int q) { return unit <= q ? TileKind::full : TileKind::none; };
  check_refused(prove_schedule(full, 5, nullptr, triangle), "unit 1 visits the fully masked Q tile 0");
}

TEST_CASE("proof: an unchanged mutant passes") {
  const Geometry g = make_tiles(Kind::shift, false, 5, 7, 2, 4);
  CHECK(prove(Mutant(g), g, 4));
}

TEST_CASE("proof: wrong ranks") {
  const Geometry g = make_tiles(Kind::ascending, false, 4, 6, 1, 4);
  Mutant mutant(g);
  SUBCASE("two units with one rank") {
    mutant.other_rank = [](const ScheduleRules&, const Cursor& at) { return at.item.unit == 2 && at.q == 3 ? 1 : at.item.unit; };
    check_refused(prove(mutant, g, 4), "units 1 and 2 both have rank 1 at Q tile 3");
  }
  SUBCASE("a rank beyond the contributors") {
    mutant.other_rank = [](const ScheduleRules&, const Cursor& at) { return at.item.unit == 3 && at.q == 5 ? 4 : at.item.unit; };
    check_refused(prove(mutant, g, 4), "unit 3 has rank 4 at Q tile 5");
  }
  SUBCASE("a negative rank") {
    mutant.other_rank = [](const ScheduleRules&, const Cursor& at) { return at.item.unit - 1; };
    check_refused(prove(mutant, g, 4), "unit 0 has rank -1 at Q tile 0");
  }
  SUBCASE("a wait on a later item that may never start") {
    mutant.other_rank = [](const ScheduleRules&, const Cursor& at) { return 3 - at.item.unit; };
    check_refused(prove(mutant, g, 4), "at Q tile 0");
  }
  SUBCASE("a gap: causal ranks that count units the tile does not see") {
    const Geometry causal = make_tiles(Kind::ascending, true, 4, 4, 1, 4);
    mutant = Mutant(causal);
    mutant.other_rank = [](const ScheduleRules&, const Cursor& at) { return at.q == 2 && at.item.unit == 2 ? 3 : at.item.unit; };
    check_refused(prove(mutant, causal, 4), "at Q tile 2");
  }
}

TEST_CASE("proof: a cycle among resident units") {
  // shift with its turns reversed: everyone waits for the neighbour that arrives last.
  const Geometry g = make_tiles(Kind::shift, false, 4, 4, 1, 4);
  Mutant mutant(g);
  mutant.other_rank = [](const ScheduleRules&, const Cursor& at) { return (at.item.unit - at.q + 1 + 4) % 4; };
  check_refused(prove(mutant, g, 4), "a deadlock");
}

TEST_CASE("proof: wrong visits") {
  const Geometry g = make_tiles(Kind::ascending, true, 4, 6, 1, 4);  // unit 2 sees Q tiles 4 and 5
  Mutant mutant(g);
  SUBCASE("a tile left out") {
    mutant.other_steps = [](const ScheduleRules& rules, const schedule::Item& item) {
      return rules.steps(item) - (item.unit == 3 ? 1 : 0);
    };
    check_refused(prove(mutant, g, 4), "unit 3 never visits Q tile 5");
  }
  SUBCASE("a fully masked tile") {
    mutant.other_begin = [](const ScheduleRules& rules, const schedule::Item& item, int head) {
      Cursor at = rules.begin(item, head);
      if (item.unit == 3) at.q -= 1;
      return at;
    };
    mutant.other_steps = [](const ScheduleRules& rules, const schedule::Item& item) {
      return rules.steps(item) + (item.unit == 3 ? 1 : 0);
    };
    check_refused(prove(mutant, g, 4), "Q tile 4");
  }
  SUBCASE("a tile twice") {
    mutant.other_advance = [](const ScheduleRules& rules, Cursor& at) {
      const int before = at.q;
      rules.advance(at);
      if (at.item.unit == 1 && at.step == 2) at.q = before;
    };
    check_refused(prove(mutant, g, 4), "unit 1 visits Q tile 4 twice");
  }
  SUBCASE("outside the grid") {
    mutant.other_steps = [](const ScheduleRules& rules, const schedule::Item& item) {
      return rules.steps(item) + (item.unit == 1 ? 1 : 0);
    };
    check_refused(prove(mutant, g, 4), "step 3 of unit 1 is Q tile 6, outside the grid");
  }
}

TEST_CASE("proof: wrong dispatch") {
  const Geometry g = make_tiles(Kind::ascending, false, 4, 4, 3, 4);
  Mutant mutant(g);
  mutant.other_item_at = [](const ScheduleRules& rules, int index) { return rules.item_at(index == 2 ? 1 : index); };
  check_refused(prove(mutant, g, 4), "item 2 is walk 0 unit 1");
  mutant = Mutant(g);
  mutant.other_item_at = [](const ScheduleRules& rules, int index) { return rules.item_at(index == 11 ? 0 : index); };
  check_refused(prove(mutant, g, 4), "item 11");
  mutant = Mutant(g);
  mutant.other_residents = [](const ScheduleRules&, int index) { return schedule::Residents{index + 1, index + 2}; };
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
  // alternate that walks query heads of both directions together, or none.
  Geometry grouped = make_tiles(Kind::alternate, true, 6, 6, 2, 6);
  grouped.heads = 3;
  CHECK(prove_schedule(grouped, 12));
  Mutant together(grouped);
  together.other_together_to = [](const ScheduleRules&, const Cursor&) { return 3; };
  check_refused(prove(together, grouped, 12), "walks query heads 0 and 1 together, but from Q tiles 0 and 5");
  together.other_together_to = [](const ScheduleRules&, const Cursor& at) { return at.head; };
  check_refused(prove(together, grouped, 12), "query head 0 together with none");
  // alternate whose residents() claims singletons: the gap in ranks betrays it.
  const Geometry g = make_tiles(Kind::alternate, true, 6, 6, 2, 6);
  Mutant mutant(g);
  mutant.other_residents = [](const ScheduleRules&, int index) { return schedule::Residents{index, index + 1}; };
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
