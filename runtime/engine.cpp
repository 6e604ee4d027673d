#include <fmt/format.h>

#include <exception>
#include <future>
#include <map>
#include <memory>
#include <mutex>

#include "ordo/ordo.hpp"
#include "runtime/calibration.hpp"
#include "runtime/device.hpp"
#include "runtime/kernel_builder.hpp"
#include "runtime/kernel_impl.hpp"
#include "runtime/plan_lock.hpp"
#include "runtime/plan_memo.hpp"

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

/// A calibration that cannot be used is no reason not to plan.
std::shared_ptr<const cost::Constants> load_calibration(const EngineOptions& options, const Target& target) {
  const std::optional<std::string> path = options.calibration_path.empty() ? calibration_path(target) : options.calibration_path;
  if (!path) return nullptr;
  auto constants = read_calibration(*path, target);
  if (constants) return *std::move(constants);
  if (options.warn) options.warn(constants.error().message + ". Planning with the constants that are shipped.");
  return nullptr;
}

}  // namespace

struct Engine::Impl {
  using Prepared = Result<std::shared_ptr<AttentionBackwardKernel::Impl>>;

  Target target;
  EngineOptions options;
  std::optional<PlanLock> pinned;
  std::shared_ptr<const cost::Constants> constants;  ///< of a calibration; null: those shipped
  PlanMemo plans;
  KernelBuilder builder;
  std::mutex mutex;
  /// By the plan's text. A future, so that of several threads that ask for one plan the first builds it and the others wait.
  std::map<std::string, std::shared_future<Prepared>> prepared;

  Impl(Target chosen, EngineOptions made_with, std::optional<PlanLock> plan_lock)
      : target(std::move(chosen)),
        options(std::move(made_with)),
        pinned(std::move(plan_lock)),
        constants(load_calibration(options, target)),
        builder({options.cache_path, options.memory_cache_only, options.warn, options.allow_spills}) {}

  Prepared build(const Plan& plan, const std::string& text) {
    Result<std::vector<KernelSource>> sources = generate(plan, target);
    if (!sources) return sources.error();
    Result<std::vector<BuiltKernel>> built = builder.build(*sources, text);
    if (!built) return built.error();
    std::vector<KernelReport> reports;
    std::vector<KernelImage> images;
    for (std::size_t i = 0; i < sources->size(); ++i) {
      KernelSource& source = (*sources)[i];
      const int cluster = source.name == "main" ? plan.cluster : 1;
      images.push_back(
          {source.name, source.entry, source.arch, source.threads, source.shared_bytes, cluster, std::move((*built)[i].cubin)});
      reports.push_back(std::move((*built)[i].report));
    }
    return std::make_shared<AttentionBackwardKernel::Impl>(
        AttentionBackwardKernel::Impl{plan, std::move(reports), KernelSet(std::move(images))});
  }

  Prepared prepare(const Plan& plan) {
    const std::string text = to_text(plan);
    std::promise<Prepared> promise;
    std::shared_future<Prepared> shared;
    {
      const std::scoped_lock lock(mutex);
      const auto [it, first] = prepared.try_emplace(text);
      if (first)
        it->second = promise.get_future().share();
      else
        shared = it->second;
    }
    if (shared.valid()) return shared.get();

    Prepared result = Error{ErrorCode::internal, "unset"};
    try {
      result = build(plan, text);
    } catch (const std::exception& exception) {  // out of memory, most likely; whoever waits must not wait for ever
      result = Error{ErrorCode::internal, fmt::format("Preparing '{}' failed: {}.", text, exception.what())};
    }
    if (!result) {  // not remembered: the next call tries again
      const std::scoped_lock lock(mutex);
      prepared.erase(text);
    }
    promise.set_value(result);
    return result;
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
  if (impl_->pinned) return impl_->pinned->plan(problem, request);
  if (const auto known = impl_->plans.find(problem, request)) return *known;
  PlanRequest asked = request;
  if (!asked.constants) asked.constants = impl_->constants;
  Result<PlanChoice> choice = make_plan(problem, impl_->target, asked);
  if (choice) impl_->plans.keep(problem, request, std::make_shared<const PlanChoice>(*choice));
  return choice;
}

Result<AttentionBackwardKernel> Engine::prepare(const Plan& plan) {
  if (Result<void> valid = plan.validate(); !valid) return valid.error();
  if (impl_->pinned)
    if (Result<void> listed = impl_->pinned->check(plan); !listed) return listed.error();
  Impl::Prepared kernel = impl_->prepare(plan);
  if (!kernel) return kernel.error();
  return AttentionBackwardKernel(*std::move(kernel));
}

}  // namespace ordo
