#include "tests/gpu/gpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace ordo::test {
namespace {

/// Before main: no test has opened the driver, and nobody has written.
[[maybe_unused]] const bool kPrepared = [] {
  // Simulated ranks wait for each other: with the usual 8 hardware queues, some would stand behind those that wait for them.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // so that a test that has to be killed leaves what it has said
  return true;
}();

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
  auto reference = ReferenceKernels::compile(**table);
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
