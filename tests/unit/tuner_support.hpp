// A device of the tests' own for the tuner: fixed times, a clock that is a counter, and failures on demand.
#pragma once

#include <doctest/doctest.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ordo/tuner.hpp"
#include "runtime/tuner/tuner_impl.hpp"
#include "tests/unit/scratch.hpp"

namespace ordo::test {

inline cache::MeasuredOn h200() { return {"h200", "NVIDIA H200", 132, "580.159.04", "NVRTC 13.0.88"}; }

/// What a fake device does, shared by the test and its tuners.
struct FakeDevice {
  cache::MeasuredOn where = h200();
  std::string id = "fake-" + std::to_string(::getpid());
  std::function<double(const Plan&)> ms = [](const Plan&) { return 1.0; };
  std::function<void(int round)> before_round = [](int) {};  ///< counts all rounds from 0
  int lost_after = 1 << 30;                                  ///< rounds until the device is lost
  std::function<std::optional<Error>(const Plan&)> refuse = [](const Plan&) { return std::optional<Error>(); };
  std::string disturbance;
  int rounds = 0;
  std::vector<std::string> measured;  ///< plans, a round each
};

class FakeMeasurer : public tuner::Measurer {
 public:
  explicit FakeMeasurer(std::shared_ptr<FakeDevice> device) : device_(std::move(device)) {}

  [[nodiscard]] cache::MeasuredOn where() const override { return device_->where; }
  [[nodiscard]] std::string device_id() const override { return device_->id; }
  [[nodiscard]] std::string disturbance() const override { return device_->disturbance; }

  Result<std::vector<std::optional<Error>>> begin(const AttentionBackward&, std::span<const Plan> plans, const MeasurementPolicy&,
                                                  const std::function<bool(double)>& progress) override {
    plans_.assign(plans.begin(), plans.end());
    (void)progress(1);
    std::vector<std::optional<Error>> out;
    for (const Plan& plan : plans_) out.push_back(device_->refuse(plan));
    return out;
  }
  Result<measure::Sample> round(std::size_t index) override {
    device_->before_round(device_->rounds);
    if (device_->rounds >= device_->lost_after) return Error{ErrorCode::driver, "unspecified launch failure"};
    ++device_->rounds;
    device_->measured.push_back(to_text(plans_[index]));
    measure::Sample sample;
    sample.ms_median = device_->ms(plans_[index]);
    sample.ms_min = sample.ms_median * 0.99;
    sample.launches = 100;
    sample.clock_mhz = 1700;
    sample.watts = 690;
    return sample;
  }
  Result<void> alive() override {
    if (device_->rounds < device_->lost_after) return {};
    return Error{ErrorCode::no_device, "cuCtxSynchronize: device lost"};
  }

 private:
  std::shared_ptr<FakeDevice> device_;
  std::vector<Plan> plans_;
};

/// An engine for an H200 with its cache at `path`.
inline Engine engine_at(const std::string& path, std::vector<std::string>* warnings = nullptr) {
  EngineOptions options;
  options.cache_path = path;
  options.target = *parse_target("h200");
  if (warnings != nullptr) options.warn = [warnings](const std::string& text) { warnings->push_back(text); };
  auto engine = Engine::create(std::move(options));
  REQUIRE(engine.ok());
  return *std::move(engine);
}

inline Tuner tuner_at(const std::string& path, const std::shared_ptr<FakeDevice>& device,
                      std::vector<std::string>* warnings = nullptr) {
  tuner::Device here;
  if (device) {
    here.here = device->where;
    here.open = [device]() -> Result<std::unique_ptr<tuner::Measurer>> {
      return std::unique_ptr<tuner::Measurer>(std::make_unique<FakeMeasurer>(device));
    };
  }
  return Tuner(std::make_shared<Tuner::Impl>(engine_at(path, warnings), std::move(here)));
}

inline AttentionBackward causal(std::int64_t seqlen) {
  AttentionBackward p;
  p.batch = 2;
  p.seqlen_q = p.seqlen_k = seqlen;
  p.heads = p.kv_heads = 16;
  p.mask = Mask::causal;
  return p;
}

}  // namespace ordo::test
