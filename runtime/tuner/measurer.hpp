// What a tuning needs of a device. Tests bring their own, with a clock of their own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/measurements.hpp"
#include "ordo/measurement_policy.hpp"
#include "ordo/ordo.hpp"
#include "runtime/measure/measure.hpp"

namespace ordo::tuner {

class Measurer {
 public:
  Measurer() = default;
  Measurer(const Measurer&) = delete;
  Measurer& operator=(const Measurer&) = delete;
  virtual ~Measurer() = default;

  /// Where its times are measured.
  [[nodiscard]] virtual cache::MeasuredOn where() const = 0;
  /// Names the GPU among all of the machine, for DeviceLock.
  [[nodiscard]] virtual std::string device_id() const = 0;
  /// What disturbs measurements on the device just now; empty: nothing that is known of.
  [[nodiscard]] virtual std::string disturbance() const = 0;

  /// Gets ready to measure plans on a problem: compiles, makes inputs. `progress` as for measure::prepare_all. One entry a plan:
  /// why it cannot be measured, or nothing. Errors: nothing can be measured.
  virtual Result<std::vector<std::optional<Error>>> begin(const AttentionBackward& problem, std::span<const Plan> plans,
                                                          const MeasurementPolicy& policy,
                                                          const std::function<bool(double share)>& progress) = 0;
  /// One round of plan `index` of begin().
  virtual Result<measure::Sample> round(std::size_t index) = 0;
  /// An error when the device is lost, and no further measurement possible.
  virtual Result<void> alive() = 0;
};

/// Where times on this GPU are measured, found without a context; nullopt: no such GPU.
std::optional<cache::MeasuredOn> measured_on(const Target& target, int device);

/// On a GPU. Errors: no_device, driver, toolchain.
Result<std::unique_ptr<Measurer>> make_gpu_measurer(Engine engine, int device);

}  // namespace ordo::tuner
