// The tuner on a device of the tests' own: what wins, what is kept, what is never used.
#include "tests/unit/tuner_support.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <set>
#include <thread>

#include "codegen/schedule/proof.hpp"
#include "runtime/tuner/candidates.hpp"
#include "runtime/tuner/device_lock.hpp"

namespace ordo {
namespace {

using test::causal;
using test::FakeDevice;
using test::tuner_at;

/// Single CTAs are twice as fast here: not what the model thinks.
double single_ctas_win(const Plan& plan) { return plan.cluster == 1 ? 1.0 : 2.0; }

bool mentions(const std::vector<std::string>& texts, const std::string& what) {
  return std::any_of(texts.begin(), texts.end(), [&](const std::string& text) { return text.find(what) != std::string::npos; });
}

tuner::Measured measured(const Plan& plan, std::vector<double> rounds) {
  tuner::Measured out;
  out.plan = plan;
  for (const double ms : rounds) {
    measure::Sample sample;
    sample.ms_median = ms;
    out.rounds.push_back(sample);
  }
  return out;
}

std::vector<Plan> three_plans() {
  Plan a, b, c;
  a.schedule = Schedule::ascending;
  b.schedule = Schedule::descending;
  c.schedule = Schedule::shift;
  return {a, b, c};
}

}  // namespace

TEST_CASE(
    "decide, reports 50 to 53: a plan wins by more than the margin, else the preferred one if it is as fast, else the first by "
    "its text") {
  const std::vector<Plan> p = three_plans();
  const auto winner = [&](double a, double b, double c, const Plan& preferred) {
    return tuner::decide({measured(p[0], {a}), measured(p[1], {b}), measured(p[2], {c})}, preferred, 0.01).winner;
  };
  CHECK(winner(1.00, 0.98, 1.10, p[0]) == 1);   // ahead by 2 %
  CHECK(winner(1.00, 0.995, 1.10, p[0]) == 0);  // a tie: the preferred stays
  CHECK(winner(1.00, 0.995, 1.10, p[2]) == 0);  // a tie without the preferred: the first text
  CHECK(winner(0.995, 1.00, 1.10, p[1]) == 1);
  CHECK(winner(1.10, 1.00, 0.995, p[0]) == 1);  // "descending" < "shift"
  CHECK(winner(1.00, 1.00, 1.00, p[2]) == 2);
  const tuner::Decision tie = tuner::decide({measured(p[0], {1.0}), measured(p[1], {1.0})}, p[1], 0.01);
  CHECK(tie.reason.find("within 1.0 %") != std::string::npos);
  // One wild round does not decide.
  CHECK(tuner::decide({measured(p[0], {1.0, 0.1, 1.0}), measured(p[1], {0.9, 0.9, 0.9})}, p[0], 0.01).winner == 1);
  CHECK(measured(p[0], {1.0, 1.1, 1.0}).spread() == doctest::Approx(0.1));
}

TEST_CASE(
    "candidates: the planner's choice first, no two alike, all fit, never more than asked, all of one fingerprint if fixed") {
  const Target target = *parse_target("h200");
  for (const AttentionBackward& problem : {causal(4096), causal(512)}) {
    for (const int most : {1, 5, 100}) {
      tuner::Pruning pruning;
      pruning.most = most;
      const auto list = tuner::candidates(problem, target, {}, pruning);
      REQUIRE(list.ok());
      CHECK(static_cast<int>(list->size()) <= most);
      CHECK(list->front().plan == make_plan(problem, target)->plan);
      std::set<std::string> texts;
      for (const Candidate& candidate : *list) {
        CHECK(check_fit(problem, candidate.plan).ok());
        CHECK(candidate.plan.accumulate == Accumulate::ordered);
        texts.insert(to_text(candidate.plan));
      }
      CHECK(texts.size() == list->size());
    }
    tuner::Pruning fixed;
    fixed.most = 100;
    fixed.fingerprint = order_fingerprint(problem, make_plan(problem, target)->plan);
    const auto list = tuner::candidates(problem, target, {}, fixed);
    REQUIRE(list.ok());
    CHECK(list->size() > 1);
    for (const Candidate& candidate : *list) CHECK(order_fingerprint(problem, candidate.plan) == fixed.fingerprint);
  }
  PlanRequest request;
  request.accumulate = Accumulate::exact;
  request.static_shape = true;
  const auto exact = tuner::candidates(causal(2048), target, request);
  REQUIRE(exact.ok());
  for (const Candidate& candidate : *exact) {
    CHECK(candidate.plan.accumulate == Accumulate::exact);
    CHECK(candidate.plan.static_shape.has_value());
  }
  tuner::Pruning nowhere;
  nowhere.fingerprint = "0123456789abcdef";
  CHECK(tuner::candidates(causal(2048), target, {}, nowhere).error().code == ErrorCode::invalid_plan);
}

TEST_CASE("tune, report 25: measures every candidate in interleaved rounds, keeps them, and measures nothing twice") {
  const test::Folder folder;
  const auto device = std::make_shared<FakeDevice>();
  device->ms = single_ctas_win;
  Tuner tuner = tuner_at(folder.file("cache.db"), device);
  const auto before = tuner.query(causal(4096));
  REQUIRE(before.ok());
  CHECK(before->source == PlanSource::predicted);
  CHECK(before->plan.cluster == 2);

  const auto tuned = tuner.tune(causal(4096));
  REQUIRE_MESSAGE(tuned.ok(), (tuned ? "" : tuned.error().message));
  CHECK(tuned->candidates > 3);
  CHECK(tuned->measured == 3 * tuned->candidates);
  CHECK(tuned->reused == 0);
  CHECK_FALSE(tuned->stopped);
  CHECK(tuned->best.source == PlanSource::measured);
  CHECK(tuned->best.plan.cluster == 1);
  CHECK(tuned->best.ms == 1.0);
  CHECK(static_cast<int>(tuned->best.ranking.size()) == tuned->candidates);
  CHECK(tuned->best.ranking.front().clock_mhz == 1700);
  // Interleaved: the first round of all before the second of any.
  const auto n = static_cast<std::size_t>(tuned->candidates);
  CHECK(std::set<std::string>(device->measured.begin(), device->measured.begin() + static_cast<std::ptrdiff_t>(n)).size() == n);

  const auto again = tuner.tune(causal(4096));
  REQUIRE(again.ok());
  CHECK(again->measured == 0);
  CHECK(again->reused == 3 * again->candidates);
  // Another process: nothing but the file.
  Tuner other = tuner_at(folder.file("cache.db"), device);
  const auto found = other.query(causal(4096));
  REQUIRE(found.ok());
  CHECK(found->source == PlanSource::measured);
  CHECK(found->plan == tuned->best.plan);
  // More candidates: only what is new.
  TuneOptions more;
  more.most_candidates = 20;
  const auto extended = other.tune(causal(4096), more);
  REQUIRE(extended.ok());
  CHECK(extended->reused == 3 * tuned->candidates);
  CHECK(extended->measured == 3 * (extended->candidates - tuned->candidates));
}

TEST_CASE("tune, report 21: another policy, driver or NVRTC build is measured afresh, and old times are not used") {
  const test::Folder folder;
  const auto device = std::make_shared<FakeDevice>();
  device->ms = single_ctas_win;
  REQUIRE(tuner_at(folder.file("cache.db"), device).tune(causal(4096)).ok());
  TuneOptions cold;
  cold.policy.cold_l2 = true;
  const auto other_policy = tuner_at(folder.file("cache.db"), device).tune(causal(4096), cold);
  REQUIRE(other_policy.ok());
  CHECK(other_policy->reused == 0);

  for (const auto& change : std::vector<std::function<void(cache::MeasuredOn&)>>{
           [](cache::MeasuredOn& on) { on.driver = "590.1"; }, [](cache::MeasuredOn& on) { on.toolchain = "NVRTC 13.1.2"; },
           [](cache::MeasuredOn& on) { on.device = "NVIDIA H100"; }, [](cache::MeasuredOn& on) { on.sm_count = 114; }}) {
    const auto elsewhere = std::make_shared<FakeDevice>();
    change(elsewhere->where);
    Tuner there = tuner_at(folder.file("cache.db"), elsewhere);
    const auto best = there.query(causal(4096));
    REQUIRE(best.ok());
    CHECK(best->source == PlanSource::predicted);
    CHECK(mentions(best->notes, "are not used here"));
    CHECK(mentions(best->notes, "NVIDIA H200"));
  }
}

TEST_CASE("query: without a GPU the newest measurements for the target count, and the answer says so") {
  const test::Folder folder;
  const auto device = std::make_shared<FakeDevice>();
  device->ms = single_ctas_win;
  REQUIRE(tuner_at(folder.file("cache.db"), device).tune(causal(4096)).ok());
  Tuner without = tuner_at(folder.file("cache.db"), nullptr);
  const auto best = without.query(causal(4096));
  REQUIRE(best.ok());
  CHECK(best->source == PlanSource::measured);
  CHECK(best->plan.cluster == 1);
  CHECK(mentions(best->notes, "no GPU here"));
  CHECK(without.tune(causal(4096)).error().code == ErrorCode::no_device);
}

TEST_CASE("query: a neighbour's measurements correct the model; one far off, or of another kind, does not") {
  const test::Folder folder;
  const auto device = std::make_shared<FakeDevice>();
  device->ms = single_ctas_win;
  Tuner tuner = tuner_at(folder.file("cache.db"), device);
  REQUIRE(tuner.tune(causal(4096)).ok());
  const auto near = tuner.query(causal(6000));
  REQUIRE(near.ok());
  CHECK(near->source == PlanSource::interpolated);
  CHECK(near->plan.cluster == 1);
  CHECK(near->ranking.front().plan == near->plan);
  CHECK(tuner.query(causal(100000))->source == PlanSource::predicted);
  AttentionBackward full = causal(4096);
  full.mask = Mask::full;
  CHECK(tuner.query(full)->source == PlanSource::predicted);
}

TEST_CASE("query: a repeated one takes microseconds") {
  const test::Folder folder;
  const auto device = std::make_shared<FakeDevice>();
  Tuner tuner = tuner_at(folder.file("cache.db"), device);
  REQUIRE(tuner.tune(causal(4096)).ok());
  REQUIRE(tuner.query(causal(4096)).ok());
  std::vector<double> us;
  for (int i = 0; i < 2000; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const auto best = tuner.query(causal(4096));
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    CHECK(best.ok());
  }
  std::nth_element(us.begin(), us.begin() + 1000, us.end());
  MESSAGE("a repeated query: ", us[1000], " us");
  CHECK(us[1000] < 100);  // 20 are promised; a busy machine and an unoptimised build get more
}

TEST_CASE("tune, report 54: same bits searches one fingerprint only") {
  const test::Folder folder;
  const auto device = std::make_shared<FakeDevice>();
  device->ms = single_ctas_win;
  Tuner tuner = tuner_at(folder.file("cache.db"), device);
  REQUIRE(tuner.tune(causal(4096)).ok());  // faster plans with other bits are known
  TuneOptions options;
  options.same_bits = true;
  const auto tuned = tuner.tune(causal(4096), options);
  REQUIRE(tuned.ok());
  const std::string wanted = order_fingerprint(causal(4096), make_plan(causal(4096), *parse_target("h200"))->plan);
  CHECK(order_fingerprint(causal(4096), tuned->best.plan) == wanted);
  for (const RankedPlan& entry : tuned->best.ranking) CHECK(order_fingerprint(causal(4096), entry.plan) == wanted);
}

TEST_CASE("tune: stopping loses nothing that was measured") {
  const test::Folder folder;
  const auto device = std::make_shared<FakeDevice>();
  Tuner tuner = tuner_at(folder.file("cache.db"), device);
  const auto stopped = tuner.tune(
      causal(4096), {}, [&](const TuneProgress& progress) { return progress.doing != "measuring" || device->rounds < 5; });
  REQUIRE(stopped.ok());
  CHECK(stopped->stopped);
  CHECK(stopped->measured == 5);
  const auto rest = tuner.tune(causal(4096));
  REQUIRE(rest.ok());
  CHECK(rest->reused == 5);
  CHECK(rest->measured == 3 * rest->candidates - 5);
}

TEST_CASE("tune: a device that is lost ends it with an error that says so, and what was measured stays") {
  const test::Folder folder;
  const auto device = std::make_shared<FakeDevice>();
  device->lost_after = 7;
  {
    Tuner tuner = tuner_at(folder.file("cache.db"), device);
    const auto tuned = tuner.tune(causal(4096));
    REQUIRE_FALSE(tuned.ok());
    CHECK(tuned.error().code == ErrorCode::no_device);
    CHECK(tuned.error().message.find("lost after 7 of") != std::string::npos);
    CHECK(tuned.error().message.find("unspecified launch failure") != std::string::npos);
    CHECK(tuner.query(causal(4096))->source == PlanSource::predicted);  // too little is known
  }
  const auto back = std::make_shared<FakeDevice>();
  const auto tuned = tuner_at(folder.file("cache.db"), back).tune(causal(4096));
  REQUIRE(tuned.ok());
  CHECK(tuned->reused == 7);
}

TEST_CASE("tune: plans that cannot be compiled or launched are named and left out; if none can, that is the error") {
  const test::Folder folder;
  const auto device = std::make_shared<FakeDevice>();
  device->refuse = [](const Plan& plan) {
    return plan.cluster == 1 ? std::optional(Error{ErrorCode::compile, "registers spill"}) : std::nullopt;
  };
  const auto tuned = tuner_at(folder.file("cache.db"), device).tune(causal(4096));
  REQUIRE(tuned.ok());
  CHECK(mentions(tuned->failed, "registers spill"));
  for (const RankedPlan& entry : tuned->best.ranking) CHECK(entry.plan.cluster == 2);
  device->refuse = [](const Plan&) { return std::optional(Error{ErrorCode::compile, "nothing compiles"}); };
  const auto none = tuner_at(folder.file("cache.db"), device).tune(causal(1024));
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().message == "nothing compiles");
  const auto nonsense = std::make_shared<FakeDevice>();
  nonsense->ms = [](const Plan&) { return 0.0; };
  const auto zero = tuner_at(folder.file("other.db"), nonsense).tune(causal(4096));
  REQUIRE(zero.ok());
  CHECK(zero->best.source == PlanSource::predicted);
  CHECK(mentions(zero->failed, "measured as 0 ms"));
}

TEST_CASE("tune: a cache that cannot be written costs the file, not the answer") {
  const test::Folder folder;
  std::ofstream(folder.file("cache.db")) << "this is no database, but it is long enough to be looked at as one";
  const auto device = std::make_shared<FakeDevice>();
  device->ms = single_ctas_win;
  std::vector<std::string> warnings;
  Tuner tuner = tuner_at(folder.file("cache.db"), device, &warnings);
  const auto tuned = tuner.tune(causal(4096));
  REQUIRE(tuned.ok());
  CHECK(tuned->best.source == PlanSource::measured);
  CHECK(mentions(warnings, "kept in memory only"));
}

TEST_CASE("tune: remarks on a disturbed device reach the caller; wrong options are refused") {
  const test::Folder folder;
  const auto device = std::make_shared<FakeDevice>();
  device->disturbance = "2 other processes are on this GPU";
  Tuner tuner = tuner_at(folder.file("cache.db"), device);
  CHECK(mentions(tuner.tune(causal(4096))->best.notes, "2 other processes"));
  TuneOptions options;
  options.most_candidates = 0;
  CHECK(tuner.tune(causal(4096), options).error().message.find("most_candidates") != std::string::npos);
  options = {};
  options.margin = -1;
  CHECK(tuner.query(causal(4096), options).error().message.find("margin") != std::string::npos);
  options = {};
  options.policy.rounds = 0;
  CHECK(tuner.tune(causal(4096), options).error().message.find("rounds") != std::string::npos);
}

// ---- processes ----

namespace {

/// Runs `body` in a child process; its exit status says how it went.
template <class Body>
pid_t in_child(const Body& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body() ? 0 : 1);
  return pid;
}

int status_of(pid_t pid) {
  int status = 0;
  (void)::waitpid(pid, &status, 0);
  return status;
}

std::size_t lines_of(const std::string& path) {
  std::ifstream file(path);
  return static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
}

/// Appends a line a round to `path`, and takes its time.
std::shared_ptr<FakeDevice> slow_device(const std::string& path, std::chrono::milliseconds round) {
  auto device = std::make_shared<FakeDevice>();
  device->id = "fake-shared-" + std::to_string(std::hash<std::string>{}(path));
  device->before_round = [path, round](int) {
    std::this_thread::sleep_for(round);
    std::ofstream(path, std::ios::app) << "round\n";
  };
  return device;
}

}  // namespace

TEST_CASE("tune: two processes at once measure one after the other, and nothing twice") {
  const test::Folder folder;
  const std::string rounds = folder.file("rounds");
  const auto work = [&] {
    return in_child([&] {
      const auto device = slow_device(rounds, std::chrono::milliseconds(3));
      return tuner_at(folder.file("cache.db"), device).tune(causal(4096)).ok();
    });
  };
  const pid_t first = work(), second = work();
  CHECK(status_of(first) == 0);
  CHECK(status_of(second) == 0);
  const auto device = slow_device(rounds, std::chrono::milliseconds(0));
  const auto after = tuner_at(folder.file("cache.db"), device).tune(causal(4096));
  REQUIRE(after.ok());
  CHECK(after->measured == 0);
  CHECK(lines_of(rounds) == static_cast<std::size_t>(3 * after->candidates));
}

TEST_CASE("tune: killed at any moment, the next process goes on where it stopped, and the lock is free") {
  const test::Folder folder;
  const std::string rounds = folder.file("rounds");
  int reused = -1;
  for (const std::size_t kill_after : {4, 9}) {
    const pid_t child = in_child([&] {
      const auto device = slow_device(rounds, std::chrono::milliseconds(20));
      return tuner_at(folder.file("cache.db"), device).tune(causal(4096)).ok();
    });
    while (lines_of(rounds) < kill_after) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ::kill(child, SIGKILL);
    CHECK(WIFSIGNALED(status_of(child)));
  }
  const auto device = slow_device(rounds, std::chrono::milliseconds(0));
  Tuner tuner = tuner_at(folder.file("cache.db"), device);
  const auto tuned = tuner.tune(causal(4096), {}, [](const TuneProgress& progress) {
    CHECK(progress.doing.find("waiting") == std::string::npos);
    return true;
  });
  REQUIRE(tuned.ok());
  reused = tuned->reused;
  // Of the two rounds under way when the processes were killed, either may have been stored or not.
  CHECK(reused >= 7);
  CHECK(reused <= 11);
  CHECK(tuned->measured == 3 * tuned->candidates - reused);
}

TEST_CASE("tune: who waits for another process is told which, and may give up") {
  const test::Folder folder;
  const auto device = std::make_shared<FakeDevice>();
  device->id = "fake-held-" + std::to_string(::getpid());
  const auto held = tuner::DeviceLock::acquire(device->id, [](int) { return false; });
  REQUIRE(held.ok());
  REQUIRE(held->has_value());
  std::string told;
  const auto gave_up = tuner_at(folder.file("cache.db"), device).tune(causal(4096), {}, [&](const TuneProgress& progress) {
    told = progress.doing;
    return false;
  });
  REQUIRE(gave_up.ok());
  CHECK(gave_up->stopped);
  CHECK(gave_up->measured == 0);
  CHECK(told.find("waiting for process " + std::to_string(::getpid())) != std::string::npos);
}

}  // namespace ordo
