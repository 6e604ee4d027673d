// ordo audit: predicted registers and spills against the compiler's.
#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "cli/options.hpp"
#include "cli/progress.hpp"
#include "cli/report.hpp"
#include "cli/verbs/verbs.hpp"
#include "runtime/audit.hpp"

namespace ordo::cli {
namespace {

struct AuditOptions : Options {
  std::vector<std::string> filters;
  unsigned threads = 0;
};

std::vector<Plan> plans_of(const AuditOptions& options) {
  std::vector<Plan> plans = support_matrix();
  for (const Plan& plan : spilling_plans()) plans.push_back(plan);
  std::erase_if(plans, [&](const Plan& plan) {
    const std::string text = to_text(plan);
    return std::any_of(options.filters.begin(), options.filters.end(),
                       [&](const std::string& part) { return text.find(part) == std::string::npos; });
  });
  return plans;
}

/// One result a plan. A plan takes two compiles, which the builder runs side by side.
std::vector<Result<AuditRow>> audit_all(const std::vector<Plan>& plans, const Target& target, KernelBuilder& builder,
                                        unsigned threads) {
  std::vector<Result<AuditRow>> rows(plans.size(), Error{ErrorCode::internal, "not audited"});
  std::atomic<std::size_t> next{0}, done{0};
  std::mutex mutex;
  ProgressBar bar("compiling");
  const auto work = [&] {
    for (std::size_t i = next++; i < plans.size(); i = next++) {
      rows[i] = audit(plans[i], target, builder);
      const std::scoped_lock lock(mutex);
      bar.update(static_cast<double>(++done) / static_cast<double>(plans.size()));
    }
  };
  std::vector<std::jthread> helpers;
  for (unsigned i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  helpers.clear();
  return rows;
}

Json row_json(const AuditRow& row) {
  return {{"key", row.key},
          {"plan", to_text(row.plan)},
          {"predicted_registers", row.predicted_registers},
          {"actual_registers", row.actual_registers},
          {"predicted_spill", row.predicted_spill_bytes != 0},
          {"actual_spill_bytes", row.actual_spill_bytes}};
}

void print_row(const AuditRow& row) {
  const bool wrong = !row.registers_agree() || !row.spill_agrees();
  print("{:>9} {:>6}   {:>9} {:>6}   {} {}\n", row.predicted_registers, row.actual_registers, row.predicted_spill_bytes,
        row.actual_spill_bytes, wrong ? "WRONG" : "ok   ", to_text(row.plan));
}

Result<int> run_audit(const AuditOptions& options) {
  auto target = resolve_target(options);
  if (!target) return target.error();
  const std::vector<Plan> plans = plans_of(options);
  if (plans.empty()) return Error{ErrorCode::invalid_argument, "--filter leaves no plan; it takes parts of a plan's text"};
  KernelBuilderOptions building = builder_options(options);
  building.allow_spills = true;
  KernelBuilder builder(std::move(building));
  const unsigned threads = options.threads > 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency() / 2);
  const auto rows = audit_all(plans, *target, builder, threads);
  Json out = Json::array();
  int wrong = 0, spilling = 0, worst = 0;
  if (!options.json) print("registers          spill bytes\npredicted actual   predicted actual\n");
  for (const auto& row : rows) {
    if (!row) return row.error();
    wrong += row->registers_agree() && row->spill_agrees() ? 0 : 1;
    spilling += row->actual_spill_bytes != 0 ? 1 : 0;
    worst = std::max(worst, std::abs(row->predicted_registers - row->actual_registers));
    if (options.json)
      out.push_back(row_json(*row));
    else
      print_row(*row);
  }
  if (options.json) {
    print_json({{"target", to_text(*target)},
                {"tolerance", AuditRow::kTolerance},
                {"worst_difference", worst},
                {"spilling", spilling},
                {"wrong", wrong},
                {"rows", std::move(out)}});
  } else {
    print("\n{} plans, {} of them spill; registers at most {} off (allowed {}), {} wrong\n", rows.size(), spilling, worst,
          AuditRow::kTolerance, wrong);
  }
  return wrong == 0 ? kOk : kFailedCheck;
}

}  // namespace

Verb add_audit(CLI::App& app) {
  auto options = std::make_shared<AuditOptions>();
  CLI::App* verb = app.add_subcommand("audit", "Hold predicted registers and spills against the compiler's; needs no GPU");
  verb->add_option("--filter", options->filters, "Only plans whose text holds this part, e.g. head_dim=64; may be repeated")
      ->type_name("TEXT");
  verb->add_option("--threads", options->threads, "Plans at a time (half of the processors)")->type_name("N");
  add_target(*verb, *options);
  add_device(*verb, *options, "Compile for this GPU");
  add_cache(*verb, *options);
  add_json(*verb, *options);
  verb->footer(
      "Example:\n  ordo audit --filter schedule_state=consumer --target h200\n"
      "Builds every kind of main kernel, some that spill, and of each the consumer path alone, which shows the registers that a "
      "consumer\n"
      "needs: minutes without a cache. Exit code 1 if a prediction is wrong.");
  return {verb, [options] { return run_audit(*options); }};
}

}  // namespace ordo::cli
