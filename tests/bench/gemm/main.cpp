// GEMM against cuBLAS in one process: ordo_gemm_bench --shapes 8192x7168x4096,... [--plan "overlap-plan ..."]...
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "ordo/overlap_kernel.hpp"
#include "runtime/measure/cublas.hpp"
#include "runtime/measure/event_stand.hpp"
#include "runtime/measure/gemm_reference.hpp"

namespace ordo::bench {
namespace {

using measure::Cublas;
using measure::DeviceMatrix;
using measure::HelperKernels;

/// The rows of the overlap study (tensor-parallel MLP, two ranks), two squares, and short ones. MxNxK.
constexpr const char* kShapes =
    "4096x7168x4096,4096x4096x7168,8192x7168x4096,8192x4096x7168,8192x14336x8192,8192x8192x14336,16384x14336x8192,"
    "16384x8192x14336,"
    "4096x4096x4096,8192x8192x8192,2048x7168x4096,2048x4096x7168,512x7168x4096,512x4096x7168";

struct Options {
  std::string shapes = kShapes;
  std::vector<std::string> plans;
  std::string cublas, csv;
  double warm_seconds = 2, seconds = 0.8;  // power takes some 1.5 s to settle
  int rounds = 2;
  bool burst_only = false;
  int device = 0;
};

struct Contender {
  std::string name;
  std::function<Result<void>()> launch;  ///< on the stream of the bench
};

struct Timing {
  double burst_ms = 0;
  measure::Sample steady;  ///< 0 ms: not measured
};

Result<std::vector<OverlapGemm>> parse_shapes(const std::string& text) {
  std::vector<OverlapGemm> problems;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string one = text.substr(begin, end - begin);
    OverlapGemm problem;
    long long m = 0, n = 0, k = 0;
    if (std::sscanf(one.c_str(), "%lldx%lldx%lld", &m, &n, &k) != 3)  // NOLINT(cert-err34-c): the count says whether it was read
      return Error{ErrorCode::invalid_argument, fmt::format("shape '{}' is not MxNxK", one)};
    problem.m = m;
    problem.n = n;
    problem.k = k;
    if (auto ok = problem.validate(); !ok) return ok.error();
    problems.push_back(problem);
    begin = end + 1;
  }
  return problems;
}

class Bench {
 public:
  static Result<Bench> create(Options options) {
    auto context = DeviceContext::open(options.device);
    if (!context) return context.error();
    EngineOptions engine_options;
    engine_options.memory_cache_only = true;
    auto engine = Engine::create(std::move(engine_options));
    if (!engine) return engine.error();
    KernelBuilderOptions helper_options;
    helper_options.memory_cache_only = true;
    auto kernels = HelperKernels::create(helper_options);
    if (!kernels) return kernels.error();
    auto stream = Stream::create();
    if (!stream) return stream.error();
    Bench bench(std::move(options), *std::move(context), *std::move(engine), *std::move(kernels), *std::move(stream));
    if (auto cublas = Cublas::open(bench.options_.cublas)) {
      bench.cublas_ = *std::move(cublas);
    } else {
      fmt::print(stderr, "without cuBLAS: {}\n", cublas.error().message);
    }
    return bench;
  }

  Result<void> run() {
    const auto problems = parse_shapes(options_.shapes);
    if (!problems) return problems.error();
    if (!options_.csv.empty()) {
      csv_.open(options_.csv);
      if (!csv_) return Error{ErrorCode::io, fmt::format("cannot write {}", options_.csv)};
      csv_ << "m,n,k,name,burst_ms,burst_tflops,steady_ms,steady_tflops,clock_mhz,watts,differing_words\n";
    }
    fmt::print("{} cuBLAS {}\n{:>18} {:>9} {:>7} {:>9} {:>7} {:>6} {:>6} {:>7}  {}\n", context_.facts().name,
               cublas_ ? cublas_->version() : 0, "MxNxK", "burst ms", "TF/s", "steady ms", "TF/s", "MHz", "W", "differ", "what");
    for (const OverlapGemm& problem : *problems)
      if (auto ok = run_shape(problem); !ok) return ok;
    return {};
  }

 private:
  Bench(Options options, DeviceContext context, Engine engine, HelperKernels kernels, Stream stream)
      : options_(std::move(options)),
        context_(std::move(context)),
        engine_(std::move(engine)),
        kernels_(std::move(kernels)),
        stream_(std::move(stream)),
        nvml_(measure::Nvml::open(options_.device)) {}

  Result<void> run_shape(const OverlapGemm& problem) {
    auto a = DeviceMatrix::create(problem.k, problem.m, 2, 0), b = DeviceMatrix::create(problem.k, problem.n, 2, 0);
    auto d = DeviceMatrix::create(problem.n, problem.m, 2, 0), expected = DeviceMatrix::create(problem.n, problem.m, 2, 0);
    for (const auto* made : {&a, &b, &d, &expected})
      if (!*made) return made->error();
    if (auto ok = a->fill_random(kernels_, problem.dtype, 1); !ok) return ok;
    if (auto ok = b->fill_random(kernels_, problem.dtype, 2); !ok) return ok;
    const OverlapGemmTensors tensors{a->view(), b->view(), d->view()};
    std::vector<Contender> contenders;
    if (cublas_) contenders.push_back({"cublas", [&, this] { return cublas_->multiply(problem, tensors, stream_.get()); }});
    for (const std::string& text : options_.plans) {
      auto plan = parse_overlap_plan(text);
      if (!plan) return plan.error();
      auto kernel = engine_.prepare(*plan);
      if (!kernel) return kernel.error();
      contenders.push_back({text, [&, this, kernel = *kernel] { return kernel.launch(problem, tensors, stream_.get()); }});
    }
    auto stand = measure::EventStand::create(stream_.get(), nvml_);
    if (!stand) return stand.error();
    measure::Measuring measuring(*stand, policy());
    std::vector<std::size_t> subjects;
    std::vector<std::uint64_t> differing;
    std::vector<Timing> timings(contenders.size());
    for (const Contender& contender : contenders) {
      auto words = once(contender, differing.empty(), *d, *expected);
      if (!words) return words.error();
      differing.push_back(*words);
      subjects.push_back(stand->add(contender.launch));
    }
    for (std::size_t i = 0; i < subjects.size(); ++i) {
      auto burst = measuring.burst(subjects[i]);
      if (!burst) return burst.error();
      timings[i].burst_ms = *burst;
    }
    if (!options_.burst_only) {
      const auto steady = measuring.rounds(subjects);
      if (!steady) return steady.error();
      for (std::size_t i = 0; i < subjects.size(); ++i) timings[i].steady = (*steady)[i];
    }
    for (std::size_t i = 0; i < contenders.size(); ++i) print(problem, contenders[i].name, timings[i], differing[i]);
    return {};
  }

  [[nodiscard]] MeasurementPolicy policy() const {
    MeasurementPolicy policy;
    policy.first_warm_ms = policy.warm_ms = policy.round_warm_ms = options_.warm_seconds * 1e3;
    policy.measure_ms = options_.seconds * 1e3;
    policy.rounds = options_.rounds;
    return policy;
  }

  /// Runs the contender into a poisoned D. The first one's D is kept as `expected`; the words in which a later one differs from
  /// it.
  Result<std::uint64_t> once(const Contender& contender, bool first, DeviceMatrix& d, DeviceMatrix& expected) {
    if (auto ok = d.poison(stream_.get()); !ok) return ok.error();
    if (auto ok = contender.launch(); !ok) return ok.error();
    if (auto ok = stream_.synchronize(); !ok) return ok.error();
    if (!first) return kernels_.count_differing_words(d.buffer(), expected.buffer(), stream_.get());
    std::vector<unsigned char> bytes(d.buffer().bytes());
    if (auto ok = d.buffer().copy_to_host(bytes.data(), bytes.size()); !ok) return ok.error();
    if (auto ok = expected.buffer().copy_from_host(bytes.data(), bytes.size()); !ok) return ok.error();
    return std::uint64_t{0};
  }

  void print(const OverlapGemm& problem, const std::string& name, const Timing& t, std::uint64_t differing) {
    const auto rate = [&](double ms) { return ms > 0 ? problem.flops() / ms * 1e-9 : 0; };
    const double ms = t.steady.ms_median, clock = t.steady.clock_mhz.value_or(0), watts = t.steady.watts.value_or(0);
    const std::string shape = fmt::format("{}x{}x{}", problem.m, problem.n, problem.k);
    fmt::print("{:>18} {:9.4f} {:7.1f} {:9.4f} {:7.1f} {:6.0f} {:6.0f} {:7}  {}\n", shape, t.burst_ms, rate(t.burst_ms), ms,
               rate(ms), clock, watts, differing, name);
    (void)std::fflush(stdout);
    if (csv_.is_open())
      csv_ << fmt::format("{},{},{},\"{}\",{:.5f},{:.1f},{:.5f},{:.1f},{:.0f},{:.0f},{}\n", problem.m, problem.n, problem.k, name,
                          t.burst_ms, rate(t.burst_ms), ms, rate(ms), clock, watts, differing)
           << std::flush;
  }

  Options options_;
  DeviceContext context_;
  Engine engine_;
  HelperKernels kernels_;
  Stream stream_;
  std::optional<measure::Nvml> nvml_;
  std::optional<Cublas> cublas_;
  std::ofstream csv_;
};

}  // namespace
}  // namespace ordo::bench

int main(int argc, char** argv) {
  ordo::bench::Options options;
  CLI::App app{"GEMM against cuBLAS: milliseconds, TFLOP/s, clocks and watts, rested (burst) and hot (steady)"};
  app.add_option("--shapes", options.shapes, "MxNxK, comma-separated")->capture_default_str();
  app.add_option("--plan", options.plans, "an overlap-plan text; repeat for several")->take_all();
  app.add_option("--cublas", options.cublas, "path of libcublas.so; default: the loader's");
  app.add_option("--csv", options.csv, "also write this file");
  app.add_option("--warm", options.warm_seconds, "seconds of launches before each round of a steady measurement")
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "of a steady measurement")->capture_default_str();
  app.add_option("--rounds", options.rounds, "of a steady measurement, in which the contenders take turns")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--device", options.device, "CUDA device")->capture_default_str();
  app.add_flag("--burst-only", options.burst_only, "no steady measurement");
  CLI11_PARSE(app, argc, argv);
  if (options.plans.empty()) options.plans.emplace_back("overlap-plan");
  auto bench = ordo::bench::Bench::create(std::move(options));
  if (!bench) {
    fmt::print(stderr, "{}\n", bench.error().message);
    return 3;
  }
  if (auto ran = bench->run(); !ran) {
    fmt::print(stderr, "{}\n", ran.error().message);
    return 1;
  }
  return 0;
}
