// ordo simulate: a schedule by its tile counts, proved and timed.
#include <memory>

#include "cli/options.hpp"
#include "cli/report.hpp"
#include "cli/text_file.hpp"
#include "cli/verbs/verbs.hpp"
#include "codegen/schedule/gantt.hpp"
#include "codegen/schedule/simulator.hpp"

namespace ordo::cli {
namespace {

struct SimulateOptions {
  std::string schedule, mask = "full", visits, svg;
  SimulationRequest request;
  double compute = 1, diagonal = -1;  ///< diagonal below 0: as compute
  bool json = false;
};

Json interval_json(const Interval& interval) {
  return {{"worker", interval.worker}, {"activity", to_string(interval.activity)},
          {"head", interval.head},     {"kv", interval.kv},
          {"q", interval.q},           {"start", interval.start},
          {"end", interval.end}};
}

Json report_json(const SimulationReport& report) {
  Json path = Json::array(), workers = Json::array();
  for (const Interval& interval : report.critical_path) path.push_back(interval_json(interval));
  for (const WorkerTime& worker : report.workers)
    workers.push_back({{"busy", worker.busy}, {"stall", worker.stall}, {"wait", worker.wait}});
  return {{"makespan", report.makespan},
          {"lower_bound", report.lower_bound},
          {"work_bound", report.work_bound},
          {"chain_bound", report.chain_bound},
          {"stall_total", report.stall_total},
          {"wait_total", report.wait_total},
          {"critical_path", std::move(path)},
          {"proof",
           {{"passed", true},
            {"tasks", report.proof.tasks},
            {"items", report.proof.items},
            {"longest_chain", report.proof.adds},
            {"resident_set", report.proof.resident_set}}},
          {"workers", std::move(workers)}};
}

Result<int> simulate_schedule(const SimulateOptions& options) {
  auto kind = parse_schedule_kind(options.schedule);
  if (!kind) return kind.error();
  auto mask = parse_mask(options.mask);
  if (!mask) return mask.error();
  if (mask->expression() != nullptr) {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("--mask {}: simulate counts tiles and knows no positions; it takes full or causal", to_string(*mask))};
  }
  SimulationRequest request = options.request;
  request.schedule = *kind;
  request.mask = *mask;
  request.costs.compute = {options.compute, options.diagonal < 0 ? options.compute : options.diagonal, options.compute};
  if (!options.visits.empty()) {
    auto visits = parse_arrival_visits(options.visits);
    if (!visits) return visits.error();
    request.visits = *visits;
  } else if (request.schedule == schedule::Kind::arrival) {
    request.visits = request.mask == Mask::full ? ArrivalVisits::rotate : ArrivalVisits::up_and_down;
  }
  auto report = simulate(request);
  if (!report) return report.error();
  if (!options.svg.empty()) {
    auto svg = render_gantt_svg(request, *report);
    if (!svg) return svg.error();
    if (auto written = write_text(options.svg, *svg); !written) return written.error();
  }
  if (options.json) {
    print_json(report_json(*report));
    return kOk;
  }
  print("makespan      {:g}\nlower bound   {:g} (work {:g}, longest chain of adds {:g})\nstalls        {:g} in all workers\n",
        report->makespan, report->lower_bound, report->work_bound, report->chain_bound, report->stall_total);
  if (report->adds_apart) print("waits to add  {:g} in all store warps\n", report->wait_total);
  print("critical path {} steps\nproof         {} tiles once each, {} items, at most {} of them wait for each other\n\n",
        report->critical_path.size(), report->proof.tasks, report->proof.items, report->proof.resident_set);
  print("{}", render_occupancy(*report));
  return kOk;
}

}  // namespace

Verb add_simulate(CLI::App& app) {
  auto options = std::make_shared<SimulateOptions>();
  CLI::App* verb = app.add_subcommand("simulate", "Prove and time a schedule, given by its tile counts");
  verb->add_option("--schedule", options->schedule,
                   "ascending, descending, shift (full), alternate, symmetric_shift (causal) or arrival")
      ->required()
      ->type_name("NAME");
  verb->add_option("--mask", options->mask, "full or causal (full)")->type_name("MASK");
  const auto count = [&](const char* name, std::int64_t& value, const char* help) {
    return verb->add_option(name, value, help)->type_name("N")->check(kInteger);
  };
  count("--kv-tiles", options->request.kv_tiles, "KV tiles of a head")->required();
  count("--q-tiles", options->request.q_tiles, "Q tiles of a head")->required();
  count("--heads", options->request.heads, "Heads in all (1)");
  count("--kv-heads", options->request.kv_heads, "KV heads, each visited by heads / kv-heads query heads (as heads)");
  count("--workers", options->request.workers, "Workers: CTAs or clusters that run at once")->required();
  count("--head-group", options->request.head_group, "KV heads dispatched together (1)");
  count("--shift-stride", options->request.shift_stride, "Q tiles between neighbours in a shift (1)");
  SimulationCosts& costs = options->request.costs;
  verb->add_option("--compute", options->compute, "Time to compute a tile (1)")->type_name("C");
  verb->add_option("--reduce", costs.reduce, "Time to add its dQ (1)")->type_name("R");
  verb->add_option("--diagonal", options->diagonal, "Time to compute a tile on the mask's boundary (as --compute)")
      ->type_name("C");
  verb->add_option("--handover", costs.handover, "From the end of an add to the start of the next into the same dQ tile (0)")
      ->type_name("T");
  verb->add_option("--unit", costs.unit, "Before the first tile of a KV tile (0)")->type_name("T");
  verb->add_option(
          "--staging", costs.staging,
          "Tiles that may be computed and not yet added, by a store warp beside the worker; 0: the worker adds itself (0)")
      ->type_name("N")
      ->check(kInteger);
  verb->add_option("--visits", options->visits,
                   "arrival: up, down, up_and_down, turn, rotate or greedy (rotate; causal: up_and_down)")
      ->type_name("NAME");
  verb->add_option("--svg", options->svg, "Write a Gantt chart")->type_name("FILE");
  verb->add_flag("--json", options->json, "Print JSON, and nothing else, on standard output");
  verb->footer(
      "ordo simulate overlap --help is about products and their exchange.\nExample:\n  ordo simulate --schedule shift --mask "
      "full --kv-tiles 8 --q-tiles 8 --heads 4 --workers 8 --compute 5 "
      "--reduce 1 --svg shift.svg\n"
      "KV tiles are dispatched head after head to the worker that is free first; every live tile costs the same unless "
      "--diagonal\n"
      "says otherwise. Times have no unit of their own.");
  return {verb, [options] { return simulate_schedule(*options); }};
}

}  // namespace ordo::cli
