// Short forms of what the cache must survive; ordo_cache_soak runs the long ones.
#include <doctest/doctest.h>

#include "tests/cache/scenarios.hpp"

namespace ordo::test {
namespace {

void check(const Report& outcome) {
  MESSAGE(outcome.summary);
  for (const std::string& problem : outcome.problems) FAIL_CHECK(problem);
}

}  // namespace

TEST_CASE("cache, reports 3, 13 and 27: faults below SQLite serve no wrong bytes and lose nothing that was reported stored") {
  check(fault_cases(250, 11));
}

TEST_CASE("cache: processes killed while they store, merge and clean up lose nothing that was reported stored") {
  check(kill_rounds(18, 3));
}

TEST_CASE("cache: a flipped bit or a missing end anywhere in a shipped file is noticed") { check(shipped_damage(300, 5)); }

TEST_CASE("cache: a large store answers fast") { check(large_store(2000)); }

}  // namespace ordo::test
