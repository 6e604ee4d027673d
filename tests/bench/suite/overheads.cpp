#include "tests/bench/suite/overheads.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "tests/bench/suite/bare_launch.hpp"
#include "tests/gpu/deadline.hpp"
#include "tests/gpu/plans.hpp"

namespace ordo::bench {
namespace {

constexpr int kLaunches = 2000, kLaunchesInFlight = 32;

AttentionBackward small(Mask mask) {
  return {.batch = 1, .seqlen_q = 512, .seqlen_k = 512, .heads = 2, .kv_heads = 2, .head_dim = 128, .mask = mask};
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// Median host microseconds of `call`, with the stream never full: a full one blocks the host.
template <class Call>
Result<double> host_microseconds(const Subject& subject, const Driver& d, Call call) {
  std::vector<double> times;
  for (int i = 0; i < kLaunches; ++i) {
    if (i % kLaunchesInFlight == 0)
      if (auto ok = d.check(d.streamSynchronize(subject.stream()), "cuStreamSynchronize"); !ok) return ok.error();
    const test::Stopwatch watch;
    const auto called = call();
    times.push_back(watch.seconds() * 1e6);
    if (!called) return called.error();
  }
  if (auto ok = d.check(d.streamSynchronize(subject.stream()), "cuStreamSynchronize"); !ok) return ok.error();
  return median(std::move(times));
}

Result<void> print_launch(Device& device, Mask mask, Schedule schedule, Accumulate accumulate) {
  const AttentionBackward p = small(mask);
  auto plan = test::plan_with(p, device.engine.target(), schedule, accumulate, 2);
  if (!plan) return plan.error();
  auto kernel = device.engine.prepare(*plan);
  if (!kernel) return kernel.error();
  auto problem = test::GpuProblem::create(device.reference, p, 1, false);
  if (!problem) return problem.error();
  auto subject = Subject::create(device, *problem, *kernel);
  if (!subject) return subject.error();
  if (auto ok = device.context.synchronize(); !ok) return ok;
  if (auto ok = subject->launch_poisoned(0xff); !ok) return ok;
  auto bare = BareLaunch::capture(device, *subject);
  if (!bare) return bare.error();
  auto whole_us = host_microseconds(*subject, *device.driver, [&] { return subject->launch(); });
  if (!whole_us) return whole_us.error();
  auto bare_us = host_microseconds(*subject, *device.driver, [&] { return bare->launch(subject->stream()); });
  if (!bare_us) return bare_us.error();
  fmt::print("launch {:7} {:10} launch() {:6.2f} us, {} bare cuLaunchKernelEx {:6.2f} us, difference {:5.2f} us\n",
             to_string(accumulate), to_string(schedule), *whole_us, bare->kernels(), *bare_us, *whole_us - *bare_us);
  return {};
}

/// A problem of zeros in one allocation: for launches whose results nobody looks at, without kernels of the benchmark's own.
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

Result<Plan> cached_plan(const Target& target) {
  return test::plan_with(small(Mask::causal), target, Schedule::descending, Accumulate::ordered, 2);
}

struct CacheHit {
  double prepare_ms = 0;  ///< engine made, cache opened, cubins read and checked
  double launch_ms = 0;   ///< the first launch returns: modules loaded
  bool hit = false;
};

/// A cache hit as a new user of the file meets it. The context is there already, as in any program that computes.
Result<CacheHit> hit_cache(const std::string& cache, Zeros& zeros, const Stream& stream) {
  EngineOptions options;
  options.cache_path = cache;
  const test::Stopwatch watch;
  auto engine = Engine::create(std::move(options));
  if (!engine) return engine.error();
  auto plan = cached_plan(engine->target());
  if (!plan) return plan.error();
  auto kernel = engine->prepare(*plan);
  if (!kernel) return kernel.error();
  CacheHit result;
  result.prepare_ms = watch.seconds() * 1e3;
  result.hit = std::all_of(kernel->reports().begin(), kernel->reports().end(), [](const KernelReport& r) { return r.cache_hit; });
  const test::Stopwatch launch_watch;
  if (auto ok = zeros.launch(*kernel, stream); !ok) return ok.error();
  result.launch_ms = launch_watch.seconds() * 1e3;
  if (auto ok = stream.synchronize(); !ok) return ok.error();
  return result;
}

Result<void> fill_cache(const std::string& cache) {
  EngineOptions options;
  options.cache_path = cache;
  auto engine = Engine::create(std::move(options));
  if (!engine) return engine.error();
  auto plan = cached_plan(engine->target());
  if (!plan) return plan.error();
  if (auto kernel = engine->prepare(*plan); !kernel) return kernel.error();
  return {};
}

Result<void> print_hits_here(const std::string& cache, const Stream& stream) {
  auto zeros = Zeros::create();
  if (!zeros) return zeros.error();
  std::vector<double> prepare, launch;
  bool all_hit = true;
  for (int i = 0; i < 11; ++i) {
    auto hit = hit_cache(cache, *zeros, stream);
    if (!hit) return hit.error();
    prepare.push_back(hit->prepare_ms);
    launch.push_back(hit->launch_ms);
    all_hit = all_hit && hit->hit;
  }
  fmt::print("cache hit, new engine in this process: {:.2f} ms to prepared, {:.2f} ms more to the end of the first launch(){}\n",
             median(prepare), median(launch), all_hit ? "" : " (NOT ALL HITS)");
  return {};
}

}  // namespace

Result<void> print_cache_hit(const std::string& cache) {
  auto context = DeviceContext::open(0);
  if (!context) return context.error();
  auto stream = Stream::create();
  if (!stream) return stream.error();
  auto zeros = Zeros::create();
  if (!zeros) return zeros.error();
  if (auto ok = context->synchronize(); !ok) return ok;
  auto hit = hit_cache(cache, *zeros, *stream);
  if (!hit) return hit.error();
  fmt::print("cache hit, new process: {:.2f} ms to prepared, {:.2f} ms more to the end of the first launch(){}\n",
             hit->prepare_ms, hit->launch_ms, hit->hit ? "" : " (NO HIT)");
  return {};
}

Result<void> print_overheads(Device& device) {
  const test::Deadline deadline("overheads", 120);
  if (auto ok = print_launch(device, Mask::causal, Schedule::descending, Accumulate::ordered); !ok) return ok;
  if (auto ok = print_launch(device, Mask::full, Schedule::shift, Accumulate::ordered); !ok) return ok;
  if (auto ok = print_launch(device, Mask::full, Schedule::ascending, Accumulate::exact); !ok) return ok;

  const auto cache = std::filesystem::temp_directory_path() / fmt::format("ordo_bench_suite_{}.db", ::getpid());
  auto printed = fill_cache(cache.string());
  if (printed) printed = print_hits_here(cache.string(), device.stream);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  (void)std::fflush(stdout);
  for (int i = 0; printed && i < 3; ++i)
    if (std::system(fmt::format("'{}' --cache-hit '{}'", self, cache.string()).c_str()) != 0)
      printed = Error{ErrorCode::io, "the process that measures a cache hit failed"};
  for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(cache.string() + suffix);
  return printed;
}

}  // namespace ordo::bench
