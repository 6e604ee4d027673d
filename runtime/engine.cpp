#include <memory>

#include "ordo/ordo.hpp"
#include "runtime/device.hpp"
#include "runtime/kernel_builder.hpp"
#include "runtime/kernel_impl.hpp"
#include "runtime/once_map.hpp"
#include "runtime/overlap_kernel_impl.hpp"
#include "runtime/plan_lock.hpp"

namespace ordo {

TensorView contiguous(void* data, std::int64_t seqlen, std::int64_t heads, std::int64_t head_dim) {
  return {data, seqlen * heads * head_dim, heads * head_dim, head_dim};
}

AttentionBackwardKernel::AttentionBackwardKernel(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
const Plan& AttentionBackwardKernel::plan() const { return impl_->plan; }
const std::vector<KernelReport>& AttentionBackwardKernel::reports() const { return impl_->reports; }

namespace {

/// The option, else the current device, else an H200, which needs no device.
Result<Target> choose_target(const EngineOptions& options) {
  if (options.target) return *options.target;
  if (const Result<int> device = current_device()) {
    Result<Target> target = target_of_device(*device);
    if (target || target.error().code != ErrorCode::unsupported) return target;
    if (options.warn) options.warn(target.error().message + " Planning for h200.");
  }
  return parse_target("h200");
}

}  // namespace

struct Engine::Impl {
  using Prepared = std::shared_ptr<AttentionBackwardKernel::Impl>;
  using PreparedOverlap = std::shared_ptr<OverlapGemmKernel::Impl>;

  Target target;
  EngineOptions options;
  std::optional<PlanLock> pinned;
  KernelBuilder builder;
  OnceMap<Prepared> prepared;  ///< by the plan's text
  OnceMap<PreparedOverlap> prepared_overlap;

  Impl(Target chosen, EngineOptions made_with, std::optional<PlanLock> plan_lock)
      : target(std::move(chosen)),
        options(std::move(made_with)),
        pinned(std::move(plan_lock)),
        builder({options.cache_path, options.memory_cache_only, options.warn}) {}

  Result<Prepared> build(const Plan& plan, const std::string& text) {
    Result<std::vector<KernelSource>> sources = generate(plan, target);
    if (!sources) return sources.error();
    Result<std::vector<BuiltKernel>> built = builder.build(*sources, text);
    if (!built) return built.error();
    std::vector<KernelReport> reports;
    std::vector<KernelImage> images;
    for (std::size_t i = 0; i < sources->size(); ++i) {
      const KernelSource& source = (*sources)[i];
      images.push_back(image_of(source, source.name == "main" ? plan.cluster : 1, std::move((*built)[i].cubin)));
      reports.push_back(std::move((*built)[i].report));
    }
    return std::make_shared<AttentionBackwardKernel::Impl>(
        AttentionBackwardKernel::Impl{plan, std::move(reports), KernelSet(std::move(images))});
  }

  Result<PreparedOverlap> build(const OverlapPlan& plan, const std::string& text) {
    Result<KernelSource> source = generate(plan, target);
    if (!source) return source.error();
    Result<std::vector<BuiltKernel>> built = builder.build({*source}, text);
    if (!built) return built.error();
    KernelReport report = std::move(built->front().report);
    std::vector<KernelImage> images;
    images.push_back(image_of(*source, plan.cluster, std::move(built->front().cubin)));
    return std::make_shared<OverlapGemmKernel::Impl>(
        OverlapGemmKernel::Impl{plan, std::move(report), KernelSet(std::move(images))});
  }

  static KernelImage image_of(const KernelSource& source, int cluster, std::vector<std::byte> cubin) {
    return {source.name, source.entry, source.arch, source.threads, source.shared_bytes, cluster, std::move(cubin)};
  }
};

Engine::Engine(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<Engine> Engine::create(EngineOptions options) {
  Result<Target> target = choose_target(options);
  if (!target) return target.error();
  std::optional<PlanLock> lock;
  if (!options.lock_file.empty()) {
    auto read = PlanLock::read(options.lock_file, *target);
    if (!read) return read.error();
    lock = *std::move(read);
  }
  return Engine(std::make_shared<Impl>(*std::move(target), std::move(options), std::move(lock)));
}

const Target& Engine::target() const { return impl_->target; }
const EngineOptions& Engine::options() const { return impl_->options; }

Result<PlanChoice> Engine::plan(const AttentionBackward& problem, const PlanRequest& request) const {
  return impl_->pinned ? impl_->pinned->plan(problem, request) : make_plan(problem, impl_->target, request);
}

Result<AttentionBackwardKernel> Engine::prepare(const Plan& plan) {
  if (Result<void> valid = plan.validate(); !valid) return valid.error();
  if (impl_->pinned)
    if (Result<void> listed = impl_->pinned->check(plan); !listed) return listed.error();
  const std::string text = to_text(plan);
  Result<Impl::Prepared> kernel = impl_->prepared.get(text, [&] { return impl_->build(plan, text); });
  if (!kernel) return kernel.error();
  return AttentionBackwardKernel(*std::move(kernel));
}

Result<OverlapGemmKernel> Engine::prepare(const OverlapPlan& plan) {
  if (Result<void> valid = plan.validate(); !valid) return valid.error();
  const std::string text = to_text(plan);
  Result<Impl::PreparedOverlap> kernel = impl_->prepared_overlap.get(text, [&] { return impl_->build(plan, text); });
  if (!kernel) return kernel.error();
  return OverlapGemmKernel(*std::move(kernel));
}

}  // namespace ordo
