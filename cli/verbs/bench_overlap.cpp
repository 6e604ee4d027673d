// ordo bench overlap: overlapped products beside our GEMM alone, beside a copy, and NCCL with cuBLAS, all in one run.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "cli/options.hpp"
#include "cli/overlap_run.hpp"
#include "cli/report.hpp"
#include "cli/verbs/verbs.hpp"
#include "runtime/measure/overlap_bench.hpp"

namespace ordo::cli {
namespace {

struct BenchOverlapOptions : OverlapRunOptions {
  /// Every round is warmed up like the first: after NCCL alone, say, the card has power to spare for a while, and what is
  /// measured next would run at a higher clock than the rest.
  MeasurementPolicy policy{.round_warm_ms = 300};
  std::optional<double> warmup_seconds, measure_seconds;
  std::string csv, cublas;
};

/// A tensor-parallel MLP of two ranks, a marginal attention output projection, short ones, and one row for each other op. tests/
/// bench/overlap_peers.py has the same.
const std::vector<std::string>& bench_rows() {
  static const std::vector<std::string> lines{"overlap-gemm op=all-gather-gemm m=4096 n=7168 k=4096",
                                              "overlap-gemm op=gemm-reduce-scatter m=4096 n=4096 k=7168",
                                              "overlap-gemm op=all-gather-gemm m=8192 n=7168 k=4096",
                                              "overlap-gemm op=gemm-reduce-scatter m=8192 n=4096 k=7168",
                                              "overlap-gemm op=all-gather-gemm m=8192 n=14336 k=8192",
                                              "overlap-gemm op=gemm-reduce-scatter m=8192 n=8192 k=14336",
                                              "overlap-gemm op=all-gather-gemm m=16384 n=14336 k=8192",
                                              "overlap-gemm op=gemm-reduce-scatter m=16384 n=8192 k=14336",
                                              "overlap-gemm op=gemm-reduce-scatter m=8192 n=4096 k=2048",
                                              "overlap-gemm op=all-gather-gemm m=2048 n=7168 k=4096",
                                              "overlap-gemm op=gemm-reduce-scatter m=2048 n=4096 k=7168",
                                              "overlap-gemm op=gemm-all-reduce m=8192 n=4096 k=7168",
                                              "overlap-gemm op=gemm-all-to-all m=4096 n=8192 k=4096",
                                              "overlap-gemm op=all-to-all-gemm m=4096 n=4096 k=8192",
                                              "overlap-gemm op=gemm-reduce-scatter m=4096 n=7168 k=8192 a=column b=row"};
  return lines;
}

constexpr const char* kOverlapColumns =
    "impl,op,dtype,ranks,m,n,k,ms_median,ms_min,burst_ms,tflops,clock_mhz,watts,hidden,hidden_burst,plan";

std::string optional_number(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "";
}

std::string commit_name() {
  const char* given = std::getenv("ORDO_COMMIT");
  return given != nullptr ? given : "unknown";
}

std::string times_line(const OverlapGemm& p, const measure::OverlapReport& report, const measure::OverlapTimes& times) {
  const bool ours = times.name == "ordo", product = times.name != "nccl";
  return fmt::format(
      "{},{},{},{},{},{},{},{:.5f},{:.5f},{:.5f},{},{},{},{},{},{}", times.name, to_string(p.op), to_string(p.dtype), p.ranks,
      p.m, p.n, p.k, times.steady.ms_median, times.steady.ms_min, times.burst_ms,
      product ? fmt::format("{:.1f}", p.flops() / times.steady.ms_median * 1e-9) : "", optional_number(times.steady.clock_mhz, 0),
      optional_number(times.steady.watts, 0), ours ? optional_number(report.hidden(), 4) : "",
      ours ? optional_number(report.hidden_burst(), 4) : "",
      ours ? fmt::format("\"{} overlaps={}\"", to_text(report.choice.plan), report.choice.overlap ? "yes" : "no") : "");
}

Json report_json(const OverlapGemm& problem, const measure::RankBench& with, const BenchOverlapOptions& options,
                 const measure::OverlapReport& report) {
  const auto optional = [](const std::optional<double>& x) { return x ? Json(*x) : Json(); };
  Json times = Json::array();
  for (const measure::OverlapTimes& one : report.times) {
    times.push_back({{"impl", one.name},
                     {"ms_median", one.steady.ms_median},
                     {"ms_min", one.steady.ms_min},
                     {"burst_ms", one.burst_ms},
                     {"sm_clock_mhz", optional(one.steady.clock_mhz)},
                     {"watts", optional(one.steady.watts)}});
  }
  return {{"problem", to_text(problem)},
          {"plan", to_text(report.choice.plan)},
          {"method", report.choice.overlap ? "overlapped" : "apart"},
          {"reason", report.choice.reason},
          {"predicted_ms", report.choice.predicted_ms},
          {"device", with.bench.facts().name},
          {"driver", with.bench.nvml() ? with.bench.nvml()->driver_version() : ""},
          {"commit", commit_name()},
          {"transport", to_string(with.communicator.transport())},
          {"policy", to_text(options.policy)},
          {"hidden", optional(report.hidden())},
          {"hidden_burst", optional(report.hidden_burst())},
          {"skipped", report.skipped},
          {"times", std::move(times)}};
}

/// Rank 0's output: a header, then lines as they come.
class OverlapOutput {
 public:
  static Result<OverlapOutput> open(const BenchOverlapOptions& options, const measure::RankBench& with) {
    OverlapOutput out(options, with);
    if (out.prints_ && !options.csv.empty()) {
      out.file_.reset(std::fopen(options.csv.c_str(), "w"));
      if (!out.file_) return Error{ErrorCode::io, fmt::format("--csv {}: cannot be written", options.csv)};
    }
    if (!options.json) {
      const auto& nvml = with.bench.nvml();
      out.line(fmt::format("# {} x {}, driver {}, ordo {} commit {}, transport {}; {}", with.communicator.ranks(),
                           with.bench.facts().name, nvml ? nvml->driver_version() : "unknown", ORDO_VERSION, commit_name(),
                           to_string(with.communicator.transport()), to_text(options.policy)));
      out.line(kOverlapColumns);
    }
    return out;
  }

  void add(const OverlapGemm& problem, const measure::OverlapReport& report) {
    if (!prints_) return;
    if (options_->json) {
      all_.push_back(report_json(problem, *with_, *options_, report));
      return;
    }
    for (const std::string& skipped : report.skipped) note("skipped " + skipped);
    for (const measure::OverlapTimes& times : report.times) line(times_line(problem, report, times));
  }
  void finish() const {
    if (prints_ && options_->json) print_json(all_);
  }

 private:
  OverlapOutput(const BenchOverlapOptions& options, const measure::RankBench& with)
      : options_(&options), with_(&with), prints_(with.communicator.rank() == 0) {}

  void line(const std::string& text) {
    if (!prints_) return;
    if (file_) {
      fmt::print(file_.get(), "{}\n", text);
      (void)std::fflush(file_.get());
    }
    print("{}\n", text);
    (void)std::fflush(stdout);
  }

  const BenchOverlapOptions* options_;
  const measure::RankBench* with_;
  bool prints_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, &std::fclose};
  Json all_ = Json::array();
};

Result<int> bench_rank(const BenchOverlapOptions& options, const measure::RankBench& with) {
  const auto problems = resolve_products(options, with.communicator.ranks(), bench_rows());
  if (!problems) return problems.error();
  compile_all(options, with, *problems, true);
  auto peers = measure::OverlapPeers::open(with, options.cublas);
  if (!peers) return peers.error();
  auto output = OverlapOutput::open(options, with);
  if (!output) return output.error();
  for (const OverlapGemm& problem : *problems) {
    auto how = resolve_how(options, problem, with.engine.target(), options.route_or_direct());
    if (!how) return how.error();
    auto report = measure::bench_overlap(with, *peers, problem, *how, options.policy, options.seed);
    if (!report) return Error{report.error().code, fmt::format("{}: {}", to_text(problem), report.error().message)};
    output->add(problem, *report);
  }
  output->finish();
  return kOk;
}

Result<int> bench_all_ranks(BenchOverlapOptions options) {
  if (options.warmup_seconds) options.policy.first_warm_ms = *options.warmup_seconds * 1e3;
  if (options.measure_seconds) options.policy.measure_ms = *options.measure_seconds * 1e3;
  if (auto valid = options.policy.validate(); !valid) return valid.error();
  return run_ranks(options, [&](const measure::RankBench& with) { return bench_rank(options, with); });
}

}  // namespace

Verb add_bench_overlap(CLI::App& app) {
  auto options = std::make_shared<BenchOverlapOptions>();
  CLI::App* verb = app.add_subcommand(
      "bench", "Time overlapped products beside our GEMM alone, our GEMM beside a copy, and NCCL with cuBLAS; prints CSV");
  add_overlap_run_options(*verb, *options);
  verb->add_option("--warmup", options->warmup_seconds, "Seconds of launches before the first measurement (2)")
      ->check(CLI::Range(0.0, 600.0))
      ->type_name("S");
  verb->add_option("--measure", options->measure_seconds, "Seconds of launches that are timed, of each subject (0.3)")
      ->check(CLI::Range(0.001, 600.0))
      ->type_name("S");
  verb->add_option("--rounds", options->policy.rounds, "Rounds, between which the subjects take turns (3)")
      ->check(kInteger)
      ->check(CLI::Range(1, 100))
      ->type_name("N");
  verb->add_option("--csv", options->csv, "Also write the CSV to this file")->type_name("FILE");
  verb->add_option("--cublas", options->cublas, "Path of libcublas.so (the loader's)")->type_name("FILE");
  verb->footer(
      "Examples:\n  ordo bench overlap --op all-gather-gemm --m 8192 --n 7168 --k 4096 --ranks 2\n"
      "  ordo launch -n 2 -- ordo bench overlap --suite --csv overlap.csv\n"
      "Times are the slowest rank's. hidden: the share of NCCL's time that overlapping hides, 1 - (ordo - ordo-gemm) / nccl.\n"
      "$ORDO_NCCL names another libnccl.so.2; $ORDO_COMMIT is put into the header.");
  return {verb, [options] { return bench_all_ranks(*options); }};
}

}  // namespace ordo::cli
