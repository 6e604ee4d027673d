// Steps and transfers of overlapped operations: their order, the proof, and the event simulation.
#include "codegen/overlap/steps.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "codegen/overlap/timeline.hpp"

namespace ordo::overlap {
namespace {

constexpr Exchange kExchanges[] = {Exchange::all_gather, Exchange::all_to_all, Exchange::reduce_scatter, Exchange::all_reduce,
                                   Exchange::to_all};

bool ring_exists(Exchange exchange) { return exchange != Exchange::all_to_all && exchange != Exchange::to_all; }

StepSchedule steps(Exchange exchange, Route route, int ranks, int sub_slices, std::int64_t bytes = 1000) {
  auto made = make_steps({exchange, route, ranks, sub_slices, [bytes](int, int, int, int) { return bytes; }});
  REQUIRE_MESSAGE(made, made.error().message);
  return *made;
}

TimelineCosts costs(double compute, double bytes_per_second) {
  TimelineCosts out;
  out.compute = [compute](int, const Step&) { return compute; };
  out.bytes_per_second = bytes_per_second;
  return out;
}

Timeline simulate(const StepSchedule& schedule, const TimelineCosts& with) {
  auto timeline = simulate_steps(schedule, with);
  REQUIRE_MESSAGE(timeline, timeline.error().message);
  return *timeline;
}

/// The violations in one text.
std::string violations(const StepSchedule& schedule) {
  std::string text;
  for (const std::string& violation : prove_steps(schedule).violations) text += violation + "\n";
  return text;
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("overlap: slices in the published order") {
  // All-gather: r, r-1, ...; reduce-scatter by ring: r-1, r-2, ..., r; straight to the owner: r+1, ..., r.
  for (int step = 0; step < 4; ++step) {
    CHECK(slice_at_step(Pattern::gather, Route::ring, 1, 4, step) == (1 - step + 4) % 4);
    CHECK(slice_at_step(Pattern::reduce, Route::ring, 1, 4, step) == (1 - 1 - step + 4) % 4);
    CHECK(slice_at_step(Pattern::reduce, Route::direct, 1, 4, step) == (1 + 1 + step) % 4);
    CHECK(slice_at_step(Pattern::scatter, Route::direct, 1, 4, step) == (1 + 1 + step) % 4);
  }
  for (const Pattern pattern : {Pattern::gather, Pattern::reduce, Pattern::scatter}) {
    for (const Route route : {Route::direct, Route::ring}) {
      for (int ranks = 1; ranks <= 9; ++ranks) {
        for (int rank = 0; rank < ranks; ++rank) {
          std::set<int> seen;
          for (int step = 0; step < ranks; ++step) {
            const int slice = slice_at_step(pattern, route, rank, ranks, step);
            CHECK(step_of_slice(pattern, route, rank, ranks, slice) == step);
            seen.insert(slice);
          }
          CHECK(seen.size() == static_cast<std::size_t>(ranks));
          CHECK(slice_at_step(pattern, route, rank, ranks, pattern == Pattern::gather ? 0 : ranks - 1) == rank);
        }
      }
    }
  }
}

TEST_CASE("overlap: parts cover all rows, in whole units") {
  for (const long long rows : {0LL, 1LL, 7LL, 128LL, 129LL, 1000LL, 4096LL}) {
    for (const int parts : {1, 2, 3, 8}) {
      for (const int unit : {1, 64, 256}) {
        CHECK(part_begin(rows, parts, unit, 0) == 0);
        CHECK(part_begin(rows, parts, unit, parts) == rows);
        for (int part = 0; part < parts; ++part) {
          const long long size = part_begin(rows, parts, unit, part + 1) - part_begin(rows, parts, unit, part);
          CHECK(size >= 0);
          CHECK(size <= (rows / unit / parts + 1) * unit);
        }
      }
    }
  }
}

TEST_CASE("overlap: the proof passes for every exchange, route, rank count and sub-slice count") {
  for (const Exchange exchange : kExchanges) {
    for (const Route route : {Route::direct, Route::ring}) {
      if (route == Route::ring && !ring_exists(exchange)) {
        CHECK_FALSE(make_steps({exchange, route, 2, 1, {}}));
        continue;
      }
      for (int ranks = 1; ranks <= 9; ++ranks) {
        for (const int sub : {1, 2, 5}) {
          CAPTURE(to_string(exchange));
          CAPTURE(to_string(route));
          CAPTURE(ranks);
          CAPTURE(sub);
          const StepSchedule schedule = steps(exchange, route, ranks, sub);
          CHECK(violations(schedule) == "");
          const StepProof proof = prove_steps(schedule);
          CHECK(proof.steps == ranks * ranks * sub);
          const int phases = exchange == Exchange::all_reduce ? 2 : 1;
          CHECK(proof.transfers == phases * ranks * (ranks - 1) * sub);
          CHECK(proof.slots_behind_compute == (ranks - 1) * sub);
        }
      }
    }
  }
  CHECK_FALSE(make_steps({Exchange::all_gather, Route::direct, 0, 1, {}}));
  CHECK_FALSE(make_steps({Exchange::all_gather, Route::direct, 33, 1, {}}));
  CHECK_FALSE(make_steps({Exchange::all_gather, Route::direct, 2, 0, {}}));
}

TEST_CASE("overlap: a ring runs for an all-gather alone, and the others say why not") {
  for (const Exchange exchange : kExchanges) {
    CAPTURE(to_string(exchange));
    CHECK(check_route(exchange, Route::direct));
    const auto ring = check_route(exchange, Route::ring);
    CHECK(ring.ok() == (exchange == Exchange::all_gather));
    if (ring) continue;
    CHECK(contains(ring.error().message, ring_exists(exchange) ? "rounded at every hop" : "carry it past the others"));
    CHECK(contains(ring.error().message, to_string(exchange)));
  }
}

TEST_CASE("overlap: in every slot a rank sends to one and receives from one") {
  for (const Exchange exchange : kExchanges) {
    for (const Route route : {Route::direct, Route::ring}) {
      if (route == Route::ring && !ring_exists(exchange)) continue;
      const StepSchedule schedule = steps(exchange, route, 5, 3);
      std::set<std::pair<int, int>> senders, receivers;
      for (const Transfer& t : schedule.transfers) {
        CHECK(senders.insert({t.slot, t.from}).second);
        CHECK(receivers.insert({t.slot, t.to}).second);
      }
    }
  }
}

TEST_CASE("overlap: the proof names what is wrong") {
  StepSchedule missing = steps(Exchange::all_gather, Route::direct, 3, 1);
  missing.transfers.pop_back();
  CHECK(contains(violations(missing), "gets 0 transfers where it needs 1"));

  StepSchedule twice = steps(Exchange::all_gather, Route::direct, 3, 1);
  twice.transfers.push_back(twice.transfers.front());
  CHECK(contains(violations(twice), "gets 2 transfers where it needs 1"));

  StepSchedule stranger = steps(Exchange::all_gather, Route::direct, 3, 1);
  stranger.transfers[0].slice = 2;
  CHECK(contains(violations(stranger), "sends what its sender does not hold"));
  CHECK(contains(violations(stranger), "which computes slice"));

  StepSchedule repeated = steps(Exchange::reduce_scatter, Route::direct, 2, 1);
  repeated.steps[0][0] = repeated.steps[0][1];
  CHECK(contains(violations(repeated), "rank 0 computes slice 1.0 0 times"));

  StepSchedule late = steps(Exchange::reduce_scatter, Route::direct, 2, 1);
  std::swap(late.steps[0][0], late.steps[0][1]);  // own slice first
  late.transfers[0].after_step = 1;
  late.transfers[1].needed_by = 0;
  CHECK(contains(violations(late), "the last step of rank 0 starts"));
  CHECK(contains(violations(late), "needed by step 0 but leaves only after step 0"));

  StepSchedule early = steps(Exchange::all_gather, Route::ring, 4, 1);
  for (Transfer& t : early.transfers) {
    if (t.from == 0 && t.after_transfer != kNone) t.after_transfer = kNone;
  }
  CHECK(contains(violations(early), "sends what its sender does not hold"));

  // Two ranks that each wait for the other's sum before they send their own: a cycle.
  StepSchedule cycle = steps(Exchange::all_gather, Route::direct, 2, 2);
  cycle.transfers[0].after_step = cycle.transfers[1].after_step = 3;
  CHECK(contains(violations(cycle), "deadlock"));

  StepSchedule nowhere = steps(Exchange::all_gather, Route::direct, 2, 1);
  nowhere.transfers[0].to = 7;
  CHECK(contains(violations(nowhere), "does not exist"));
  CHECK(simulate_steps(nowhere, costs(1, 1)).error().code == ErrorCode::invalid_plan);
}

TEST_CASE("overlap: a transfer as long as a step is hidden to the last, whatever the rank count") {
  for (const Exchange exchange : {Exchange::all_gather, Exchange::reduce_scatter}) {
    for (const Route route : {Route::direct, Route::ring}) {
      for (const int ranks : {2, 3, 4, 8}) {
        CAPTURE(to_string(exchange));
        CAPTURE(to_string(route));
        CAPTURE(ranks);
        const Timeline equal = simulate(steps(exchange, route, ranks, 1), costs(1, 1000));
        CHECK(equal.makespan == doctest::Approx(ranks));
        CHECK(equal.exposed == doctest::Approx(0));
        CHECK(equal.hidden == doctest::Approx(1));
        CHECK(equal.communication == doctest::Approx(ranks - 1));
        CHECK(equal.sequential == doctest::Approx(2 * ranks - 1));
        // Twice as long: each of the ranks - 1 transfers shows half of itself.
        const Timeline slow = simulate(steps(exchange, route, ranks, 1), costs(1, 500));
        CHECK(slow.exposed > 0);
        CHECK(slow.exposed <= doctest::Approx(ranks - 1));
        CHECK(slow.makespan <= doctest::Approx(slow.sequential));
      }
    }
  }
}

TEST_CASE("overlap: sub-slices shorten what a long transfer exposes") {
  // A transfer of two steps: with one chunk a whole step shows, with more only the wait for the last of them.
  double before = 1e9;
  for (const int sub : {1, 2, 4, 8}) {
    auto made =
        make_steps({Exchange::all_gather, Route::direct, 2, sub, [sub](int, int, int, int) { return std::int64_t{3200} / sub; }});
    REQUIRE(made);
    const Timeline timeline = simulate(*made, costs(1.0 / sub, 1600));
    CHECK(timeline.exposed < before);
    before = timeline.exposed;
  }
  CHECK(before == doctest::Approx(0.125));
}

TEST_CASE("overlap: an all-reduce exposes its closing gather, an all-to-all of finished columns its last chunk") {
  const Timeline reduce = simulate(steps(Exchange::all_reduce, Route::direct, 4, 1), costs(1, 1000));
  CHECK(reduce.makespan == doctest::Approx(4 + 3));
  const Timeline scatter = simulate(steps(Exchange::to_all, Route::direct, 4, 1), costs(1, 1000));
  CHECK(scatter.makespan == doctest::Approx(4));
  const Timeline alone = simulate(steps(Exchange::all_gather, Route::direct, 1, 4), costs(1, 1000));
  CHECK(alone.makespan == doctest::Approx(4));
  CHECK(alone.hidden == 1);
}

TEST_CASE("overlap: late ranks and jitter") {
  TimelineCosts late = costs(1, 2000);
  late.start = {0, 0, 5};
  const Timeline timeline = simulate(steps(Exchange::all_gather, Route::direct, 3, 1), late);
  CHECK(timeline.makespan == doctest::Approx(8));
  CHECK(timeline.exposed == doctest::Approx(0));  // all of it is the late rank's doing
  CHECK(timeline.ranks[0].stall > 2);
  TimelineCosts uneven = costs(1, 1000);
  uneven.jitter = 0.3;
  uneven.seed = 7;
  const StepSchedule schedule = steps(Exchange::reduce_scatter, Route::ring, 8, 2);
  const Timeline once = simulate(schedule, uneven), again = simulate(schedule, uneven);
  CHECK(once.makespan == again.makespan);
  CHECK(once.makespan > 16);
  CHECK(once.makespan < 16 * 1.3 * 1.5);
  TimelineCosts wrong = costs(1, 1000);
  wrong.start = {1};
  CHECK_FALSE(simulate_steps(schedule, wrong));
  CHECK_FALSE(simulate_steps(schedule, costs(-1, 1000)));
  CHECK_FALSE(simulate_steps(schedule, costs(1, 0)));
}

TEST_CASE("overlap: engines do one thing at a time and steps follow each other") {
  for (const Exchange exchange : kExchanges) {
    TimelineCosts uneven = costs(1, 700);
    uneven.jitter = 0.5;
    uneven.seed = 3;
    const StepSchedule schedule = steps(exchange, Route::direct, 4, 3);
    const Timeline timeline = simulate(schedule, uneven);
    for (int rank = 0; rank < 4; ++rank) {
      for (const Lane lane : {Lane::compute, Lane::send, Lane::receive}) {
        double end = 0;
        for (const Span& span : timeline.spans) {
          if (span.rank != rank || span.lane != lane) continue;
          CHECK(span.start >= end - 1e-9);
          end = span.end;
        }
      }
    }
    // What a step needs is there before it starts (gather) or ends (reduce).
    for (std::size_t i = 0; i < schedule.transfers.size(); ++i) {
      const Transfer& t = schedule.transfers[i];
      if (t.needed_by == kAtEnd) continue;
      double arrival = -1, start = -1, end = -1;
      for (const Span& span : timeline.spans) {
        if (span.lane == Lane::receive && span.index == static_cast<int>(i) && span.rank == t.to) arrival = span.end;
        if (span.lane == Lane::compute && span.rank == t.to && span.index == t.needed_by) start = span.start, end = span.end;
      }
      REQUIRE(arrival >= 0);
      const bool gather = pattern_of(exchange) == Pattern::gather;
      if (gather) CHECK(arrival <= start + 1e-9);
      if (!gather) CHECK(arrival <= timeline.ranks[static_cast<std::size_t>(t.to)].end + 1e-9);
      CHECK(end > start);
    }
  }
}

TEST_CASE("overlap: charts") {
  const StepSchedule schedule = steps(Exchange::reduce_scatter, Route::direct, 4, 2);
  const Timeline timeline = simulate(schedule, costs(1e-3, 1e6));
  const std::string svg = render_timeline_svg(schedule, timeline, "a < b & c");
  CHECK(svg.starts_with("<svg "));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(contains(svg, "a &lt; b &amp; c"));
  CHECK(contains(svg, "rank 3 computes slice 3.1"));
  CHECK(contains(svg, "slice 1.0 from rank 0 to 1, 1000 bytes"));
  const std::string text = render_timeline_text(schedule, timeline, 40);
  CHECK(contains(text, "rank 3  |"));
  CHECK(contains(text, "sending"));
}

}  // namespace ordo::overlap
