#include "tests/bench/suite/device.hpp"

#include <fmt/format.h>

#include <cstdio>

namespace ordo::bench {

Result<Device> Device::open(const std::string& cache) {
  auto table = ordo::driver();
  if (!table) return table.error();
  auto context = DeviceContext::open(0);
  if (!context) return context.error();
  EngineOptions options;
  options.cache_path = cache;
  options.memory_cache_only = cache.empty();
  options.warn = [](const std::string& message) { fmt::print(stderr, "warning: {}\n", message); };
  auto engine = Engine::create(std::move(options));
  if (!engine) return engine.error();
  auto reference = test::ReferenceKernels::compile(**table);
  if (!reference) return reference.error();
  auto stream = Stream::create();
  if (!stream) return stream.error();
  return Device{*table, *std::move(context), *std::move(engine), *std::move(reference), *std::move(stream), cli::Nvml::open(0)};
}

Result<Subject> Subject::create(Device& device, test::GpuProblem& problem, const AttentionBackwardKernel& kernel) {
  auto bytes = kernel.workspace_bytes(problem.problem());
  if (!bytes) return bytes.error();
  auto workspace = DeviceBuffer::allocate(*bytes);
  if (!workspace) return workspace.error();
  Subject subject(problem, kernel, device.stream);
  subject.workspace_ = *std::move(workspace);
  return subject;
}

Result<void> Subject::launch_poisoned(std::uint8_t byte) {
  if (auto ok = workspace_.fill(byte, stream()); !ok) return ok;
  if (auto ok = problem_->poison(stream()); !ok) return ok;
  if (auto ok = launch(); !ok) return ok;
  return stream_->synchronize();
}

}  // namespace ordo::bench
