// A device with what measuring on it needs.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "runtime/attention_forward.hpp"
#include "runtime/device.hpp"
#include "runtime/kernel_builder.hpp"
#include "runtime/measure/device_problem.hpp"
#include "runtime/measure/helper_kernels.hpp"
#include "runtime/measure/nvml.hpp"

namespace ordo::measure {

/// Its context is current on the thread that opened it, which is the thread to use it on. Problems and stands made with it go
/// before it does.
class ORDO_API Workbench {
 public:
  /// `options` say where the helper kernels and forwards are kept. Errors: no_device, driver.
  static Result<Workbench> open(int device, KernelBuilderOptions options);

  [[nodiscard]] const DeviceContext& context() const { return context_; }
  [[nodiscard]] const DeviceFacts& facts() const { return context_.facts(); }
  [[nodiscard]] const Stream& stream() const { return stream_; }
  [[nodiscard]] const std::optional<Nvml>& nvml() const { return nvml_; }  ///< absent: no clocks and watts

  /// Compiled at the first call. Errors: toolchain, compile.
  Result<HelperKernels> helpers();
  Result<AttentionForward> forward(const AttentionBackward& problem);

  /// Random inputs with the O and LSE that belong to them. Errors: those above, and out of memory (driver).
  Result<DeviceProblem> random_problem(const AttentionBackward& problem, std::uint64_t seed);

 private:
  Workbench(DeviceContext context, Stream stream, std::optional<Nvml> nvml, KernelBuilderOptions options);

  DeviceContext context_;  // before what lives in it
  Stream stream_;
  std::optional<Nvml> nvml_;
  KernelBuilderOptions options_;
  std::optional<HelperKernels> helpers_;
  std::map<std::string, AttentionForward> forwards_;  ///< by dtype, head_dim and mask
};

}  // namespace ordo::measure
