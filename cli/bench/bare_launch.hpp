// The kernel launches that one AttentionBackwardKernel::launch makes, to be repeated without it.
#pragma once

#include <cuda.h>

#include <functional>
#include <vector>

#include "runtime/driver.hpp"

namespace ordo::cli {

/// Taken from a graph that captured one launch: the very functions, grids and parameters. The graph owns the parameters.
class BareLaunch {
 public:
  /// `launch` enqueues on `stream`; it has been called on this device before.
  static Result<BareLaunch> capture(const Driver& driver, CUstream stream, const std::function<Result<void>()>& launch);
  BareLaunch(BareLaunch&& other) noexcept;
  BareLaunch& operator=(BareLaunch&&) = delete;
  ~BareLaunch();

  /// cuLaunchKernelEx of each kernel, with the attributes that ordo gives it.
  Result<void> launch(CUstream stream);
  [[nodiscard]] std::size_t kernels() const { return nodes_.size(); }

 private:
  struct Node {
    CUfunction function = nullptr;
    CUlaunchConfig config{};
    CUlaunchAttribute attribute{};
    void** parameters = nullptr;
  };
  explicit BareLaunch(const Driver& driver) : driver_(&driver) {}
  Result<void> read_nodes();

  const Driver* driver_;
  CUgraph graph_ = nullptr;
  std::vector<Node> nodes_;
};

}  // namespace ordo::cli
