#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "codegen/schedule/visit_table.hpp"
#include "ordo/ordo.hpp"
#include "runtime/calibration.hpp"
#include "runtime/device.hpp"
#include "runtime/kernel_builder.hpp"
#include "runtime/kernel_impl.hpp"
#include "runtime/listed_plans.hpp"
#include "runtime/manifest.hpp"
#include "runtime/module_registry.hpp"
#include "runtime/once_map.hpp"
#include "runtime/overlap_kernel_impl.hpp"
#include "runtime/plan_lock.hpp"
#include "runtime/plan_memo.hpp"
#include "runtime/process.hpp"

namespace ordo {

TensorView contiguous(void* data, std::int64_t seqlen, std::int64_t heads, std::int64_t head_dim) {
  return {data, seqlen * heads * head_dim, heads * head_dim, head_dim};
}

AttentionBackwardKernel::AttentionBackwardKernel(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
const Plan& AttentionBackwardKernel::plan() const { return impl_->plan; }
const std::vector<KernelReport>& AttentionBackwardKernel::reports() const { return impl_->reports; }

Result<void> AttentionBackwardKernel::load(CUstream_st* stream) const {
  const Result<const LoadedKernels*> loaded = impl_->kernels.load(stream);
  if (!loaded) return loaded.error();
  return {};
}

Result<void> AttentionBackwardKernel::load(const AttentionBackward& problem, CUstream_st* stream) const {
  if (auto fits = check_fit(problem, impl_->plan); !fits) return fits;
  const Result<const LoadedKernels*> loaded = impl_->kernels.load(stream);
  if (!loaded) return loaded.error();
  if (!reads_table(impl_->plan)) return {};
  const auto table = impl_->arrival.get(**loaded, problem, impl_->plan, stream);
  return table ? Result<void>() : Result<void>(table.error());
}

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

Error sealed_error(const std::string& what, const std::string& plan) {
  return {
      ErrorCode::not_prepared,
      fmt::format(
          "The engine is sealed, and {} was not prepared before. Add it to the list that prepare() is given (ORDO_MANIFEST=FILE "
          "records what a run asks for). Its plan: {}",
          what, plan)};
}

}  // namespace

using Prepared = OnceMap<AttentionBackwardKernel::Impl>::Made;

struct Engine::Impl {
  Target target;
  EngineOptions options;
  std::optional<PlanLock> pinned;
  std::shared_ptr<const cost::Constants> constants;  ///< of a calibration; null: those shipped
  PlanMemo memo;
  KernelBuilder builder;
  Manifest manifest;
  std::shared_ptr<ModuleRegistry> modules = std::make_shared<ModuleRegistry>();
  OnceMap<AttentionBackwardKernel::Impl> plans;    ///< by the plan's text
  OnceMap<OverlapGemmKernel::Impl> overlap_plans;  ///< likewise
  std::atomic<bool> sealed{false};
  MadeIn process;

  Impl(Target chosen, EngineOptions made_with, std::optional<PlanLock> plan_lock)
      : target(std::move(chosen)),
        options(std::move(made_with)),
        pinned(std::move(plan_lock)),
        constants(calibration_of(options, target)),
        builder({.cache_path = options.cache_path,
                 .memory_cache_only = options.memory_cache_only,
                 .warn = options.warn,
                 .cache_layers = options.cache_layers,
                 .cache_limit_bytes = options.cache_limit_bytes,
                 .compile_jobs = options.compile_jobs,
                 .allow_spills = options.allow_spills}),
        manifest(options.manifest_path, options.warn),
        plans(options.max_plans),
        overlap_plans(options.max_plans) {}

  Prepared build(const Plan& plan, Flavour flavour, const std::string& text, const std::function<bool()>& cancelled) {
    Result<std::vector<KernelSource>> sources = generate(plan, target, flavour);
    if (!sources) return sources.error();
    Result<std::vector<BuiltKernel>> built = builder.build(*sources, text, cancelled);
    if (!built) return built.error();
    std::vector<KernelReport> reports;
    std::vector<KernelImage> images;
    for (std::size_t i = 0; i < sources->size(); ++i) {
      KernelSource& source = (*sources)[i];
      const int cluster = source.name == "main" ? plan.cluster : 1;
      images.push_back({source.name, source.entry, source.arch, source.threads, source.shared_bytes, cluster,
                        std::move((*built)[i].cubin), (*built)[i].report.cubin_sha256});
      reports.push_back(std::move((*built)[i].report));
    }
    return std::make_shared<AttentionBackwardKernel::Impl>(
        AttentionBackwardKernel::Impl{plan, flavour, std::move(reports), KernelSet(std::move(images), nullptr, modules), {}});
  }

  Result<std::shared_ptr<OverlapGemmKernel::Impl>> build(const OverlapPlan& plan, const std::string& text,
                                                         const std::function<bool()>& cancelled) {
    Result<KernelSource> source = generate(plan, target);
    if (!source) return source.error();
    Result<std::vector<BuiltKernel>> built = builder.build({*source}, text, cancelled);
    if (!built) return built.error();
    KernelReport report = std::move(built->front().report);
    std::vector<KernelImage> images;
    images.push_back({source->name, source->entry, source->arch, source->threads, source->shared_bytes, plan.cluster,
                      std::move(built->front().cubin), report.cubin_sha256});
    return std::make_shared<OverlapGemmKernel::Impl>(
        OverlapGemmKernel::Impl{plan, std::move(report), KernelSet(std::move(images), nullptr, modules)});
  }

  Result<std::shared_ptr<OverlapGemmKernel::Impl>> prepare(const OverlapPlan& plan, const std::function<bool()>& cancelled = {}) {
    if (Result<void> ours = process.check("This Engine"); !ours) return ours.error();
    if (Result<void> valid = plan.validate(); !valid) return valid.error();
    const std::string text = to_text(plan);
    if (sealed) {
      auto found = overlap_plans.find(text);
      if (!found) return sealed_error("this plan", text);
      return *std::move(found);
    }
    manifest.record(plan);
    return overlap_plans.get(text, [&] { return build(plan, text, cancelled); });
  }

  /// `what` names what was asked in the error of a sealed engine.
  Prepared prepare(const Plan& plan, Flavour flavour, const std::string& what, const std::function<bool()>& cancelled = {}) {
    if (Result<void> ours = process.check("This Engine"); !ours) return ours.error();
    if (Result<void> valid = plan.validate(); !valid) return valid.error();
    if (pinned)
      if (Result<void> listed = pinned->check(plan); !listed) return listed.error();
    const std::string text = to_text(plan) + (flavour == Flavour::stalls ? " flavour=stalls" : "");
    if (sealed) {
      std::optional<Prepared> found = plans.find(text);
      return found ? *std::move(found) : Prepared(sealed_error(what, text));
    }
    if (flavour == Flavour::normal) manifest.record(plan);
    return plans.get(text, [&] { return build(plan, flavour, text, cancelled); });
  }
};

/// One call of prepare(list).
struct PrepareList {
  Engine::Impl& engine;
  const std::vector<Plan>& plans;
  const std::vector<OverlapPlan>& overlap_plans;
  const PrepareOptions& options;
  bool has_context;
  std::size_t total = plans.size() + overlap_plans.size();

  std::atomic<std::size_t> next{0};
  std::mutex mutex = {};  // of what follows
  std::size_t done = 0;
  PrepareReport report = {};
  std::set<std::string> kernels = {}, compiled = {};
  std::optional<Error> failure = {};

  void one(const Plan& plan) {
    Prepared kernel = engine.prepare(plan, Flavour::normal, fmt::format("plan '{}'", to_text(plan)), options.cancelled);
    if (kernel)
      count((*kernel)->kernels, (*kernel)->reports);
    else
      failed(kernel.error());
  }
  void one(const OverlapPlan& plan) {
    auto kernel = engine.prepare(plan, options.cancelled);
    if (kernel)
      count((*kernel)->kernels, std::span(&(*kernel)->report, 1));
    else
      failed(kernel.error());
  }

  /// Loads, where that is wanted, and counts.
  void count(KernelSet& set, std::span<const KernelReport> reports) {
    if (has_context) {
      if (const Result<const LoadedKernels*> in_context = set.load(nullptr); !in_context) return failed(in_context.error());
    }
    const std::scoped_lock lock(mutex);
    for (const KernelReport& kernel : reports) {
      kernels.insert(kernel.key);
      if (!kernel.cache_hit) compiled.insert(kernel.key);
    }
    report.loaded += has_context ? 1 : 0;
    ++done;
    if (options.progress && !failure) options.progress(done, total);
  }

  void failed(Error error) {
    const std::scoped_lock lock(mutex);
    if (!failure) failure = std::move(error);
  }

  bool stopped() {
    const std::scoped_lock lock(mutex);
    return failure.has_value();
  }

  Result<PrepareReport> run() {
    const auto work = [&] {
      for (std::size_t i = next++; i < total && !stopped(); i = next++) {
        if (i < plans.size())
          one(plans[i]);
        else
          one(overlap_plans[i - plans.size()]);
      }
    };
    // A context is current on this thread alone: then it does all, and loads as it goes.
    const int threads = has_context ? 1 : options.threads > 0 ? options.threads : engine.builder.jobs();
    std::vector<std::thread> helpers;
    for (std::size_t t = 1; t < std::min(static_cast<std::size_t>(threads), total); ++t) {
      try {
        helpers.emplace_back(work);
      } catch (const std::system_error&) {  // no more threads to be had: those that are do it all
        break;
      }
    }
    work();
    for (std::thread& helper : helpers) helper.join();
    if (failure) return *failure;
    report.plans = total;
    report.kernels = kernels.size();
    report.compiled = compiled.size();
    return report;
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
  if (const auto known = impl_->memo.find(problem, request)) return *known;
  PlanRequest asked = request;
  if (!asked.constants) asked.constants = impl_->constants;
  Result<PlanChoice> choice = make_plan(problem, impl_->target, asked);
  if (choice) impl_->memo.keep(problem, request, std::make_shared<const PlanChoice>(*choice));
  return choice;
}

Result<OverlapGemmKernel> Engine::prepare(const OverlapPlan& plan) {
  auto kernel = impl_->prepare(plan);
  if (!kernel) return kernel.error();
  return OverlapGemmKernel(*std::move(kernel));
}

Result<AttentionBackwardKernel> Engine::prepare(const Plan& plan, Flavour flavour) {
  Prepared kernel = impl_->prepare(plan, flavour, "this plan");
  if (!kernel) return kernel.error();
  return AttentionBackwardKernel(*std::move(kernel));
}

Result<AttentionBackwardKernel> Engine::prepare(const AttentionBackward& problem, const PlanRequest& request) {
  const Result<PlanChoice> choice = plan(problem, request);
  if (!choice) return choice.error();
  Prepared kernel = impl_->prepare(choice->plan, Flavour::normal, fmt::format("'{}'", to_text(problem)));
  if (!kernel) return kernel.error();
  return AttentionBackwardKernel(*std::move(kernel));
}

Result<PrepareReport> Engine::prepare(const ShapeList& list, const PrepareOptions& options) {
  if (Result<void> ours = impl_->process.check("This Engine"); !ours) return ours.error();
  std::vector<std::pair<AttentionBackward, Plan>> tabled;  // problems whose launches read a table
  const Result<std::vector<Plan>> plans = plans_of(list, [&](const AttentionBackward& p, const PlanRequest& r) {
    Result<PlanChoice> choice = plan(p, r);
    if (choice && reads_table(choice->plan)) tabled.emplace_back(p, choice->plan);
    return choice;
  });
  if (!plans) return plans.error();
  const bool has_context = has_current_context();
  auto report = PrepareList{*impl_, *plans, list.overlap_plans, options, has_context}.run();
  if (!report || !has_context) return report;
  for (const auto& [problem, chosen] : tabled) {
    const auto kernel = prepare(chosen);
    if (!kernel) return kernel.error();
    if (auto loaded = kernel->load(problem); !loaded) return loaded.error();
  }
  return report;
}

void Engine::seal() { impl_->sealed = true; }

bool Engine::sealed() const { return impl_->sealed; }

CacheCounters Engine::counters() const { return impl_->builder.counters(); }

}  // namespace ordo
