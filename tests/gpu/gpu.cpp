#include "tests/gpu/gpu.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/compiler.hpp"
#include "tests/gpu/reference_source.hpp"

namespace ordo::test {
namespace {

[[noreturn]] void stop(int status, const std::string& message) {
  fmt::print("{}\n", message);
  (void)std::fflush(stdout);
  ::_exit(status);  // no destructors: they would wait for the device
}

/// The thread behind every Deadline.
class Watcher {
 public:
  static Watcher& instance() {
    static auto* watcher = new Watcher;  // lives as long as its thread, which nobody joins
    return *watcher;
  }

  void push(std::string what, double seconds) {
    const std::scoped_lock lock(mutex_);
    entries_.push_back({std::move(what), seconds, {}});
    changed_.notify_one();
  }
  void pop() {
    const std::scoped_lock lock(mutex_);
    entries_.pop_back();
    if (!entries_.empty()) entries_.back().watch = {};
  }

 private:
  struct Entry {
    std::string what;
    double seconds;
    Stopwatch watch;
  };

  Watcher() {
    std::thread([this] { run(); }).detach();
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait_for(lock, std::chrono::milliseconds(100));
      if (entries_.empty() || entries_.back().watch.seconds() < entries_.back().seconds) continue;
      stop(3, fmt::format("WATCHDOG: no end after {} s: {}", entries_.back().seconds, entries_.back().what));
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> entries_;
};

Result<ReferenceKernels> compile_reference(const Driver& driver) {
  auto compiler = Compiler::open();
  if (!compiler) return compiler.error();
  std::array<std::string, 2> cubins;
  for (std::size_t half = 0; half < 2; ++half) {
    // The entry is any one of them; the compiler wants to know that it exists.
    const KernelSource source{"reference", "ref_dq", fmt::format("#define HALF {}\n{}", half, kReferenceSource),
                              "sm_90a",    128,      0};
    auto cubin = compiler->compile(source, true);
    if (!cubin) return cubin.error();
    cubins[half].assign(reinterpret_cast<const char*>(cubin->bytes.data()), cubin->bytes.size());
  }
  return ReferenceKernels::load(driver, cubins);
}

Result<Gpu*> open_gpu() {
  auto table = driver();
  if (!table) return table.error();
  auto context = DeviceContext::open(0);
  if (!context) return context.error();
  // Kernels of the tests stay out of the user's cache, unless a cache made for them is named.
  EngineOptions options;
  options.memory_cache_only = std::getenv("ORDO_CACHE") == nullptr;
  options.warn = [](const std::string& message) { fmt::print("warning: {}\n", message); };
  auto engine = Engine::create(std::move(options));
  if (!engine) return engine.error();
  auto reference = compile_reference(**table);
  if (!reference) return reference.error();
  auto stream = Stream::create();
  auto other = Stream::create();
  auto another = Stream::create();
  auto sink = DeviceBuffer::allocate(256);
  if (!stream) return stream.error();
  if (!other) return other.error();
  if (!another) return another.error();
  if (!sink) return sink.error();
  return new Gpu{*table,
                 *std::move(context),
                 *std::move(engine),
                 *std::move(reference),
                 *std::move(stream),
                 {*std::move(other), *std::move(another)},
                 *std::move(sink)};
}

}  // namespace

Deadline::Deadline(std::string what, double seconds) { Watcher::instance().push(std::move(what), seconds); }
Deadline::~Deadline() { Watcher::instance().pop(); }

Result<void> Gpu::disturb(const Disturbance& disturbance, const Stream& on) {
  long long clocks = disturbance.clocks;
  void* out = sink.data();
  std::array<void*, 2> arguments{&clocks, &out};
  return reference.launch(DType::bf16, "ref_disturb", {disturbance.blocks, 1, 1}, disturbance.threads, arguments.data(), on.get(),
                          std::max(disturbance.shared_bytes, 128u));
}

Gpu* gpu() {
  static const Result<Gpu*> opened = [] {
    const Deadline deadline("opening the device and compiling the reference", 120);
    Result<Gpu*> result = open_gpu();
    if (result) {
      const DeviceFacts& facts = (*result)->context.facts();
      fmt::print("{}, {} SMs, driver CUDA {}.{}\n", facts.name, facts.sm_count, facts.driver_version / 1000,
                 facts.driver_version % 1000 / 10);
    } else if (result.error().code == ErrorCode::no_device) {
      fmt::print("skipped: no GPU\n");
    }
    (void)std::fflush(stdout);
    return result;
  }();
  if (opened) return *opened;
  if (opened.error().code != ErrorCode::no_device) FAIL(opened.error().message);
  return nullptr;
}

void check_context(Gpu& device, const std::string& what) {
  if (auto alive = device.context.synchronize(); !alive)
    stop(4, fmt::format("CONTEXT LOST: {}\n  after: {}", alive.error().message, what));
}

Kernels prepare_all(Engine& engine, std::span<const Plan> plans, int& failures) {
  std::vector<std::string> texts;
  for (const Plan& plan : plans) texts.push_back(to_text(plan));
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());

  Kernels kernels;
  std::mutex mutex;
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < texts.size(); i = next++) {
      auto kernel = engine.prepare(*parse_plan(texts[i]));
      const std::scoped_lock lock(mutex);
      if (kernel) {
        kernels.emplace(texts[i], *std::move(kernel));
      } else {
        ++failures;
        fmt::print("NOT COMPILED {}\n  {}\n", texts[i], kernel.error().message);
      }
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  threads.clear();
  return kernels;
}

Result<Run> Run::create(Gpu& device, const GpuProblem& problem, const AttentionBackwardKernel& kernel) {
  auto bytes = kernel.workspace_bytes(problem.problem());
  if (!bytes) return bytes.error();
  auto workspace = DeviceBuffer::allocate(*bytes);
  if (!workspace) return workspace.error();
  Run run(device, kernel);
  run.workspace_ = *std::move(workspace);
  return run;
}

Result<void> Run::enqueue(GpuProblem& problem, std::uint64_t noise, const Stream& stream) {
  if (noise == 0) {
    if (auto ok = workspace_.fill(0xff, stream.get()); !ok) return ok;
  } else {
    void* out = workspace_.data();
    auto words = static_cast<long long>(workspace_.bytes() / 4);
    std::array<void*, 3> arguments{&out, &words, &noise};
    if (auto ok = device_->reference.launch(DType::bf16, "ref_noise", {264, 1, 1}, 256, arguments.data(), stream.get()); !ok)
      return ok;
  }
  if (auto ok = problem.poison(stream.get()); !ok) return ok;
  return kernel_.launch(problem.problem(), problem.tensors(), workspace_.data(), workspace_.bytes(), stream.get());
}

Result<void> Run::operator()(GpuProblem& problem, std::uint64_t noise) {
  // The problem was made on the default stream, which the tests' streams do not wait for.
  if (auto ok = device_->context.synchronize(); !ok) return ok;
  if (auto ok = enqueue(problem, noise, device_->stream); !ok) return ok;
  return device_->stream.synchronize();
}

std::string describe(const AttentionBackward& problem, const Plan& plan) {
  return fmt::format("{} | schedule={} accumulate={} cluster={} workers={} head_group={} shift_stride={} static={}",
                     to_text(problem), to_string(plan.schedule), to_string(plan.accumulate), plan.cluster, plan.workers,
                     plan.head_group, plan.shift_stride, plan.static_shape.has_value());
}

Result<std::uint64_t> hash_outputs(const GpuProblem& problem) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (int i = 0; i < 3; ++i) {
    const DeviceBuffer& output = problem.output(i);
    std::vector<unsigned char> bytes(output.bytes());
    if (auto ok = output.copy_to_host(bytes.data(), bytes.size()); !ok) return ok.error();
    for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3ull;
  }
  return hash;
}

}  // namespace ordo::test
