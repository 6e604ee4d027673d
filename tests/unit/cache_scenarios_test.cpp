// Short forms of what the cache must survive; ordo_cache_soak runs the long ones.
#include <doctest/doctest.h>

#include "tests/cache/scenarios.hpp"

namespace ordo::test {
namespace {

#ifdef ORDO_SANITIZER
constexpr std::size_t share = 6;  // of the work: it takes so many times as long
#else
constexpr std::size_t share = 1;
#endif

void check(const Report& outcome) {
  MESSAGE(outcome.summary);
  for (const std::string& problem : outcome.problems) FAIL_CHECK(problem);
}

}  // namespace

TEST_CASE("cache, reports 3, 13 and 27: faults below SQLite serve no wrong bytes and lose nothing that was reported stored") {
  check(fault_cases(250 / share, 11));
}

TEST_CASE("cache: processes killed while they store, merge and clean up lose nothing that was reported stored") {
  check(kill_rounds(18 / share, 3));
}

TEST_CASE("cache: a flipped bit or a missing end anywhere in a shipped file is noticed") {
  check(shipped_damage(300 / share, 5));
}

TEST_CASE("cache: a large store answers fast") { check(large_store(2000 / share)); }

}  // namespace ordo::test
