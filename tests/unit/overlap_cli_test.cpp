// ordo VERB overlap, as far as it goes without a GPU: routes in plans, simulations and the rows of a suite.
#include <doctest/doctest.h>

#include "cli/overlap_run.hpp"
#include "tests/unit/command.hpp"

namespace ordo {
namespace {

using test::Json;
using test::json_of;
using test::ordo_command;
using test::Outcome;

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("cli overlap: a plan goes straight unless a ring is asked for, where there is one") {
  const test::CommandFolder folder;
  const Json direct = json_of(ordo_command(folder, "plan overlap --op all-gather-gemm --ranks 4 --json"));
  CHECK(direct["route"] == "direct");
  CHECK(contains(direct["plan"], " route=direct"));
  const Json ring = json_of(ordo_command(folder, "plan overlap --op all-gather-gemm --ranks 4 --route ring --json"));
  CHECK(ring["route"] == "ring");
  CHECK(parse_overlap_plan(ring["plan"].get<std::string>())->route == OverlapRoute::ring);
  CHECK(json_of(ordo_command(folder, "simulate overlap --op gemm-reduce-scatter --ranks 4 --route ring --json"))["route"] ==
        "ring");
  struct Case {
    const char *line, *expected;
  };
  for (const Case& one :
       {Case{"plan overlap --op gemm-all-to-all --route ring", "carry it past the others"},
        Case{"simulate overlap --op all-to-all-gemm --route ring", "carry it past the others"},
        Case{"plan overlap --op gemm-reduce-scatter --route ring", "rounded at every hop"},
        Case{"plan overlap --op gemm-all-reduce --route ring", "rounded at every hop"},
        Case{"plan overlap --route circle", "it is one of: direct, ring"}, Case{"check overlap --route circle", "--route: "},
        Case{"bench overlap --route circle", "it is one of: direct, ring"},
        Case{"bench overlap --route ring --plan overlap-plan", "excludes --route"}}) {
    CAPTURE(one.line);
    const Outcome outcome = ordo_command(folder, one.line);
    CHECK(outcome.code == 2);
    CAPTURE(outcome.err);
    CHECK(contains(outcome.err, one.expected));
  }
}

TEST_CASE("cli overlap: the family may stand behind options, and an option's value is no family") {
  const test::CommandFolder folder;
  const std::string expected = json_of(ordo_command(folder, "plan overlap --op all-gather-gemm --ranks 4 --json"))["plan"];
  for (const char* line : {"plan --ranks 4 overlap --op all-gather-gemm --json", "plan --ranks=4 overlap --json",
                           "plan --op all-gather-gemm --ranks 4 --json overlap"})
    CHECK_MESSAGE(json_of(ordo_command(folder, line))["plan"] == expected, line);
  // What another verb or another command is given.
  for (const char* line :
       {"plan attention-backward --seqlen 128 --target h200 --schedule ascending --cache overlap --json",
        "generate attention-backward --seqlen 128 --target h200 --output overlap", "launch -n 1 -- echo check overlap"}) {
    const Outcome outcome = ordo_command(folder, line);
    CHECK_MESSAGE(outcome.code == 0, line << ": " << outcome.err);
  }
}

TEST_CASE("cli overlap: of a suite, a ring takes the rows that it can") {
  const std::vector<std::string> suite{"overlap-gemm op=all-gather-gemm m=8 n=8 k=8",
                                       "overlap-gemm op=gemm-all-reduce m=8 n=8 k=8",
                                       "overlap-gemm op=all-to-all-gemm m=8 n=8 k=32"};
  cli::OverlapRunOptions options;
  options.suite = true;
  CHECK(cli::resolve_products(options, 4, suite)->size() == 3);
  options.route = OverlapRoute::ring;
  const auto rows = cli::resolve_products(options, 4, suite);
  REQUIRE(rows);
  REQUIRE(rows->size() == 1);
  const auto how = cli::resolve_how(options, rows->front(), Target{}, *options.route);
  REQUIRE(how);
  REQUIRE(how->plan);
  CHECK(how->plan->route == OverlapRoute::ring);
  options.rows = "all-reduce";
  CHECK(contains(cli::resolve_products(options, 4, suite).error().message, "no row of the suite can take it"));

  // One product is not left out: planning says why it cannot be.
  options = {};
  options.op = "gemm-all-reduce";
  options.route = OverlapRoute::ring;
  const auto one = cli::resolve_products(options, 4, suite);
  REQUIRE(one);
  const auto refused = cli::resolve_how(options, one->front(), Target{}, *options.route);
  REQUIRE(!refused);
  CHECK(refused.error().code == ErrorCode::invalid_plan);
}

}  // namespace ordo
