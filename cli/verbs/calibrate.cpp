// ordo calibrate: the constants of the cost model from measured times.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "cli/options.hpp"
#include "cli/progress.hpp"
#include "cli/report.hpp"
#include "cli/text_file.hpp"
#include "cli/verbs/verbs.hpp"
#include "codegen/cost/fit.hpp"
#include "runtime/calibration.hpp"
#include "runtime/measure/event_stand.hpp"
#include "runtime/measure/workbench.hpp"

namespace ordo::cli {
namespace {

struct CalibrateOptions : Options {
  std::vector<std::string> from;
  std::string output, csv;
  double seconds = 0.3;
};

// Shapes that tell the constants apart: long walks give the step, short ones the item and the kernels around, few heads the hop.
std::vector<AttentionBackward> calibration_problems() {
  std::vector<AttentionBackward> problems;
  for (const std::int64_t head_dim : {128, 64})
    for (const Mask mask : {Mask::full, Mask::causal}) {
      const auto add = [&](std::int64_t batch, std::int64_t length, std::int64_t heads) {
        problems.push_back({.batch = batch,
                            .seqlen_q = length,
                            .seqlen_k = length,
                            .heads = heads,
                            .kv_heads = heads,
                            .head_dim = head_dim,
                            .mask = mask});
      };
      add(16, 512, 2048 / head_dim);
      add(4, 2048, 2048 / head_dim);
      add(1, 8192, 2048 / head_dim);
      add(1, 8192, 256 / head_dim);
    }
  return problems;
}

std::string csv_line(const cost::Measurement& row) {
  const AttentionBackward& p = row.problem;
  return fmt::format("ordo,{},{},{},{},{:.5f},\"{}\"\n", p.batch, p.seqlen_q, p.heads, p.kv_heads, row.ms, to_text(row.plan));
}

Result<std::vector<cost::Measurement>> read_files(const std::vector<std::string>& paths) {
  std::vector<cost::Measurement> rows;
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!file) return Error{ErrorCode::io, fmt::format("{} cannot be read", path)};
    auto read = cost::parse_measurements(text);
    if (!read) return Error{read.error().code, fmt::format("{}: {}", path, read.error().message)};
    rows.insert(rows.end(), read->begin(), read->end());
  }
  return rows;
}

// Every candidate of one problem, in rounds.
Result<void> measure_problem(const CalibrateOptions& options, measure::Workbench& bench, const AttentionBackward& problem,
                             Engine& engine, std::vector<cost::Measurement>& rows) {
  auto on_device = bench.random_problem(problem, 0);
  if (!on_device) return on_device.error();
  auto stand = measure::EventStand::create(bench.stream().get(), bench.nvml());
  if (!stand) return stand.error();
  std::vector<Plan> plans;
  std::vector<std::size_t> subjects;
  for (const Accumulate accumulate : {Accumulate::ordered, Accumulate::exact}) {
    PlanRequest request;
    request.accumulate = accumulate;
    const auto choice = engine.plan(problem, request);
    if (!choice) return choice.error();
    for (const Candidate& candidate : choice->candidates) {
      auto kernel = engine.prepare(candidate.plan);
      if (!kernel) return kernel.error();
      if (auto ok = on_device->reserve(*kernel); !ok) return ok.error();
      plans.push_back(candidate.plan);
      subjects.push_back(stand->add([&, kernel = *kernel] { return on_device->launch(kernel); }));
    }
  }
  MeasurementPolicy policy;
  policy.warm_ms = policy.measure_ms = options.seconds * 1e3 / policy.rounds;
  measure::Measuring measuring(*stand, policy);
  const auto samples = measuring.rounds(subjects);
  if (!samples) return samples.error();
  for (std::size_t i = 0; i < plans.size(); ++i) rows.push_back({problem, plans[i], (*samples)[i].ms_median});
  return {};
}

Result<std::vector<cost::Measurement>> measure_all(const CalibrateOptions& options, const Target& target) {
  auto device = resolve_gpu(options, "ordo calibrate without --from");
  if (!device) return device.error();
  auto engine = make_engine(options, target);
  if (!engine) return engine.error();
  auto bench = measure::Workbench::open(*device, builder_options(options));
  if (!bench) return bench.error();
  std::vector<cost::Measurement> rows;
  ProgressBar bar("measuring");
  const std::vector<AttentionBackward> problems = calibration_problems();
  for (std::size_t i = 0; i < problems.size(); ++i) {
    if (auto measured = measure_problem(options, *bench, problems[i], *engine, rows); !measured) return measured.error();
    bar.update(static_cast<double>(i + 1) / static_cast<double>(problems.size()));
  }
  return rows;
}

struct Summary {
  std::vector<cost::Agreement> cells;  ///< of problems with two candidates or more
  double worst_loss = 0;
};

Summary summarize(const std::vector<cost::Measurement>& rows, const Target& target, const cost::Constants& constants) {
  Summary out;
  for (const cost::Cell& cell : cost::cells_of(rows)) {
    cost::Cell ordered = cell;
    std::erase_if(ordered.rows, [](const cost::Measurement& row) { return row.plan.accumulate != Accumulate::ordered; });
    if (ordered.rows.size() < 2) continue;
    out.cells.push_back(cost::compare(ordered, target, constants));
    out.worst_loss = std::max(out.worst_loss, out.cells.back().loss);
  }
  return out;
}

void report(const CalibrateOptions& options, const cost::Fit& fit, const Summary& summary, const std::string& output) {
  if (options.json) {
    Json cells = Json::array();
    for (const cost::Agreement& cell : summary.cells)
      cells.push_back({{"problem", to_text(cell.problem)},
                       {"candidates", cell.candidates},
                       {"rank_correlation", cell.correlation},
                       {"resolved_rank_correlation", cell.resolved},
                       {"worst_error", cell.worst_error},
                       {"chosen", to_text(cell.chosen)},
                       {"best", to_text(cell.best)},
                       {"loss", cell.loss}});
    print_json({{"constants", Json::parse(cost::to_json(fit.constants))},
                {"rows", fit.rows},
                {"median_error", fit.median_error},
                {"worst_error", fit.worst_error},
                {"cells", std::move(cells)},
                {"file", output}});
    return;
  }
  print("{} measurements; predictions {:.1f} % off in the median, {:.1f} % at most\n\n", fit.rows, fit.median_error * 100,
        fit.worst_error * 100);
  print("candidates  rank correlation  choice behind best  problem\n");
  for (const cost::Agreement& cell : summary.cells)
    print("{:>10}  {:>16.3f}  {:>16.1f} %  {}\n", cell.candidates, cell.resolved, cell.loss * 100, to_text(cell.problem));
  print("\n{}: planning for {} uses it from now on\n", output, fit.constants.target);
}

Result<int> calibrate(const CalibrateOptions& options) {
  auto target = resolve_target(options);
  if (!target) return target.error();
  const auto path = options.output.empty() ? calibration_path(*target) : std::optional(options.output);
  if (!path)
    return Error{
        ErrorCode::io,
        "there is no place for the constants: none of ORDO_COST, XDG_CONFIG_HOME and HOME is set; name a file with --output"};
  auto rows = options.from.empty() ? measure_all(options, *target) : read_files(options.from);
  if (!rows) return rows.error();
  if (!options.csv.empty()) {
    std::string text = "impl,batch,seqlen,heads,kv_heads,ms_median,plan\n";
    for (const cost::Measurement& row : *rows) text += csv_line(row);
    if (auto written = write_text(options.csv, text); !written) return written.error();
  }
  const std::string origin = options.from.empty() ? fmt::format("measured by ordo calibrate, {} rows", rows->size())
                                                  : fmt::format("fitted to {} rows of {}", rows->size(),
                                                                std::filesystem::path(options.from.front()).filename().string());
  Target named = *target;
  named.name = to_text(*target);
  auto fitted = cost::fit(*rows, named, cost::shipped_constants(*target), origin);
  if (!fitted) return fitted.error();
  std::error_code ignored;
  if (const auto folder = std::filesystem::path(*path).parent_path(); !folder.empty())
    std::filesystem::create_directories(folder, ignored);
  if (auto written = write_text(*path, cost::to_json(fitted->constants)); !written) return written.error();
  report(options, *fitted, summarize(*rows, *target, fitted->constants), *path);
  return kOk;
}

}  // namespace

Verb add_calibrate(CLI::App& app) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* verb = app.add_subcommand("calibrate", "Fit the cost model to this GPU, or to a CSV of measurements");
  verb->add_option("--from", options->from, "Fit to this CSV of ordo_bench_suite or --csv instead of measuring; may be repeated")
      ->type_name("FILE");
  verb->add_option("--output", options->output,
                   "Where the constants go ($ORDO_COST, else ordo/cost-TARGET.json in $XDG_CONFIG_HOME or ~/.config)")
      ->type_name("FILE");
  verb->add_option("--csv", options->csv, "Write the measurements, too")->type_name("FILE");
  verb->add_option("--seconds", options->seconds, "Warm-up, and then measuring, of each plan (0.3)")
      ->check(CLI::Range(0.01, 60.0))
      ->type_name("S");
  add_target(*verb, *options);
  add_device(*verb, *options, "Which GPU (the current one)");
  add_cache(*verb, *options);
  add_json(*verb, *options);
  verb->footer(
      "Example:\n  ordo calibrate --csv measured.csv\n  ordo calibrate --target h200 --from measured.csv --output h200.json\n"
      "It times the whole backward of the planner's candidates on 16 shapes and fits step, item, hop and masking clocks of each "
      "kernel,\n"
      "the cost of each order of visits, and the memory bandwidth of preprocess and convert, by least squares.");
  return {verb, [options] { return calibrate(*options); }};
}

}  // namespace ordo::cli
