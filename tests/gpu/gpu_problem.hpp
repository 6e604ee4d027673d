// One attention problem on the device: random inputs, an fp64 reference made on the GPU, poisoned outputs, and comparison.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ordo/ordo.hpp"
#include "runtime/attention_forward.hpp"
#include "runtime/device.hpp"
#include "runtime/driver.hpp"

namespace ordo::test {

/// The test's own kernels (reference_source.hpp), for both element types, and the generated forwards as they are needed.
class ReferenceKernels {
 public:
  /// Compiles them with NVRTC and loads them. Two seconds or so.
  static Result<ReferenceKernels> compile(const Driver& driver);
  static Result<ReferenceKernels> load(const Driver& driver, const std::array<std::string, 2>& cubins);
  [[nodiscard]] Result<void> launch(DType dtype, const char* name, std::array<unsigned, 3> grid, unsigned threads,
                                    void** arguments, CUstream stream = nullptr, unsigned shared_bytes = 0) const;
  [[nodiscard]] const Driver& driver() const { return *driver_; }
  /// The generated forward for such problems, compiled at the first call. Not thread-safe.
  [[nodiscard]] Result<AttentionForward> forward(const AttentionBackward& problem) const;

 private:
  const Driver* driver_ = nullptr;
  std::array<CUlibrary, 2> libraries_{};
  std::shared_ptr<std::map<std::string, AttentionForward>> forwards_ =
      std::make_shared<std::map<std::string, AttentionForward>>();
};

/// Errors of the generated forward against fp64.
struct ForwardDeviation {
  double o = 0;                  ///< ||o - fp64|| / ||fp64||
  double lse = 0;                ///< largest |lse - fp64| / max(1, |fp64|) of rows that see anything
  std::int64_t empty_wrong = 0;  ///< rows that see nothing whose lse is not -inf
};

/// Error of one gradient against the contract: ||x - ref|| <= max(5e-3 ||ref||, 1.1 ||straightforward - ref||) + 1e-6 ||mass||.
struct Deviation {
  double relative = 0;
  double allowed = 0;
  double non_finite = 0;
  [[nodiscard]] bool within() const { return non_finite == 0 && relative <= allowed; }
};

class GpuProblem {
 public:
  /// Random inputs, o and lse from the generated forward; `with_reference`: also the fp64 gradients (slow for long sequences).
  /// Works on the default stream and may return before that is done.
  static Result<GpuProblem> create(const ReferenceKernels& kernels, const AttentionBackward& problem, std::uint64_t seed,
                                   bool with_reference);

  [[nodiscard]] AttentionBackwardTensors tensors() const;
  [[nodiscard]] AttentionForwardTensors forward_tensors();
  /// Holds o and lse as they are now against fp64.
  [[nodiscard]] Result<ForwardDeviation> compare_forward();
  Result<void> poison(CUstream stream = nullptr);
  /// dq, dk, dv after a launch.
  Result<std::array<Deviation, 3>> compare() const;
  /// Keeps the outputs as the bits later runs are held against.
  Result<void> keep_bits();
  /// 4-byte words of dq, dk, dv that differ from the kept ones.
  Result<std::uint64_t> differing_words() const;
  /// Adds that number to the u64 in `counter`, in the order of `stream`; does not wait.
  Result<void> add_differing_words(DeviceBuffer& counter, CUstream stream) const;
  /// Computes the fp64 gradients afresh, from the inputs and the LSE as they are now.
  Result<void> refresh_reference();
  /// The fp64 gradients dq, dk, dv; for problems with a reference.
  [[nodiscard]] Result<std::vector<double>> reference(int index) const;
  [[nodiscard]] const AttentionBackward& problem() const { return problem_; }
  /// The raw inputs, for tests that plant values: q, k, v, o, do.
  [[nodiscard]] DeviceBuffer& input(int index) { return inputs_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] DeviceBuffer& output(int index) { return outputs_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] const DeviceBuffer& output(int index) const { return outputs_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] DeviceBuffer& lse() { return lse_; }
  [[nodiscard]] float scale() const { return scale_; }

 private:
  Result<void> make_reference();

  const ReferenceKernels* kernels_ = nullptr;
  AttentionBackward problem_;
  float scale_ = 0;
  std::array<DeviceBuffer, 5> inputs_;   // q, k, v, o, do
  std::array<DeviceBuffer, 3> outputs_;  // dq, dk, dv
  std::array<DeviceBuffer, 3> kept_;
  std::array<DeviceBuffer, 3> reference_, straight_, mass_;
  DeviceBuffer lse_, lse64_, delta_;
};

}  // namespace ordo::test
