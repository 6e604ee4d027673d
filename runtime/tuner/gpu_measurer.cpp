#include <fmt/format.h>

#include <utility>

#include "runtime/compiler.hpp"
#include "runtime/measure/event_stand.hpp"
#include "runtime/measure/prepare.hpp"
#include "runtime/measure/workbench.hpp"
#include "runtime/tuner/measurer.hpp"

namespace ordo::tuner {
namespace {

constexpr std::uint64_t kSeed = 1;

class GpuMeasurer : public Measurer {
 public:
  GpuMeasurer(Engine engine, measure::Workbench bench, cache::MeasuredOn where)
      : engine_(std::move(engine)), bench_(std::move(bench)), where_(std::move(where)) {}

  [[nodiscard]] cache::MeasuredOn where() const override { return where_; }

  [[nodiscard]] std::string device_id() const override {
    std::string uuid = bench_.nvml() ? bench_.nvml()->uuid() : "";
    return uuid.empty() ? fmt::format("{}-{}", bench_.facts().name, bench_.facts().index) : uuid;
  }

  [[nodiscard]] std::string disturbance() const override {
    const auto others = bench_.nvml() ? bench_.nvml()->other_processes() : std::nullopt;
    if (!others || *others == 0) return {};
    return fmt::format("{} other process{} on this GPU: measured times may be too long", *others,
                       *others == 1 ? " is" : "es are");
  }

  Result<std::vector<std::optional<Error>>> begin(const AttentionBackward& problem, std::span<const Plan> plans,
                                                  const MeasurementPolicy& policy,
                                                  const std::function<bool(double share)>& progress) override {
    end();
    if (auto current = bench_.context().make_current(); !current) return current.error();
    const measure::Prepared prepared = measure::prepare_all(engine_, plans, progress);
    auto made = bench_.random_problem(problem, kSeed);
    if (!made) return made.error();
    problem_ = std::make_unique<measure::DeviceProblem>(*std::move(made));
    auto stand = measure::EventStand::create(bench_.stream().get(), bench_.nvml(),
                                             policy.cold_l2 ? measure::flush_bytes(bench_.facts()) : 0);
    if (!stand) return stand.error();
    stand_ = std::make_unique<measure::EventStand>(*std::move(stand));
    measuring_.emplace(*stand_, policy);

    std::vector<std::optional<Error>> out;
    for (const Plan& plan : plans) {
      out.push_back(add(prepared, plan));
    }
    return out;
  }

  Result<measure::Sample> round(std::size_t index) override { return measuring_->round(index); }

  Result<void> alive() override { return bench_.context().synchronize(); }

 private:
  void end() {
    measuring_.reset();
    stand_.reset();
    problem_.reset();
  }

  /// Every plan gets a subject, so that their numbers agree, whether it can be launched or not.
  std::optional<Error> add(const measure::Prepared& prepared, const Plan& plan) {
    const auto found = prepared.find(to_text(plan));
    if (found == prepared.end()) {
      stand_->add([] { return Result<void>(Error{ErrorCode::internal, "not compiled"}); });
      return Error{ErrorCode::compile, "not compiled: stopped before"};
    }
    if (!found->second) {
      stand_->add([error = found->second.error()] { return Result<void>(error); });
      return found->second.error();
    }
    stand_->add([this, kernel = *found->second] { return problem_->launch(kernel); });
    if (auto ok = problem_->reserve(*found->second); !ok) return ok.error();
    return std::nullopt;
  }

  Engine engine_;
  measure::Workbench bench_;
  cache::MeasuredOn where_;
  std::unique_ptr<measure::DeviceProblem> problem_;
  std::unique_ptr<measure::EventStand> stand_;
  std::optional<measure::Measuring> measuring_;
};

}  // namespace

std::optional<cache::MeasuredOn> measured_on(const Target& target, int device) {
  const auto facts = device_facts(device);
  if (!facts) return std::nullopt;
  const auto nvml = measure::Nvml::open(device);
  std::string driver = nvml ? nvml->driver_version() : "";
  if (driver.empty()) driver = fmt::format("CUDA {}.{}", facts->driver_version / 1000, facts->driver_version % 1000 / 10);
  const auto compiler = Compiler::open();
  return cache::MeasuredOn{to_text(target), facts->name, facts->sm_count, std::move(driver),
                           compiler ? compiler->version().text() : ""};
}

Result<std::unique_ptr<Measurer>> make_gpu_measurer(Engine engine, int device) {
  if (auto compiler = Compiler::open(); !compiler) return compiler.error();
  const EngineOptions& options = engine.options();
  KernelBuilderOptions kernels;
  kernels.cache_path = options.cache_path;
  kernels.memory_cache_only = options.memory_cache_only;
  kernels.warn = options.warn;
  auto bench = measure::Workbench::open(device, std::move(kernels));
  if (!bench) return bench.error();
  auto where = measured_on(engine.target(), device);
  if (!where) return Error{ErrorCode::no_device, fmt::format("device {} is gone", device)};
  return std::unique_ptr<Measurer>(std::make_unique<GpuMeasurer>(std::move(engine), *std::move(bench), *std::move(where)));
}

}  // namespace ordo::tuner
