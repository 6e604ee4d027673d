// Decision tables: their text, hash and differences, in and out of a tuner, and as a lock file of an engine.
#include "ordo/decision_table.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>

#include "codegen/schedule/proof.hpp"
#include "tests/unit/tuner_support.hpp"

namespace ordo {
namespace {

using test::causal;
using test::FakeDevice;
using test::tuner_at;

DecisionTable small_table() {
  DecisionTable table{*parse_target("h200"), {}, {}};
  for (const std::int64_t seqlen : {1024, 4096}) {
    const PlanChoice choice = *make_plan(causal(seqlen), table.target);
    table.decisions.push_back({causal(seqlen), choice.plan, order_fingerprint(causal(seqlen), choice.plan), PlanSource::predicted,
                               choice.predicted_ms, choice.reason});
  }
  return table;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

bool mentions(const std::vector<std::string>& texts, const std::string& what) {
  return std::any_of(texts.begin(), texts.end(), [&](const std::string& text) { return text.find(what) != std::string::npos; });
}

}  // namespace

TEST_CASE("decision table: its text reads back, and its hash is of the decisions alone") {
  DecisionTable table = small_table();
  MeasuredRound round;
  round.problem = to_text(causal(1024));
  round.ms_median = 0.125;
  table.measurements.push_back(round);
  const auto back = parse_decision_table(to_json(table), "t");
  REQUIRE_MESSAGE(back.ok(), (back ? "" : back.error().message));
  CHECK(back->decisions == table.decisions);
  CHECK(back->measurements == table.measurements);
  CHECK(to_json(*back) == to_json(table));

  const std::string hash = table_hash(table);
  DecisionTable same = table;
  std::reverse(same.decisions.begin(), same.decisions.end());
  same.decisions[0].ms = 77;
  same.decisions[0].source = PlanSource::measured;
  same.measurements.clear();
  CHECK(table_hash(same) == hash);
  DecisionTable other = table;
  other.decisions[0].plan.workers -= 1;
  CHECK(table_hash(other) != hash);
  other = table;
  other.target = *parse_target("h100");
  CHECK(table_hash(other) != hash);
  other = table;
  other.decisions.pop_back();
  CHECK(table_hash(other) != hash);
}

TEST_CASE("decision table: an edited or foreign text is refused, and the error says why") {
  const std::string good = to_json(small_table());
  const struct {
    std::string text, says;
  } cases[] = {
      {"", "t is no decision table"},
      {"[1, 2]", "t is no decision table"},
      {"{}", "ordo_decisions"},
      {replaced(good, "\"ordo_decisions\": 1", "\"ordo_decisions\": 2"), "version 2"},
      {replaced(good, "\"target\": \"h200\"", "\"target\": \"h900\""), "h900"},
      {replaced(good, "\"target\": \"h200\"", "\"target\": \"h100\""), "edited by hand"},
      {replaced(good, "workers=", "workers=9999"), "workers"},
      {replaced(good, "seqlen_q=1024", "seqlen_q=1000"), "fingerprint"},
      {replaced(good, "\"source\": \"predicted\"", "\"source\": \"guessed\""), "guessed"},
      {replaced(good, "head_dim=128", "head_dim=64"), ""},
      {replaced(good, "\"ms\":", "\"mss\":"), "ms"},
  };
  for (const auto& c : cases) {
    const auto read = parse_decision_table(c.text, "t");
    REQUIRE_FALSE(read.ok());
    CHECK_MESSAGE(read.error().message.find(c.says) != std::string::npos, read.error().message);
    CHECK(read.error().code == ErrorCode::invalid_argument);
  }
  CHECK(read_decision_table("/nonexistent/table.json").error().code == ErrorCode::io);
}

TEST_CASE("decision table: differences name the shapes") {
  const DecisionTable a = small_table();
  CHECK(diff(a, a).empty());
  DecisionTable b = a;
  b.decisions[1].plan.head_group += 1;
  auto lines = diff(a, b);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find(to_text(a.decisions[1].problem)) != std::string::npos);
  b.decisions.erase(b.decisions.begin());
  lines = diff(a, b);
  CHECK(lines.size() == 2);
  CHECK(mentions(lines, "only in the first"));
  CHECK(mentions(diff(b, a), "only in the second"));
}

TEST_CASE("decision table, reports 50 to 53: exported here and imported there gives the same decisions and the same hash") {
  const test::Folder folder;
  const auto device = std::make_shared<FakeDevice>();
  device->ms = [](const Plan& plan) { return plan.cluster == 1 ? 1.0 : 2.0; };
  Tuner here = tuner_at(folder.file("here.db"), device);
  REQUIRE(here.tune(causal(4096)).ok());
  REQUIRE(here.tune(causal(2048)).ok());
  const auto table = here.table();
  REQUIRE(table.ok());
  REQUIRE(table->decisions.size() == 2);
  for (const Decision& decision : table->decisions) {
    CHECK(decision.source == PlanSource::measured);
    CHECK(decision.plan.cluster == 1);
  }
  const auto read = parse_decision_table(to_json(*table), "t");
  REQUIRE_MESSAGE(read.ok(), (read ? "" : read.error().message));

  Tuner there = tuner_at(folder.file("there.db"), device);
  const auto notes = there.import_table(*read);
  REQUIRE(notes.ok());
  CHECK(notes->empty());
  CHECK(there.query(causal(4096))->source == PlanSource::measured);
  CHECK(table_hash(*there.table()) == table_hash(*table));
  const int rounds = device->rounds;
  CHECK(there.tune(causal(4096))->measured == 0);
  CHECK(device->rounds == rounds);
}

TEST_CASE("decision table: from another GPU it is kept but not used, and import says so") {
  const test::Folder folder;
  const auto h100 = std::make_shared<FakeDevice>();
  h100->where.device = "NVIDIA H100";
  h100->ms = [](const Plan& plan) { return plan.cluster == 1 ? 1.0 : 2.0; };
  Tuner there = tuner_at(folder.file("there.db"), h100);
  REQUIRE(there.tune(causal(4096)).ok());
  const auto table = there.table();
  REQUIRE(table.ok());

  const auto h200 = std::make_shared<FakeDevice>();
  Tuner here = tuner_at(folder.file("here.db"), h200);
  const auto notes = here.import_table(*table);
  REQUIRE(notes.ok());
  CHECK(mentions(*notes, "NVIDIA H100"));
  CHECK(mentions(*notes, "not used here"));
  CHECK(mentions(*notes, "the table says"));
  const auto best = here.query(causal(4096));
  REQUIRE(best.ok());
  CHECK(best->source == PlanSource::predicted);
  CHECK(here.table()->decisions.empty());

  DecisionTable forged = *table;
  forged.measurements[0].ms_median = -1;
  CHECK(here.import_table(forged).error().message.find("cannot be") != std::string::npos);
}

TEST_CASE("decision table: of shapes that were not tuned it holds the planner's choices, marked so") {
  const test::Folder folder;
  Tuner tuner = tuner_at(folder.file("cache.db"), std::make_shared<FakeDevice>());
  const std::vector<AttentionBackward> problems{causal(512), causal(1000)};
  const auto table = tuner.table(problems);
  REQUIRE(table.ok());
  REQUIRE(table->decisions.size() == 2);
  CHECK(table->decisions[0].source == PlanSource::predicted);
  CHECK(table->find(causal(512), std::nullopt) != nullptr);
  CHECK(table->find(causal(513), std::nullopt) == nullptr);
  CHECK(table->find(causal(512), Accumulate::exact) == nullptr);
}

TEST_CASE("lock file: the engine uses exactly its plans, and refuses others with the shape's name") {
  const test::Folder folder;
  DecisionTable table = small_table();
  table.decisions[0].plan.head_group = std::max(1, table.decisions[0].plan.head_group / 2);  // not what the planner says
  table.decisions[0].fingerprint = order_fingerprint(table.decisions[0].problem, table.decisions[0].plan);
  write(folder.file("ordo.lock"), to_json(table));
  const auto engine_with = [&](const std::string& target) {
    EngineOptions options;
    options.memory_cache_only = true;
    options.target = *parse_target(target);
    options.lock_file = folder.file("ordo.lock");
    return Engine::create(std::move(options));
  };
  auto engine = engine_with("h200");
  REQUIRE_MESSAGE(engine.ok(), (engine ? "" : engine.error().message));
  for (const Decision& decision : table.decisions) {
    const auto choice = engine->plan(decision.problem);
    REQUIRE(choice.ok());
    CHECK(choice->plan == decision.plan);
    CHECK(choice->reason.find("ordo.lock") != std::string::npos);
  }
  const auto missing = engine->plan(causal(777));
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.error().code == ErrorCode::invalid_plan);
  CHECK(missing.error().message.find(to_text(causal(777))) != std::string::npos);
  PlanRequest request;
  request.accumulate = Accumulate::exact;
  CHECK(engine->plan(causal(1024), request).error().message.find("accumulate=exact") != std::string::npos);
  request = {};
  request.schedule = Schedule::ascending;
  CHECK(engine->plan(causal(1024), request).error().message.find("another plan") != std::string::npos);
  const auto stranger = engine->prepare(make_plan(causal(777), engine->target())->plan);
  REQUIRE_FALSE(stranger.ok());
  CHECK(stranger.error().message.find("does not pin") != std::string::npos);

  CHECK(engine_with("h20").error().message.find("pins plans for h200") != std::string::npos);
  write(folder.file("ordo.lock"), "no JSON");
  CHECK(engine_with("h200").error().message.find("no decision table") != std::string::npos);
}

}  // namespace ordo
