// ordo_bench_suite: the cells that every claim about speed rests on, measured sustained. See --help and ../results/README.md.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <optional>

#include "runtime/compiler.hpp"
#include "tests/bench/suite/cells.hpp"
#include "tests/bench/suite/check.hpp"
#include "tests/bench/suite/measure.hpp"
#include "tests/bench/suite/options.hpp"
#include "tests/bench/suite/overheads.hpp"
#include "tests/gpu/deadline.hpp"
#include "tests/gpu/plans.hpp"
#include "tests/gpu/prepare.hpp"

namespace ordo::bench {
namespace {

constexpr int kOk = 0, kFailed = 1, kBadUsage = 2, kEnvironment = 3;

struct Case {
  Plan plan;          ///< measured
  Plan sibling_plan;  ///< checked against fp64: the same but for a static shape
};

struct CellCases {
  Cell cell;
  std::vector<Case> cases;
};

Result<Case> make_case(const Cell& cell, const Plan& planned, const Options& options) {
  auto plan = edited(planned, options.edits);
  if (!plan) return plan.error();
  if (auto fits = check_fit(cell.problem, *plan); !fits) return fits.error();
  Case made{*plan, *plan};
  made.sibling_plan.static_shape.reset();
  if (auto fits = check_fit(sibling(cell.problem), made.sibling_plan); !fits) return fits.error();
  return made;
}

/// What does not fit (after --set, say) is left out and counted; the first few are named.
Result<CellCases> cases_of(const Cell& cell, const Target& target, const Options& options, int& left_out) {
  constexpr int kNamed = 5;
  CellCases entry{cell, {}};
  for (const Accumulate accumulate : options.accumulate) {
    auto plans = test::all_plans(cell.problem, target, accumulate, options.static_shape);
    if (!plans) return plans.error();
    if (!options.all_plans) plans->resize(1);  // the planner's choice comes first
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

Result<std::vector<CellCases>> make_cases(const Target& target, const Options& options) {
  std::vector<CellCases> all;
  std::size_t count = 0;
  int left_out = 0;
  for (const Cell& cell : cells(options.cells)) {
    auto entry = cases_of(cell, target, options, left_out);
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
    fmt::print("{}  {}\n", entry.cell.name, to_text(entry.cell.problem));
    for (const Case& one : entry.cases) fmt::print("    {}\n", to_text(one.plan));
  }
  return kOk;
}

constexpr const char* kColumns =
    "impl,plan_schedule,accumulate,cluster,head_dim,causal,batch,seqlen,heads,kv_heads,ms_median,ms_min,tflops,clock_mhz,watts,"
    "same_bits,max_rel_err,plan";

struct Row {
  Timing timing;
  std::optional<bool> same_bits;
  std::optional<Accuracy> accuracy;
};

std::string number(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "";
}

std::string csv_line(const AttentionBackward& p, const Plan& plan, const Row& row) {
  const std::optional<double> error = row.accuracy ? std::optional(row.accuracy->max_relative_error) : std::nullopt;
  return fmt::format("ordo,{}{},{},{},{},{},{},{},{},{},{:.5f},{:.5f},{:.1f},{},{},{},{},\"{}\"", to_string(plan.schedule),
                     plan.static_shape ? "/static" : "", to_string(plan.accumulate), plan.cluster, p.head_dim,
                     p.mask == Mask::causal ? 1 : 0, p.batch, p.seqlen_q, p.heads, p.kv_heads, row.timing.ms_median,
                     row.timing.ms_min, p.flops() / row.timing.ms_median * 1e-9, number(row.timing.clock_mhz, "{:.0f}"),
                     number(row.timing.watts, "{:.0f}"), row.same_bits ? (*row.same_bits ? "1" : "0") : "",
                     number(error, "{:.2e}"), to_text(plan));
}

/// The whole run: kernels, then cell after cell.
class Suite {
 public:
  Suite(Device& device, const Options& options, std::FILE* csv) : device_(device), options_(options), csv_(csv) {}

  int run(const std::vector<CellCases>& all) {
    prepare(all);
    header();
    for (const CellCases& entry : all)
      if (auto ok = run_cell(entry); !ok) fail(entry.cell.name, ok.error().message);
    fmt::print(stderr, "{} cases, {} failed, {:.0f} s\n", cases_, failures_, watch_.seconds());
    return failures_ == 0 ? kOk : kFailed;
  }

 private:
  void fail(const std::string& what, const std::string& message) {
    ++failures_;
    fmt::print(stderr, "FAILED {}\n  {}\n", what, message);
    if (auto alive = device_.context.synchronize(); !alive) test::stop(4, "CONTEXT LOST: " + alive.error().message);
  }

  void prepare(const std::vector<CellCases>& all) {
    const test::Deadline deadline("compiling", 400);
    std::vector<Plan> plans;
    for (const CellCases& entry : all)
      for (const Case& one : entry.cases) {
        plans.push_back(one.plan);
        if (options_.checks) plans.push_back(one.sibling_plan);
      }
    kernels_ = test::prepare_all(device_.engine, plans, failures_);
    fmt::print(stderr, "{} plans prepared in {:.1f} s\n", kernels_.size(), watch_.seconds());
  }

  void header() const {
    const DeviceFacts& facts = device_.context.facts();
    const auto compiler = Compiler::open();
    fmt::print(csv_, "# {}, {} SMs, driver CUDA {}.{}, {}; warm-up {:g} ms ({:g} before the first), measured {:g} ms\n{}\n",
               facts.name, facts.sm_count, facts.driver_version / 1000, facts.driver_version % 1000 / 10,
               compiler ? compiler->version().text() : "no NVRTC", options_.warm_ms, options_.first_warm_ms, options_.measure_ms,
               kColumns);
  }

  Result<void> run_cell(const CellCases& entry) {
    const test::Deadline deadline(entry.cell.name + ": inputs and reference", 60);
    auto problem = test::GpuProblem::create(device_.reference, entry.cell.problem, 1, false);
    if (!problem) return problem.error();
    std::optional<test::GpuProblem> small;
    if (options_.checks) {
      auto made = test::GpuProblem::create(device_.reference, sibling(entry.cell.problem), 2, true);
      if (!made) return made.error();
      small = *std::move(made);
    }
    if (auto ok = device_.context.synchronize(); !ok) return ok;
    for (const Case& one : entry.cases) {
      const std::string text = fmt::format("{} {}", entry.cell.name, to_text(one.plan));
      const test::Deadline case_deadline(text, 30 + 3e-3 * (options_.first_warm_ms + options_.measure_ms));
      ++cases_;
      auto row = run_case(one, *problem, small);
      if (!row) {
        fail(text, row.error().message);
        continue;
      }
      print_row(entry.cell, one.plan, *row);
    }
    return {};
  }

  Result<Row> run_case(const Case& one, test::GpuProblem& problem, std::optional<test::GpuProblem>& small) {
    const auto kernel = kernels_.find(to_text(one.plan)), checked = kernels_.find(to_text(one.sibling_plan));
    if (kernel == kernels_.end()) return Error{ErrorCode::compile, "not compiled, see above"};
    auto subject = Subject::create(device_, problem, kernel->second);
    if (!subject) return subject.error();
    Row row;
    auto timing = measure(*subject, device_.nvml, first_ ? options_.first_warm_ms : options_.warm_ms, options_.measure_ms);
    if (!timing) return timing.error();
    first_ = false;
    row.timing = *timing;
    if (!options_.checks) return row;
    auto same = same_bits(*subject);
    if (!same) return same.error();
    row.same_bits = *same;
    if (checked == kernels_.end()) return Error{ErrorCode::compile, "the plan for the check was not compiled, see above"};
    auto error = accuracy(device_, *small, checked->second);
    if (!error) return error.error();
    row.accuracy = *std::move(error);
    return row;
  }

  void print_row(const Cell& cell, const Plan& plan, const Row& row) {
    const std::string line = csv_line(cell.problem, plan, row);
    fmt::print(csv_, "{}\n", line);
    (void)std::fflush(csv_);
    if (csv_ != stdout) fmt::print("{}\n", line);
    (void)std::fflush(stdout);
    if (row.accuracy && !row.accuracy->within) fail(line, "its error is beyond the bound of the tests");
    if (row.same_bits && !*row.same_bits && plan.accumulate != Accumulate::atomic) fail(line, "repeats gave other bits");
  }

  Device& device_;
  const Options& options_;
  std::FILE* csv_;
  test::Stopwatch watch_;
  test::Kernels kernels_;
  bool first_ = true;
  int cases_ = 0, failures_ = 0;
};

int report(const Error& error) {
  if (error.code == ErrorCode::no_device) {
    fmt::print("skipped: no GPU\n");
    return kOk;
  }
  fmt::print(stderr, "{}\n", error.message);
  return error.code == ErrorCode::invalid_argument || error.code == ErrorCode::invalid_plan ? kBadUsage : kEnvironment;
}

int list(const Options& options) {
  auto target = parse_target("h200");
  if (!target) return report(target.error());
  auto all = make_cases(*target, options);
  return all ? print_list(*all) : report(all.error());
}

int run(const Options& options) {
  if (options.list) return list(options);
  if (!options.cache_hit.empty()) {
    auto printed = print_cache_hit(options.cache_hit);
    return printed ? kOk : report(printed.error());
  }
  auto device = [&] {
    const test::Deadline deadline("opening the device and compiling the reference", 120);
    return Device::open(options.cache);
  }();
  if (!device) return report(device.error());
  if (options.overheads) {
    auto printed = print_overheads(*device);
    return printed ? kOk : report(printed.error());
  }
  auto all = make_cases(device->engine.target(), options);
  if (!all) return report(all.error());
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(options.csv.empty() ? nullptr : std::fopen(options.csv.c_str(), "w"),
                                                             &std::fclose);
  if (!options.csv.empty() && !file) return report({ErrorCode::io, fmt::format("cannot write {}", options.csv)});
  return Suite(*device, options, file ? file.get() : stdout).run(*all);
}

}  // namespace
}  // namespace ordo::bench

int main(int argc, char** argv) {
  try {
    const ordo::bench::Parsed parsed = ordo::bench::parse(argc, argv);
    return parsed.run ? ordo::bench::run(parsed.options) : parsed.status;
  } catch (const std::exception& exception) {  // out of memory, most likely
    (void)std::fprintf(stderr, "%s\n", exception.what());
    return 3;
  }
}
