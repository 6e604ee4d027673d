// ordo bench --suite: the cells that every claim about speed rests on, measured sustained. tests/bench/results/README.md
// describes the CSV.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>

#include "cli/bench/bench_options.hpp"
#include "cli/bench/cells.hpp"
#include "cli/bench/schedule_table.hpp"
#include "cli/progress.hpp"
#include "cli/report.hpp"
#include "cli/text_file.hpp"
#include "codegen/schedule/arrival.hpp"
#include "runtime/compiler.hpp"
#include "runtime/measure/event_stand.hpp"
#include "runtime/measure/prepare.hpp"
#include "runtime/measure/workbench.hpp"
#include "runtime/tuner/candidates.hpp"

namespace ordo::cli {
namespace {

struct Case {
  Plan plan;          ///< measured
  Plan sibling_plan;  ///< checked against fp64: the same but for a static shape
};

struct CellCases {
  Cell cell;
  std::vector<Case> cases;
};

/// The plan with "key=value" edits of its text.
Result<Plan> edited(const Plan& plan, const std::vector<std::string>& edits) {
  std::string text = to_text(plan);
  for (const std::string& edit : edits) {
    const std::size_t equals = edit.find('=');
    const std::string key = fmt::format(" {}=", edit.substr(0, equals));
    const std::size_t at = text.find(key);
    if (equals == std::string::npos || at == std::string::npos)
      return Error{ErrorCode::invalid_argument, fmt::format("--set {}: a plan has no such key; its text is\n{}", edit, text)};
    const std::size_t end = text.find(' ', at + 1);
    text.replace(at + 1, (end == std::string::npos ? text.size() : end) - at - 1, edit);
  }
  return parse_plan(text);
}

Result<Case> make_case(const Cell& cell, const Plan& planned, const BenchOptions& options) {
  auto plan = edited(planned, options.edits);
  if (!plan) return plan.error();
  plan = with_arrival_hash(cell.problem, *plan);
  if (!plan) return plan.error();
  if (auto fits = check_fit(cell.problem, *plan); !fits) return fits.error();
  Case made{*plan, *plan};
  made.sibling_plan.static_shape.reset();
  auto hashed = with_arrival_hash(sibling(cell.problem), made.sibling_plan);
  if (!hashed) return hashed.error();
  made.sibling_plan = *std::move(hashed);
  if (auto fits = check_fit(sibling(cell.problem), made.sibling_plan); !fits) return fits.error();
  return made;
}

Result<std::vector<Plan>> plans_of(const Cell& cell, const Target& target, Accumulate accumulate, const BenchOptions& options) {
  PlanRequest request;
  request.accumulate = accumulate;
  request.static_shape = options.static_shape;
  const auto plans_in = [](const std::vector<Candidate>& candidates) {
    std::vector<Plan> plans;
    plans.reserve(candidates.size());
    for (const Candidate& candidate : candidates) plans.push_back(candidate.plan);
    return plans;
  };
  if (options.plans == "best" || options.plans == "candidates") {
    auto choice = make_plan(cell.problem, target, request);
    if (!choice) return choice.error();
    return options.plans == "best" ? std::vector<Plan>{choice->plan} : plans_in(choice->candidates);
  }
  if (options.plans == "schedules") {
    std::vector<Plan> plans;
    for (const Schedule schedule : schedules_of(cell.problem.mask)) {
      request.schedule = schedule;
      // alternate, for one, has no plan where a walk is longer than the device is wide
      if (auto choice = make_plan(cell.problem, target, request)) plans.push_back(choice->plan);
    }
    return plans;
  }
  tuner::Pruning every;
  every.most = 1000;
  auto all = tuner::candidates(cell.problem, target, request, every);
  if (!all) return all.error();
  return plans_in(*all);
}

/// What does not fit (after --set, say) is left out and counted; the first few are named.
Result<CellCases> cases_of(const Cell& cell, const Target& target, const BenchOptions& options,
                           const std::vector<Accumulate>& modes, int& left_out) {
  constexpr int kNamed = 5;
  CellCases entry{cell, {}};
  for (const Accumulate accumulate : modes) {
    auto plans = plans_of(cell, target, accumulate, options);
    if (!plans) return plans.error();
    for (const Plan& plan : *plans) {
      auto made = make_case(cell, plan, options);
      if (made)
        entry.cases.push_back(*std::move(made));
      else if (++left_out <= kNamed)
        fmt::print(stderr, "left out: {} {} {} cluster {}: {}\n", cell.name, to_string(accumulate), to_string(plan.schedule),
                   plan.cluster, made.error().message);
    }
  }
  return entry;
}

Result<std::vector<Accumulate>> modes_of(const BenchOptions& options) {
  if (!options.accumulate) return std::vector<Accumulate>{Accumulate::atomic, Accumulate::ordered, Accumulate::exact};
  std::vector<Accumulate> modes;
  for (const std::string& part : CLI::detail::split(*options.accumulate, ',')) {
    auto mode = parse_accumulate(part);
    if (!mode) return mode.error();
    modes.push_back(*mode);
  }
  return modes;
}

Result<std::vector<CellCases>> make_cases(const Target& target, const BenchOptions& options) {
  const auto modes = modes_of(options);
  if (!modes) return modes.error();
  std::vector<CellCases> all;
  std::size_t count = 0;
  int left_out = 0;
  for (const Cell& cell : cells(options.cells)) {
    auto entry = cases_of(cell, target, options, *modes, left_out);
    if (!entry) return entry.error();
    count += entry->cases.size();
    all.push_back(*std::move(entry));
  }
  if (all.empty())
    return Error{ErrorCode::invalid_argument, fmt::format("--cells {}: no cell has such a name; see --list", options.cells)};
  if (left_out > 0) fmt::print(stderr, "{} plans left out, {} to measure\n", left_out, count);
  if (count == 0) return Error{ErrorCode::invalid_argument, "no plan is left to measure"};
  return all;
}

int print_list(const std::vector<CellCases>& all) {
  for (const CellCases& entry : all) {
    print("{}  {}\n", entry.cell.name, to_text(entry.cell.problem));
    for (const Case& one : entry.cases) print("    {}\n", to_text(one.plan));
  }
  return kOk;
}

constexpr const char* kSuiteColumns =
    "impl,plan_schedule,accumulate,cluster,head_dim,causal,batch,seqlen,heads,kv_heads,ms_median,ms_min,tflops,clock_mhz,watts,"
    "same_bits,max_rel_err,plan";

struct Row {
  measure::Sample sample;
  std::optional<bool> same_bits;
  std::optional<double> error;  ///< the largest of dq, dk, dv: ||x - fp64|| / ||fp64||
  bool within = true;           ///< each within the contract's bound
};

std::string number(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "";
}

std::string csv_line(const AttentionBackward& p, const Plan& plan, const Row& row) {
  return fmt::format("ordo,{}{},{},{},{},{},{},{},{},{},{:.5f},{:.5f},{:.1f},{},{},{},{},\"{}\"", to_string(plan.schedule),
                     plan.static_shape ? "/static" : "", to_string(plan.accumulate), plan.cluster, p.head_dim,
                     p.mask == Mask::causal ? 1 : 0, p.batch, p.seqlen_q, p.heads, p.kv_heads, row.sample.ms_median,
                     row.sample.ms_min, p.flops() / row.sample.ms_median * 1e-9, number(row.sample.clock_mhz, "{:.0f}"),
                     number(row.sample.watts, "{:.0f}"), row.same_bits ? (*row.same_bits ? "1" : "0") : "",
                     number(row.error, "{:.2e}"), to_text(plan));
}

/// A problem small enough for fp64, on the host and on the device.
struct Checked {
  AttentionBackward problem;
  float scale;
  reference::HostInputs inputs;
  measure::DeviceProblem on_device;

  static Result<Checked> create(measure::Workbench& bench, const AttentionBackward& problem) {
    const float scale = 1 / std::sqrt(static_cast<float>(problem.head_dim));
    reference::HostInputs inputs = reference::random_operands(problem, 2);
    auto forward = bench.forward(problem);
    if (!forward) return forward.error();
    auto on_device = measure::DeviceProblem::upload(problem, scale, inputs, bench.stream().get());
    if (!on_device) return on_device.error();
    if (auto ok = on_device->run_forward(*forward); !ok) return ok.error();
    if (auto ok = on_device->download_forward(inputs); !ok) return ok.error();
    return Checked{problem, scale, std::move(inputs), *std::move(on_device)};
  }

  Result<reference::CheckResult> check(const AttentionBackwardKernel& kernel) {
    if (auto ok = on_device.reserve(kernel); !ok) return ok.error();
    if (auto ok = on_device.poison(); !ok) return ok.error();
    if (auto ok = on_device.launch(kernel); !ok) return ok.error();
    auto gradients = on_device.download();
    if (!gradients) return gradients.error();
    return reference::compare(problem, scale, inputs, *gradients, reference::NonFinite::may_spread);
  }
};

/// The whole run: kernels, then cell after cell.
class Suite {
 public:
  Suite(measure::Workbench& bench, Engine& engine, const BenchOptions& options, std::FILE* csv)
      : bench_(bench), engine_(engine), options_(options), csv_(csv) {}

  Result<int> run(const std::vector<CellCases>& all) {
    prepare(all);
    header();
    auto stand = measure::EventStand::create(bench_.stream().get(), bench_.nvml(),
                                             options_.policy.cold_l2 ? measure::flush_bytes(bench_.facts()) : 0);
    if (!stand) return stand.error();
    measure::Measuring measuring(*stand, options_.policy);
    for (const CellCases& entry : all) {
      const auto ran = run_cell(entry, *stand, measuring);
      if (ran) continue;
      fail(entry.cell.name, ran.error().message);
      if (auto alive = bench_.context().synchronize(); !alive) return alive.error();
    }
    if (auto written = write_table(); !written) return written.error();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    fmt::print(stderr, "{} cases, {} failed, {:.0f} s\n", cases_, failures_, seconds);
    return failures_ == 0 ? kOk : kFailedCheck;
  }

 private:
  void fail(const std::string& what, const std::string& message) {
    ++failures_;
    fmt::print(stderr, "FAILED {}\n  {}\n", what, message);
  }

  Result<void> write_table() const { return options_.table.empty() ? Result<void>{} : write_text(options_.table, table_.csv()); }

  void prepare(const std::vector<CellCases>& all) {
    std::vector<Plan> plans;
    for (const CellCases& entry : all)
      for (const Case& one : entry.cases) {
        plans.push_back(one.plan);
        if (options_.checks) plans.push_back(one.sibling_plan);
      }
    ProgressBar bar("compiling");
    kernels_ = measure::prepare_all(engine_, plans, [&](double share) {
      bar.update(share);
      return true;
    });
    for (const auto& [text, kernel] : kernels_)
      if (!kernel) fail(text, kernel.error().message);
  }

  Result<AttentionBackwardKernel> kernel(const Plan& plan) const { return kernels_.at(to_text(plan)); }

  void header() const {
    const DeviceFacts& facts = bench_.facts();
    const auto compiler = Compiler::open();
    fmt::print(csv_, "# {}, {} SMs, driver {} (CUDA {}.{}), {}; {}\n{}\n", facts.name, facts.sm_count,
               bench_.nvml() ? bench_.nvml()->driver_version() : "unknown", facts.driver_version / 1000,
               facts.driver_version % 1000 / 10, compiler ? compiler->version().text() : "no NVRTC", to_text(options_.policy),
               kSuiteColumns);
  }

  /// Rounds over all cases of the cell first, so that they meet the same card; then their checks.
  Result<void> run_cell(const CellCases& entry, measure::EventStand& stand, measure::Measuring& measuring) {
    auto problem = bench_.random_problem(entry.cell.problem, 1);
    if (!problem) return problem.error();
    struct Subject {
      const Case* of;
      AttentionBackwardKernel kernel;
    };
    std::vector<Subject> subjects;
    std::vector<std::size_t> numbers;
    for (const Case& one : entry.cases) {
      auto prepared = kernel(one.plan);
      if (!prepared) continue;  // reported already
      if (auto ok = problem->reserve(*prepared); !ok) return ok;
      numbers.push_back(stand.add([&problem, kernel = *prepared] { return problem->launch(kernel); }));
      subjects.push_back({&one, *std::move(prepared)});
    }
    const auto samples = measuring.rounds_of_each(numbers);
    for (std::size_t i = 0; i < subjects.size(); ++i)
      if (!samples[i]) fail(fmt::format("{} {}", entry.cell.name, to_text(subjects[i].of->plan)), samples[i].error().message);
    if (auto alive = bench_.context().synchronize(); !alive) return alive;
    std::optional<Checked> small;
    if (options_.checks) {
      auto made = Checked::create(bench_, sibling(entry.cell.problem));
      if (!made) return made.error();
      small = *std::move(made);
    }
    for (std::size_t i = 0; i < subjects.size(); ++i) {
      const Subject& subject = subjects[i];
      ++cases_;
      if (!samples[i]) continue;
      Row row{*samples[i], {}, {}};
      if (small)
        if (auto ok = check(*subject.of, subject.kernel, *problem, *small, row); !ok) return ok;
      table_.add(entry.cell.name, entry.cell.problem, subject.of->plan, row.sample.ms_median);
      print_row(entry.cell, subject.of->plan, row);
    }
    return {};
  }

  Result<void> check(const Case& one, const AttentionBackwardKernel& measured, measure::DeviceProblem& problem, Checked& small,
                     Row& row) {
    constexpr int kRepeats = 5;
    auto helpers = bench_.helpers();
    if (!helpers) return helpers.error();
    auto differing = problem.differing_words(measured, kRepeats, *helpers);
    if (!differing) return differing.error();
    row.same_bits = *differing == 0;
    auto checked = kernel(one.sibling_plan);
    if (!checked) return checked.error();
    auto errors = small.check(*checked);
    if (!errors) return errors.error();
    row.error = std::max({errors->dq.relative, errors->dk.relative, errors->dv.relative});
    row.within = errors->passed();
    return {};
  }

  void print_row(const Cell& cell, const Plan& plan, const Row& row) {
    const std::string line = csv_line(cell.problem, plan, row);
    fmt::print(csv_, "{}\n", line);
    (void)std::fflush(csv_);
    if (csv_ != stdout) print("{}\n", line);
    (void)std::fflush(stdout);
    if (!row.within) fail(line, "its error is beyond the bound of the contract");
    if (row.same_bits && !*row.same_bits && plan.accumulate != Accumulate::atomic) fail(line, "repeats gave other bits");
  }

  measure::Workbench& bench_;
  Engine& engine_;
  const BenchOptions& options_;
  std::FILE* csv_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  measure::Prepared kernels_;
  ScheduleTable table_;
  int cases_ = 0, failures_ = 0;
};

}  // namespace

Result<int> bench_suite(const BenchOptions& options) {
  auto target = resolve_target(options);
  if (!target) return target.error();
  auto all = make_cases(*target, options);
  if (!all) return all.error();
  if (options.list) return print_list(*all);
  auto device = resolve_gpu(options, "ordo bench --suite");
  if (!device) return device.error();
  auto bench = measure::Workbench::open(*device, builder_options(options));
  if (!bench) return bench.error();
  auto engine = make_engine(options, *target);
  if (!engine) return engine.error();
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(options.csv.empty() ? nullptr : std::fopen(options.csv.c_str(), "w"),
                                                             &std::fclose);
  if (!options.csv.empty() && !file) return Error{ErrorCode::io, fmt::format("--csv {}: cannot be written", options.csv)};
  return Suite(*bench, *engine, options, file ? file.get() : stdout).run(*all);
}

}  // namespace ordo::cli
