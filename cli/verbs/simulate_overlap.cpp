// ordo simulate overlap: who computes and sends what when, proved and timed.
#include <algorithm>
#include <memory>

#include "cli/options.hpp"
#include "cli/overlap_options.hpp"
#include "cli/report.hpp"
#include "cli/text_file.hpp"
#include "cli/verbs/verbs.hpp"

namespace ordo::cli {
namespace {

struct SimulateOverlapOptions : OverlapOptions {
  std::string svg;
  std::int64_t sub_slices = 0;
  double compute = 0, communication = 0, jitter = 0;
  std::vector<double> start;
  std::uint64_t seed = 0;
};

struct Simulated {
  overlap::StepSchedule schedule;
  overlap::StepProof proof;
  overlap::Timeline timeline;
};

// With --compute and --communication the times of a whole slice are given; else they are the model's.
Result<Simulated> simulate(const SimulateOverlapOptions& options, const OverlapQuestion& asked) {
  int sub_slices = static_cast<int>(std::clamp<std::int64_t>(options.sub_slices, 0, 1 << 20));
  if (sub_slices == 0) {
    auto advice = overlap::advise(asked.of, asked.target);
    if (!advice) return advice.error();
    sub_slices = advice->sub_slices;
  }
  auto schedule = overlap::schedule_of(asked.of, static_cast<overlap::Route>(asked.route), sub_slices);
  if (!schedule) return schedule.error();
  overlap::TimelineCosts costs = overlap::costs_of(asked.of, asked.target, sub_slices);
  if (options.compute > 0) {
    const double step = options.compute / sub_slices;
    costs.compute = [step](int, const overlap::Step&) { return step; };
    for (overlap::Transfer& transfer : schedule->transfers) transfer.bytes = 1;
    costs.bytes_per_second = sub_slices / options.communication;
    costs.transfer_latency = 0;
  }
  costs.start = options.start;
  costs.jitter = options.jitter;
  costs.seed = options.seed;
  auto timeline = overlap::simulate_steps(*schedule, costs);
  if (!timeline) return timeline.error();
  overlap::StepProof proof = overlap::prove_steps(*schedule);
  return Simulated{*std::move(schedule), std::move(proof), *std::move(timeline)};
}

Json simulated_json(const OverlapQuestion& asked, const Simulated& made) {
  const overlap::Timeline& t = made.timeline;
  Json ranks = Json::array(), steps = Json::array(), transfers = Json::array();
  for (int rank = 0; rank < made.schedule.ranks; ++rank) {
    const overlap::RankTime& time = t.ranks[static_cast<std::size_t>(rank)];
    ranks.push_back(
        {{"compute", time.compute}, {"stall", time.stall}, {"send", time.send}, {"receive", time.receive}, {"end", time.end}});
    Json row = Json::array();
    for (const overlap::Step& step : made.schedule.steps_of(rank)) row.push_back({step.slice, step.sub});
    steps.push_back(std::move(row));
  }
  for (const overlap::Transfer& transfer : made.schedule.transfers) {
    transfers.push_back({{"from", transfer.from},
                         {"to", transfer.to},
                         {"slice", transfer.slice},
                         {"sub", transfer.sub},
                         {"bytes", transfer.bytes},
                         {"after_step", transfer.after_step == overlap::kNone ? Json() : Json(transfer.after_step)},
                         {"needed_by", transfer.needed_by == overlap::kAtEnd ? Json("end") : Json(transfer.needed_by)},
                         {"slot", transfer.slot}});
  }
  return {{"op", overlap::to_string(asked.of.exchange)},
          {"ranks", made.schedule.ranks},
          {"sub_slices", made.schedule.sub_slices},
          {"route", overlap::to_string(made.schedule.route)},
          {"makespan", t.makespan},
          {"compute", t.compute},
          {"communication", t.communication},
          {"exposed", t.exposed},
          {"hidden", t.hidden},
          {"sequential", t.sequential},
          {"proof",
           {{"passed", true},
            {"steps", made.proof.steps},
            {"transfers", made.proof.transfers},
            {"slots_behind_compute", made.proof.slots_behind_compute}}},
          {"rank_times", std::move(ranks)},
          {"steps", std::move(steps)},
          {"transfers", std::move(transfers)}};
}

Result<int> simulate_overlap(const SimulateOverlapOptions& options) {
  auto asked = resolve_overlap(options);
  if (!asked) return asked.error();
  if ((options.compute > 0) != (options.communication > 0)) {
    return Error{ErrorCode::invalid_argument, "--compute and --communication go together: the seconds of one slice"};
  }
  auto made = simulate(options, *asked);
  if (!made) return made.error();
  if (!options.svg.empty()) {
    const std::string title = fmt::format("{}, {} ranks", options.op, made->schedule.ranks);
    if (auto written = write_text(options.svg, overlap::render_timeline_svg(made->schedule, made->timeline, title)); !written)
      return written.error();
  }
  if (options.json) {
    print_json(simulated_json(*asked, *made));
    return kOk;
  }
  const overlap::Timeline& t = made->timeline;
  print("time          {:.4g} ms: {:.4g} ms compute, {:.4g} ms exposed of {:.4g} ms communication ({:.1f} % hidden)\n",
        t.makespan * 1e3, t.compute * 1e3, t.exposed * 1e3, t.communication * 1e3, t.hidden * 100);
  print("one by one    {:.4g} ms\n", t.sequential * 1e3);
  print("proof         {} steps once each, {} transfers with one consumer each, no wait on a later step, no deadlock\n\n",
        made->proof.steps, made->proof.transfers);
  print("{}", overlap::render_timeline_text(made->schedule, t));
  return kOk;
}

}  // namespace

Verb add_simulate_overlap(CLI::App& app) {
  auto options = std::make_shared<SimulateOverlapOptions>();
  CLI::App* verb = app.add_subcommand("simulate", "Prove and time the steps and transfers of an overlapped operation");
  add_overlap_options(*verb, *options);
  verb->add_option("--sub-slices", options->sub_slices, "Pieces of a slice (the planner's choice)")
      ->check(kInteger)
      ->check(CLI::Range(1, 64))
      ->type_name("N");
  verb->add_option("--compute", options->compute, "Seconds to compute a slice, in place of the model's")
      ->check(CLI::PositiveNumber)
      ->type_name("S");
  verb->add_option("--communication", options->communication, "Seconds to move a slice")
      ->check(CLI::PositiveNumber)
      ->type_name("S");
  verb->add_option("--start", options->start, "Seconds by which each rank comes late")->delimiter(',')->type_name("S,S,...");
  verb->add_option("--jitter", options->jitter, "Steps and transfers take up to that share longer (0)")
      ->check(CLI::Range(0.0, 10.0))
      ->type_name("X");
  verb->add_option("--seed", options->seed, "Of the jitter (0)")->type_name("N");
  verb->add_option("--svg", options->svg, "Write a chart")->type_name("FILE");
  verb->footer("Example:\n  ordo simulate overlap --op gemm-reduce-scatter --m 8192 --n 4096 --k 7168 --ranks 4 --svg rs.svg");
  return {verb, [options] { return simulate_overlap(*options); }};
}

}  // namespace ordo::cli
