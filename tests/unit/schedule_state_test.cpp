// Schedules as expressions: the same tiles and turns as templates/schedule/schedule.cuh, and what they cost in registers.
#include "codegen/expression/schedule_state.hpp"

#include <doctest/doctest.h>

#include <random>
#include <set>

#include "codegen/expression/host_function.hpp"
#include "codegen/expression/lower.hpp"
#include "tests/unit/geometries.hpp"

using namespace ordo;
using namespace ordo::expression;
using namespace ordo::testing;
using schedule::Geometry;
using schedule::Kind;

namespace {

Values values_of(const Geometry& g, int unit, bool down, int tile) {
  Values values{};
  const auto set = [&values](Variable variable, int value) { values[static_cast<std::size_t>(variable)] = value; };
  set(Variable::seqlen_q, g.seqlen_q), set(Variable::seqlen_k, g.seqlen_k), set(Variable::q_tiles, g.q_tiles);
  set(Variable::units, g.units), set(Variable::tile_q, g.tile_q), set(Variable::unit_kv, g.unit_kv);
  set(Variable::wave, g.wave), set(Variable::stride, g.stride);
  set(Variable::unit, unit), set(Variable::down, down ? 1 : 0), set(Variable::tile, tile);
  return values;
}

int words(const Expression& expression, const Domain& known = {}) {
  const auto live = live_registers(expression, known);
  REQUIRE(live.ok());
  return live->words;
}

}  // namespace

TEST_CASE("schedule state: the expressions are the schedule") {
  std::mt19937 random(5);
  for (const Kind kind : {Kind::ascending, Kind::descending, Kind::shift, Kind::alternate}) {
    for (int i = 0; i < 40; ++i) {
      Geometry g = random_grid(random, kind).geometry;
      g.heads = 1;
      CAPTURE(describe(g));
      const auto state = schedule_state(kind, g.causal);
      REQUIRE(state.has_value());
      for (int unit = 0; unit < g.units; ++unit) {
        const schedule::Item item{0, unit, kind == Kind::alternate && unit % 2 == 1};
        const int steps = schedule::steps(g, unit);
        if (steps == 0) continue;
        int q = schedule::start_q(g, item, 0);
        CHECK(evaluate(state->start_q, values_of(g, unit, item.flipped, 0)) == q);
        for (int step = 0; step < steps; ++step) {
          const Values values = values_of(g, unit, item.flipped, q);
          if (evaluate(state->rank, values) != schedule::rank(g, item, q)) FAIL_CHECK("rank of unit ", unit, " at ", q);
          if (step + 1 == steps) break;
          const int next = schedule::next_q(g, item, 0, q);
          if (evaluate(state->next_q, values) != next) FAIL_CHECK("after ", q, " of unit ", unit);
          q = next;
        }
      }
    }
  }
}

TEST_CASE("schedule state: symmetric_shift visits every live tile, with its turns") {
  std::mt19937 random(8);
  for (int i = 0; i < 60; ++i) {
    const Geometry g = random_grid(random, Kind::symmetric_shift).geometry;
    CAPTURE(describe(g));
    const auto state = schedule_state(Kind::symmetric_shift, true);
    REQUIRE(state.has_value());
    for (int unit = 0; unit < g.units; ++unit) {
      const bool down = 2 * unit >= g.units;
      const int steps = schedule::steps(g, unit);
      if (steps == 0) continue;
      std::set<int> visited;
      int q = evaluate(state->start_q, values_of(g, unit, down, 0));
      for (int step = 0; step < steps; ++step) {
        if (step > 0) q = evaluate(state->next_q, values_of(g, unit, down, q));
        visited.insert(q);
        if (evaluate(state->rank, values_of(g, unit, down, q)) != schedule::pair_rank(g, unit, q))
          FAIL_CHECK("rank of unit ", unit, " at ", q);
      }
      CHECK(static_cast<int>(visited.size()) == steps);
      CHECK(*visited.begin() == schedule::first_q(g, unit));
      CHECK(*visited.rbegin() == g.q_tiles - 1);
    }
  }
}

TEST_CASE("schedule state: code from the IR agrees, and baked shapes need fewer registers") {
  std::mt19937 random(6);
  for (const Kind kind : kClosedKinds) {
    const Geometry g = random_grid(random, kind).geometry;
    CAPTURE(describe(g));
    const auto state = schedule_state(kind, g.causal);
    REQUIRE(state.has_value());
    const Domain known = known_geometry(g);
    for (const Expression* expression : {&state->start_q, &state->next_q, &state->rank}) {
      const auto function = HostFunction::compile(*expression, known);
      REQUIRE(function.ok());
      for (int unit = 0; unit < g.units; ++unit) {
        const bool down = kind == Kind::symmetric_shift ? 2 * unit >= g.units : kind == Kind::alternate && unit % 2 == 1;
        for (int q = schedule::first_q(g, unit); q < g.q_tiles; ++q) {
          const Values values = values_of(g, unit, down, q);
          if ((*function)(values) != evaluate(*expression, values)) FAIL_CHECK("unit ", unit, " Q tile ", q);
        }
      }
      CHECK(words(*expression, known) <= words(*expression));
    }
  }
  // DASH's finding: shift has state that descending has not.
  CHECK(words(schedule_state(Kind::shift, false)->rank) >= words(schedule_state(Kind::descending, false)->rank) + 3);
  CHECK(words(schedule_state(Kind::symmetric_shift, true)->rank) > words(schedule_state(Kind::shift, false)->rank));
  CHECK_FALSE(schedule_state(static_cast<Kind>(99), true).has_value());
}
