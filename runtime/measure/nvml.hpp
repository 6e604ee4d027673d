// Clocks and power of a GPU through NVML, which is opened at run time: a benchmark says at which clocks it ran.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ordo/error.hpp"

namespace ordo::measure {

struct GpuState {
  unsigned sm_clock_mhz = 0;
  unsigned memory_clock_mhz = 0;
  double watts = 0;
};

/// Absent where the NVIDIA driver's libnvidia-ml.so.1 is not there or refuses. Not thread-safe.
class ORDO_API Nvml {
 public:
  /// Opens NVML for CUDA device `index`, taking a numeric CUDA_VISIBLE_DEVICES into account.
  static std::optional<Nvml> open(int index);

  /// nullopt when a query fails.
  [[nodiscard]] std::optional<GpuState> state() const;
  /// "580.159.04"; empty when the query fails.
  [[nodiscard]] std::string driver_version() const;
  /// "GPU-8932f937-..."; empty when the query fails.
  [[nodiscard]] std::string uuid() const;
  /// Processes other than this one that compute on the device; nullopt when the query fails.
  [[nodiscard]] std::optional<int> other_processes() const;

 private:
  struct Library;
  explicit Nvml(std::shared_ptr<Library> library, void* device) : library_(std::move(library)), device_(device) {}
  std::shared_ptr<Library> library_;
  void* device_;
};

/// The number NVML counts the device by: the entry of CUDA_VISIBLE_DEVICES at `index` if the variable lists numbers, else
/// `index`; nullopt when it lists something else (UUIDs) or has no such entry. Pure.
ORDO_API std::optional<unsigned> physical_index(const char* visible_devices, int index);

}  // namespace ordo::measure
