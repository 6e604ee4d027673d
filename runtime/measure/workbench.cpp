#include "runtime/measure/workbench.hpp"

#include <fmt/format.h>

#include <utility>

namespace ordo::measure {

Workbench::Workbench(DeviceContext context, Stream stream, std::optional<Nvml> nvml, KernelBuilderOptions options)
    : context_(std::move(context)), stream_(std::move(stream)), nvml_(std::move(nvml)), options_(std::move(options)) {}

Result<Workbench> Workbench::open(int device, KernelBuilderOptions options) {
  auto context = DeviceContext::open(device);
  if (!context) return context.error();
  auto stream = Stream::create();
  if (!stream) return stream.error();
  return Workbench(*std::move(context), *std::move(stream), Nvml::open(device), std::move(options));
}

Result<HelperKernels> Workbench::helpers() {
  if (helpers_) return *helpers_;
  auto made = HelperKernels::create(options_);
  if (made) helpers_ = *made;
  return made;
}

Result<AttentionForward> Workbench::forward(const AttentionBackward& problem) {
  const std::string key = fmt::format("{} {} {}", to_string(problem.dtype), problem.head_dim, to_string(problem.mask));
  if (const auto found = forwards_.find(key); found != forwards_.end()) return found->second;
  auto made = AttentionForward::create(problem, options_);
  if (made) forwards_.emplace(key, *made);
  return made;
}

Result<DeviceProblem> Workbench::random_problem(const AttentionBackward& problem, std::uint64_t seed) {
  auto kernels = helpers();
  if (!kernels) return kernels.error();
  auto belonging = forward(problem);
  if (!belonging) return belonging.error();
  auto made = DeviceProblem::random(problem, seed, *kernels, stream_.get());
  if (!made) return made.error();
  if (auto ok = made->run_forward(*belonging); !ok) return ok.error();
  if (auto ok = made->synchronize(); !ok) return ok.error();
  return made;
}

}  // namespace ordo::measure
