// ordo check overlap: products of several ranks against fp64, and their bits over repeats with late ranks.
#include <memory>

#include "cli/options.hpp"
#include "cli/overlap_run.hpp"
#include "cli/report.hpp"
#include "cli/verbs/verbs.hpp"
#include "runtime/measure/overlap_check.hpp"

namespace ordo::cli {
namespace {

struct CheckOverlapOptions : OverlapRunOptions {
  std::int64_t repeats = 10;
  bool delays = false;
};

/// Every op with slices that are ragged, empty or of a single tile, and two of the size that is benchmarked.
const std::vector<std::string>& check_rows() {
  static const std::vector<std::string> lines = [] {
    std::vector<std::string> out;
    const auto add = [&](std::string_view op, std::initializer_list<const char*> rows) {
      for (const char* row : rows) out.push_back(fmt::format("overlap-gemm op={} {}", op, row));
    };
    for (const char* op : {"all-gather-gemm", "gemm-reduce-scatter", "gemm-all-reduce"})
      add(op, {"m=3 n=2 k=3", "m=1001 n=1000 k=77 dtype=fp16 bias=yes activation=gelu", "m=2047 n=4096 k=1000",
               "m=2048 n=2048 k=2048 b=row", "m=1500 n=520 k=2056 out=fp32"});
    // What is contiguous along the cut is cut at multiples of 8 (OverlapGemm::validate): 6720 can be, for 1 .. 8 ranks.
    add("all-to-all-gemm", {"m=3 n=2 k=3 b=row", "m=1001 n=1000 k=77 b=row dtype=fp16 bias=yes activation=gelu",
                            "m=2047 n=4096 k=1000 b=row", "m=2048 n=2048 k=6720", "m=1500 n=520 k=2056 b=row out=fp32"});
    add("gemm-all-to-all", {"m=3 n=2 k=3", "m=1001 n=6720 k=77 dtype=fp16 bias=yes activation=gelu", "m=2047 n=4096 k=1000",
                            "m=2048 n=6720 k=2048 b=row", "m=1500 n=520 k=2056 out=fp32"});
    out.emplace_back("overlap-gemm op=gemm-reduce-scatter m=6720 n=2048 k=4097 a=column b=row out=fp32");
    out.emplace_back("overlap-gemm op=all-gather-gemm m=4096 n=7168 k=4096");
    out.emplace_back("overlap-gemm op=gemm-reduce-scatter m=4096 n=4096 k=7168");
    return out;
  }();
  return lines;
}

Json check_json(const CheckOverlapOptions& options, const OverlapGemm& problem, const measure::RankBench& with,
                const measure::OverlapCheck& check) {
  return {{"problem", to_text(problem)},
          {"plan", to_text(check.choice.plan)},
          {"method", check.choice.overlap ? "overlapped" : "apart"},
          {"reason", check.choice.reason},
          {"device", with.bench.facts().name},
          {"transport", to_string(with.communicator.transport())},
          {"seed", options.seed},
          {"worst_error_of_bound", check.deviation.worst},
          {"elements_beyond", check.deviation.beyond},
          {"repeats", check.repeats},
          {"differing_words", check.differing},
          {"passed", check.passed()}};
}

void print_check(const OverlapGemm& problem, const measure::OverlapCheck& check) {
  print("{}\n  {}, {} sub-slices, route {}: {}\n", to_text(problem), check.choice.overlap ? "overlapped" : "apart",
        check.choice.plan.sub_slices, to_string(check.choice.plan.route), check.choice.reason);
  print("  error {:.3f} of the bound, {} elements beyond it; bits {} over {} repeats; {}\n", check.deviation.worst,
        check.deviation.beyond, check.differing == 0 ? "the same" : "DIFFERENT", check.repeats,
        check.passed() ? "passed" : "FAILED");
  (void)std::fflush(stdout);
}

/// A suite covers every route unless one, or a plan, was asked for.
std::vector<OverlapRoute> checked_routes(const CheckOverlapOptions& options, const OverlapGemm& problem) {
  if (options.suite && !options.route && !options.plan) return routes_of(problem.op);
  return {options.route_or_direct()};
}

Result<int> check_rank(const CheckOverlapOptions& options, const measure::RankBench& with) {
  const auto problems = resolve_products(options, with.communicator.ranks(), check_rows());
  if (!problems) return problems.error();
  compile_all(options, with, *problems, false);
  const bool prints = with.communicator.rank() == 0;
  Json all = Json::array();
  int checks = 0, failures = 0;
  for (const OverlapGemm& problem : *problems) {
    for (const OverlapRoute route : checked_routes(options, problem)) {
      auto how = resolve_how(options, problem, with.engine.target(), route);
      if (!how) return how.error();
      auto check = measure::check_overlap(with, problem, *how, options.seed, static_cast<int>(options.repeats), options.delays);
      if (!check) return Error{check.error().code, fmt::format("{}: {}", to_text(problem), check.error().message)};
      ++checks;
      failures += check->passed() ? 0 : 1;
      if (prints && options.json) all.push_back(check_json(options, problem, with, *check));
      if (prints && !options.json) print_check(problem, *check);
    }
  }
  if (prints && options.json) print_json(all);
  if (prints && !options.json) print("{} products on {} ranks, {} failed\n", checks, with.communicator.ranks(), failures);
  return failures == 0 ? kOk : kFailedCheck;
}

}  // namespace

Verb add_check_overlap(CLI::App& app) {
  auto options = std::make_shared<CheckOverlapOptions>();
  CLI::App* verb =
      app.add_subcommand("check", "Check overlapped products against fp64 on every rank, and their bits over repeats");
  add_overlap_run_options(*verb, *options);
  verb->add_option("--repeats", options->repeats, "Runs whose bits are held against the first's (10)")
      ->check(kInteger)
      ->check(CLI::Range(0, 1000000))
      ->type_name("N");
  verb->add_flag("--delays", options->delays, "Ranks come late to every repeat, at random");
  verb->footer(
      "Examples:\n  ordo check overlap --op gemm-reduce-scatter --m 4097 --n 4096 --k 2048 --ranks 2 --repeats 100 --delays\n"
      "  ordo launch -n 2 -- ordo check overlap --suite\n"
      "A suite runs a product by every route that its op can take, unless --route or --plan says which.");
  return {verb,
          [options] { return run_ranks(*options, [&](const measure::RankBench& with) { return check_rank(*options, with); }); }};
}

}  // namespace ordo::cli
