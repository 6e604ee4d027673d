// Measurements, the fit of the cost model to them, and the model against the committed ones.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "codegen/cost/fit.hpp"
#include "codegen/cost/measurements.hpp"
#include "codegen/cost/model.hpp"

using namespace ordo;

namespace {

Target h200() { return *parse_target("h200"); }

AttentionBackward problem_of(std::int64_t batch, std::int64_t length, std::int64_t heads, std::int64_t head_dim, Mask mask) {
  return {.batch = batch,
          .seqlen_q = length,
          .seqlen_k = length,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = head_dim,
          .mask = mask};
}

/// What a device with these constants would measure.
std::vector<cost::Measurement> imagined(const cost::Constants& constants) {
  std::vector<cost::Measurement> rows;
  for (const std::int64_t head_dim : {128, 64})
    for (const Mask mask : {Mask::full, Mask::causal})
      for (const std::int64_t length : {512, 2048}) {
        const AttentionBackward problem = problem_of(4096 / length, length, 16, head_dim, mask);
        const auto choice = make_plan(problem, h200());
        REQUIRE(choice);
        for (const Candidate& candidate : choice->candidates)
          rows.push_back({problem, candidate.plan, cost::predict(problem, candidate.plan, h200(), constants).ms});
      }
  return rows;
}

}  // namespace

TEST_CASE("cost: measurements are read from the suite's CSV") {
  const Plan plan = make_plan(problem_of(2, 1024, 8, 64, Mask::causal), h200())->plan;
  const std::string header = "impl,plan_schedule,batch,seqlen,heads,kv_heads,ms_median,plan\n";
  const std::string row = fmt::format("ordo,x,2,1024,8,8,0.25,\"{}\"\n", to_text(plan));
  const auto read = cost::parse_measurements("# device: some\n" + header + "cudnn,,2,1024,8,8,0.3,\n" + row);
  REQUIRE_MESSAGE(read.ok(), (read ? "" : read.error().message));
  REQUIRE(read->size() == 1);
  CHECK(read->front().problem == problem_of(2, 1024, 8, 64, Mask::causal));
  CHECK(read->front().plan == plan);
  CHECK(read->front().ms == 0.25);
  const auto refused = [&](const std::string& text, const std::string& expected) {
    const auto bad = cost::parse_measurements(text);
    REQUIRE_FALSE(bad);
    CAPTURE(bad.error().message);
    CHECK(bad.error().message.find(expected) != std::string::npos);
  };
  refused("", "no row");
  refused(header, "no row");
  refused("impl,batch\n", "'seqlen'");
  refused(header + "ordo,x,2,1024,8,8,0.25,nonsense\n", "line 2");
  refused(header + fmt::format("ordo,x,2,1024,8,8,-1,\"{}\"\n", to_text(plan)), "ms_median is -1");
  refused(header + fmt::format("ordo,x,2,,8,8,1,\"{}\"\n", to_text(plan)), "column seqlen");
  refused(header + fmt::format("ordo,x,2,1024,8,2,1,\"{}\"\n", to_text(plan)), "heads/kv_heads");
}

TEST_CASE("cost: rank correlation") {
  CHECK(cost::rank_correlation({1, 2, 3, 4}, {10, 20, 30, 40}) == doctest::Approx(1));
  CHECK(cost::rank_correlation({1, 2, 3, 4}, {4, 3, 2, 1}) == doctest::Approx(-1));
  CHECK(cost::rank_correlation({1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 6, 5}) == doctest::Approx(1 - 6.0 * 2 / (6 * 35)));
  CHECK(cost::rank_correlation({1, 1, 3}, {1, 2, 3}) == doctest::Approx(0.8660254));
  CHECK(cost::rank_correlation({1, 1, 1}, {1, 2, 3}) == 0);
  CHECK(cost::rank_correlation({5}, {7}) == 1);
  CHECK(cost::rank_correlation({1, 1.009, 2}, {1.001, 1, 2}, 0.01) == doctest::Approx(1));
  CHECK(cost::rank_correlation({1, 1.02, 2}, {1.02, 1, 2}, 0.01) == doctest::Approx(0.5));
  CHECK(cost::rank_correlation({1, 1}, {1, 1.001}, 0.01) == 1);
}

TEST_CASE("cost: a fit finds the constants of the device that was measured") {
  const cost::Constants& shipped = cost::shipped_constants(h200());
  cost::Constants other = shipped;
  for (cost::KernelConstants& kernel : other.kernels) {
    kernel.efficiency *= 0.85;
    kernel.item *= 1.3;
    kernel.shift *= 0.99;
  }
  other.memory_efficiency *= 0.9;
  const std::vector<cost::Measurement> rows = imagined(other);
  const auto fitted = cost::fit(rows, h200(), shipped, "imagined");
  REQUIRE_MESSAGE(fitted.ok(), (fitted ? "" : fitted.error().message));
  CHECK(fitted->rows == rows.size());
  CHECK(fitted->worst_error < 0.01);
  CHECK(fitted->constants.origin == "imagined");
  CHECK(fitted->constants.measured);
  for (std::size_t i = 0; i < other.kernels.size(); ++i)
    CHECK(fitted->constants.kernels[i].efficiency == doctest::Approx(other.kernels[i].efficiency).epsilon(0.04));
  CHECK(cost::parse_constants(cost::to_json(fitted->constants)).ok());
  CHECK_FALSE(cost::fit({}, h200(), shipped, ""));
}

// The table: `ordo calibrate --target h200 --from tests/bench/results/h200-plans.csv --output /dev/null`.
TEST_CASE("cost: predictions agree with the committed measurements") {
  std::ifstream file(ORDO_MEASUREMENTS, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto rows = cost::parse_measurements(text);
  REQUIRE_MESSAGE(rows.ok(), (rows ? "" : rows.error().message));
  const cost::Constants& shipped = cost::shipped_constants(h200());
  std::size_t cells = 0, ranked = 0;
  for (const cost::Cell& cell : cost::cells_of(*rows)) {
    const cost::Agreement agreement = cost::compare(cell, h200(), shipped);
    CAPTURE(to_text(cell.problem));
    CAPTURE(to_text(agreement.chosen));
    CAPTURE(to_text(agreement.best));
    CHECK(agreement.loss <= 0.03);
    ++cells;
    if (agreement.candidates < 6) continue;
    ++ranked;
    CHECK(agreement.resolved >= 0.9);
    CHECK(agreement.correlation >= 0.8);  // mirror images count, which are within what runs differ by
  }
  CHECK(cells == 27);
  CHECK(ranked == 15);
}
