// ordo bench --overheads: what ordo costs beside the kernels. Host time of a launch over the bare driver calls, and the way from
// a cache file to a launched kernel.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "cli/bench/bare_launch.hpp"
#include "cli/bench/bench_options.hpp"
#include "cli/report.hpp"
#include "runtime/measure/measure.hpp"
#include "runtime/measure/workbench.hpp"

namespace ordo::cli {
namespace {

constexpr int kLaunches = 2000, kLaunchesInFlight = 32, kHitsHere = 11, kHitProcesses = 3;

class Stopwatch {
 public:
  [[nodiscard]] double ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

AttentionBackward small(Mask mask) {
  return {.batch = 1, .seqlen_q = 512, .seqlen_k = 512, .heads = 2, .kv_heads = 2, .head_dim = 128, .mask = mask};
}

/// Median host microseconds of `call`, with the stream never full: a full one blocks the host.
template <class Call>
Result<double> host_microseconds(const Stream& stream, Call call) {
  std::vector<double> times;
  for (int i = 0; i < kLaunches; ++i) {
    if (i % kLaunchesInFlight == 0)
      if (auto ok = stream.synchronize(); !ok) return ok.error();
    const Stopwatch watch;
    const auto called = call();
    times.push_back(watch.ms() * 1e3);
    if (!called) return called.error();
  }
  if (auto ok = stream.synchronize(); !ok) return ok.error();
  return measure::median(std::move(times));
}

struct LaunchCost {
  Accumulate accumulate;
  Schedule schedule;
  std::size_t kernels;
  double launch_us, bare_us;
};

Result<LaunchCost> measure_launch(measure::Workbench& bench, Engine& engine, Mask mask, Schedule schedule,
                                  Accumulate accumulate) {
  const AttentionBackward p = small(mask);
  PlanRequest request;
  request.schedule = schedule;
  request.accumulate = accumulate;
  auto choice = engine.plan(p, request);
  if (!choice) return choice.error();
  auto kernel = engine.prepare(choice->plan);
  if (!kernel) return kernel.error();
  auto problem = bench.random_problem(p, 1);
  if (!problem) return problem.error();
  if (auto ok = problem->reserve(*kernel); !ok) return ok.error();
  const auto launch = [&] { return problem->launch(*kernel); };
  if (auto ok = launch(); !ok) return ok.error();
  if (auto ok = problem->synchronize(); !ok) return ok.error();
  auto driver = ordo::driver();
  if (!driver) return driver.error();
  CUstream stream = bench.stream().get();
  auto bare = BareLaunch::capture(**driver, stream, launch);
  if (!bare) return bare.error();
  auto launch_us = host_microseconds(bench.stream(), launch);
  if (!launch_us) return launch_us.error();
  auto bare_us = host_microseconds(bench.stream(), [&] { return bare->launch(stream); });
  if (!bare_us) return bare_us.error();
  return LaunchCost{accumulate, schedule, bare->kernels(), *launch_us, *bare_us};
}

/// A problem of zeros in one allocation: for launches whose results nobody looks at, without any kernel but the plan's.
struct Zeros {
  AttentionBackward problem = small(Mask::causal);
  DeviceBuffer tensor, workspace;

  static Result<Zeros> create() {
    Zeros zeros;
    const AttentionBackward& p = zeros.problem;
    const auto bytes = static_cast<std::size_t>(p.batch * p.seqlen_q * p.heads * p.head_dim * 2);
    for (auto [buffer, size] : {std::pair{&zeros.tensor, bytes}, {&zeros.workspace, std::size_t{64} << 20}}) {
      auto made = DeviceBuffer::allocate(size);
      if (!made) return made.error();
      *buffer = *std::move(made);
      if (auto ok = buffer->fill(0); !ok) return ok.error();
    }
    return zeros;
  }

  Result<void> launch(const AttentionBackwardKernel& kernel, const Stream& stream) {
    const TensorView view = contiguous(tensor.data(), problem.seqlen_q, problem.heads, problem.head_dim);
    const AttentionBackwardTensors tensors{view, view, view, view, view, static_cast<const float*>(tensor.data()),
                                           view, view, view, 0.1f};
    return kernel.launch(problem, tensors, workspace.data(), workspace.bytes(), stream.get());
  }
};

struct CacheHit {
  double prepare_ms = 0;  ///< engine made, cache opened, cubins read and checked
  double launch_ms = 0;   ///< the first launch returns: modules loaded
  bool hit = false;
};

Result<AttentionBackwardKernel> prepare_from(const std::string& cache) {
  EngineOptions options;
  options.cache_path = cache;
  auto engine = Engine::create(std::move(options));
  if (!engine) return engine.error();
  PlanRequest request;
  request.schedule = Schedule::descending;
  auto choice = engine->plan(small(Mask::causal), request);
  if (!choice) return choice.error();
  return engine->prepare(choice->plan);
}

/// A cache hit as a new user of the file meets it. The context is there already, as in any program that computes.
Result<CacheHit> hit_cache(const std::string& cache, Zeros& zeros, const Stream& stream) {
  const Stopwatch watch;
  auto kernel = prepare_from(cache);
  if (!kernel) return kernel.error();
  CacheHit result;
  result.prepare_ms = watch.ms();
  result.hit = std::all_of(kernel->reports().begin(), kernel->reports().end(), [](const KernelReport& r) { return r.cache_hit; });
  const Stopwatch launch_watch;
  if (auto ok = zeros.launch(*kernel, stream); !ok) return ok.error();
  result.launch_ms = launch_watch.ms();
  if (auto ok = stream.synchronize(); !ok) return ok.error();
  return result;
}

Result<CacheHit> hits_here(const std::string& cache, const Stream& stream) {
  auto zeros = Zeros::create();
  if (!zeros) return zeros.error();
  std::vector<double> prepare, launch;
  bool all_hit = true;
  for (int i = 0; i < kHitsHere; ++i) {
    auto hit = hit_cache(cache, *zeros, stream);
    if (!hit) return hit.error();
    prepare.push_back(hit->prepare_ms);
    launch.push_back(hit->launch_ms);
    all_hit = all_hit && hit->hit;
  }
  return CacheHit{measure::median(prepare), measure::median(launch), all_hit};
}

std::string hit_line(std::string_view where, const CacheHit& hit) {
  return fmt::format("cache hit, {}: {:.2f} ms to prepared, {:.2f} ms more to the end of the first launch(){}\n", where,
                     hit.prepare_ms, hit.launch_ms, hit.hit ? "" : " (NOT ALL HITS)");
}

Json hit_json(const CacheHit& hit) {
  return {{"prepare_ms", hit.prepare_ms}, {"first_launch_ms", hit.launch_ms}, {"hit", hit.hit}};
}

/// A file that only this process and those it starts use, gone at the end.
struct TemporaryCache {
  std::string path = (std::filesystem::temp_directory_path() / fmt::format("ordo_bench_overheads_{}.db", ::getpid())).string();
  TemporaryCache() = default;
  TemporaryCache(const TemporaryCache&) = delete;
  TemporaryCache& operator=(const TemporaryCache&) = delete;
  ~TemporaryCache() {
    std::error_code ignored;
    for (const char* suffix : {"", "-journal", "-wal", "-shm"}) std::filesystem::remove(path + suffix, ignored);
  }
};

}  // namespace

Result<int> bench_cache_hit(const BenchOptions& options) {
  auto device = resolve_gpu(options, "ordo bench --overheads");
  if (!device) return device.error();
  auto context = DeviceContext::open(*device);
  if (!context) return context.error();
  auto stream = Stream::create();
  if (!stream) return stream.error();
  auto zeros = Zeros::create();
  if (!zeros) return zeros.error();
  if (auto ok = context->synchronize(); !ok) return ok.error();
  auto hit = hit_cache(options.cache_hit, *zeros, *stream);
  if (!hit) return hit.error();
  print("{}", hit_line("new process", *hit));
  return hit->hit ? kOk : kFailedCheck;
}

Result<int> bench_overheads(const BenchOptions& options) {
  auto device = resolve_gpu(options, "ordo bench --overheads");
  if (!device) return device.error();
  auto target = resolve_target(options);
  if (!target) return target.error();
  auto bench = measure::Workbench::open(*device, builder_options(options));
  if (!bench) return bench.error();
  auto engine = make_engine(options, *target);
  if (!engine) return engine.error();

  Json launches = Json::array();
  constexpr double kMostOverBareUs = 5;
  bool passed = true;
  for (const auto& [mask, schedule, accumulate] : {std::tuple{Mask::causal, Schedule::descending, Accumulate::ordered},
                                                   {Mask::full, Schedule::shift, Accumulate::ordered},
                                                   {Mask::full, Schedule::ascending, Accumulate::exact}}) {
    auto cost = measure_launch(*bench, *engine, mask, schedule, accumulate);
    if (!cost) return cost.error();
    const double over = cost->launch_us - cost->bare_us;
    passed = passed && over <= kMostOverBareUs;
    launches.push_back({{"accumulate", to_string(accumulate)},
                        {"schedule", to_string(schedule)},
                        {"kernels", cost->kernels},
                        {"launch_us", cost->launch_us},
                        {"bare_us", cost->bare_us},
                        {"over_bare_us", over}});
    if (!options.json)
      print("launch {:7} {:10} launch() {:6.2f} us, {} bare cuLaunchKernelEx {:6.2f} us, difference {:5.2f} us\n",
            to_string(accumulate), to_string(schedule), cost->launch_us, cost->kernels, cost->bare_us, over);
  }

  const TemporaryCache cache;
  if (auto filled = prepare_from(cache.path); !filled) return filled.error();
  auto here = hits_here(cache.path, bench->stream());
  if (!here) return here.error();
  passed = passed && here->hit;
  if (options.json) {
    print_json(
        {{"device", bench->facts().name}, {"launches", std::move(launches)}, {"cache_hit", hit_json(*here)}, {"passed", passed}});
    return passed ? kOk : kFailedCheck;
  }
  print("{}", hit_line("new engine in this process", *here));
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  for (int i = 0; i < kHitProcesses; ++i) {
    (void)std::fflush(stdout);
    const std::string command = fmt::format("'{}' bench --device {} --cache-hit '{}'", self, *device, cache.path);
    if (std::system(command.c_str()) != 0) return Error{ErrorCode::io, "the process that measures a cache hit failed"};
  }
  return passed ? kOk : kFailedCheck;
}

}  // namespace ordo::cli
