// GEMM against cuBLAS in one process: ordo_gemm_bench --shapes 8192x7168x4096,... [--plan "overlap-plan ..."]...
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "ordo/overlap_kernel.hpp"
#include "tests/bench/gemm/cublas.hpp"
#include "tests/bench/gemm/timing.hpp"
#include "tests/gpu/gemm_problem.hpp"

namespace ordo::bench {
namespace {

/// The rows of the overlap study (tensor-parallel MLP, two ranks), two squares, and short ones. MxNxK.
constexpr const char* kShapes =
    "4096x7168x4096,4096x4096x7168,8192x7168x4096,8192x4096x7168,8192x14336x8192,8192x8192x14336,16384x14336x8192,"
    "16384x8192x14336,"
    "4096x4096x4096,8192x8192x8192,2048x7168x4096,2048x4096x7168,512x7168x4096,512x4096x7168";

struct Options {
  std::string shapes = kShapes;
  std::vector<std::string> plans;
  std::string cublas, csv;
  double warm_seconds = 2, seconds = 0.4;
  bool burst_only = false;
  int device = 0;
};

struct Contender {
  std::string name;
  Launch launch;
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
    auto table = driver();
    if (!table) return table.error();
    auto context = DeviceContext::open(options.device);
    if (!context) return context.error();
    EngineOptions engine_options;
    engine_options.memory_cache_only = true;
    auto engine = Engine::create(std::move(engine_options));
    if (!engine) return engine.error();
    auto kernels = test::compile_gemm_kernels(**table);
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
  Bench(Options options, DeviceContext context, Engine engine, test::ReferenceKernels kernels, Stream stream)
      : options_(std::move(options)),
        context_(std::move(context)),
        engine_(std::move(engine)),
        kernels_(std::move(kernels)),
        stream_(std::move(stream)),
        nvml_(measure::Nvml::open(options_.device)) {}

  Result<void> run_shape(const OverlapGemm& problem) {
    auto a = test::DeviceMatrix::create(problem.k, problem.m, 2, 0), b = test::DeviceMatrix::create(problem.k, problem.n, 2, 0);
    auto d = test::DeviceMatrix::create(problem.n, problem.m, 2, 0),
         expected = test::DeviceMatrix::create(problem.n, problem.m, 2, 0);
    for (const auto* made : {&a, &b, &d, &expected})
      if (!*made) return made->error();
    if (auto ok = a->fill_random(kernels_, problem.dtype, 1); !ok) return ok;
    if (auto ok = b->fill_random(kernels_, problem.dtype, 2); !ok) return ok;
    const OverlapGemmTensors tensors{a->view(), b->view(), d->view()};
    std::vector<Contender> contenders;
    if (cublas_)
      contenders.push_back({"cublas", [&, this](CUstream_st* stream) { return cublas_->multiply(problem, tensors, stream); }});
    for (const std::string& text : options_.plans) {
      auto plan = parse_overlap_plan(text);
      if (!plan) return plan.error();
      auto kernel = engine_.prepare(*plan);
      if (!kernel) return kernel.error();
      contenders.push_back(
          {text, [&, kernel = *kernel](CUstream_st* stream) { return kernel.launch(problem, tensors, stream); }});
    }
    for (const Contender& contender : contenders) {
      auto differing = once(contender, &contender == &contenders.front(), *d, *expected);
      if (!differing) return differing.error();
      GemmTiming timing;
      auto burst = burst_ms(contender.launch, stream_);
      if (!burst) return burst.error();
      timing.burst_ms = *burst;
      if (!options_.burst_only)
        if (auto ok = measure_steady(contender.launch, stream_, nvml_, options_.warm_seconds, options_.seconds, timing); !ok)
          return ok;
      print(problem, contender.name, timing, *differing);
    }
    return {};
  }

  /// Runs the contender into a poisoned D. The first one's D is kept as `expected`; the words in which a later one differs from
  /// it.
  Result<std::uint32_t> once(const Contender& contender, bool first, test::DeviceMatrix& d, test::DeviceMatrix& expected) {
    if (auto ok = d.poison(); !ok) return ok.error();
    if (auto ok = context_.synchronize(); !ok) return ok.error();
    if (auto ok = contender.launch(stream_.get()); !ok) return ok.error();
    if (auto ok = stream_.synchronize(); !ok) return ok.error();
    auto got = reinterpret_cast<CUdeviceptr>(d.buffer().data()), kept = reinterpret_cast<CUdeviceptr>(expected.buffer().data());
    const std::size_t bytes = d.buffer().bytes();
    const Driver& driver = kernels_.driver();
    if (first) {
      if (auto ok = driver.check(driver.memcpyDtoD(kept, got, bytes), "copy of D"); !ok) return ok.error();
      return 0u;
    }
    auto counter = DeviceBuffer::allocate(4);
    if (!counter) return counter.error();
    if (auto ok = counter->fill(0); !ok) return ok.error();
    auto words = static_cast<long long>(bytes / 4);
    void* out = counter->data();
    std::array<void*, 4> arguments{&got, &kept, &words, &out};
    if (auto ok = kernels_.launch(DType::bf16, "gemm_differ", {264, 1, 1}, 256, arguments.data()); !ok) return ok.error();
    std::uint32_t differing = 0;
    if (auto ok = counter->copy_to_host(&differing, 4); !ok) return ok.error();
    return differing;
  }

  void print(const OverlapGemm& problem, const std::string& name, const GemmTiming& t, std::uint32_t differing) {
    const auto rate = [&](double ms) { return ms > 0 ? problem.flops() / ms * 1e-9 : 0; };
    const std::string shape = fmt::format("{}x{}x{}", problem.m, problem.n, problem.k);
    fmt::print("{:>18} {:9.4f} {:7.1f} {:9.4f} {:7.1f} {:6.0f} {:6.0f} {:7}  {}\n", shape, t.burst_ms, rate(t.burst_ms),
               t.steady_ms, rate(t.steady_ms), t.clock_mhz, t.watts, differing, name);
    (void)std::fflush(stdout);
    if (csv_.is_open())
      csv_ << fmt::format("{},{},{},\"{}\",{:.5f},{:.1f},{:.5f},{:.1f},{:.0f},{:.0f},{}\n", problem.m, problem.n, problem.k, name,
                          t.burst_ms, rate(t.burst_ms), t.steady_ms, rate(t.steady_ms), t.clock_mhz, t.watts, differing)
           << std::flush;
  }

  Options options_;
  DeviceContext context_;
  Engine engine_;
  test::ReferenceKernels kernels_;
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
  app.add_option("--warm", options.warm_seconds, "seconds of launches before a steady measurement")->capture_default_str();
  app.add_option("--seconds", options.seconds, "of a steady measurement")->capture_default_str();
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
