// One rank's launches of an OverlapGemm: the exchange around a kernel that is handed in, so that tests can put a host function in
// its place.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <vector>

#include "ordo/overlap_kernel.hpp"
#include "runtime/peers/exchange.hpp"

namespace ordo::peers {

/// What an exchange is asked for so that it serves `problem` as `plan` says. Pure. Errors: those of make_steps.
Result<ExchangeRequest> exchange_request(const OverlapGemm& problem, const OverlapPlan& plan, bool overlaps);

/// Used by one thread, and one launch at a time is enqueued.
class OverlapRunner {
 public:
  /// Enqueues the kernel; as OverlapGemmKernel::launch.
  using Kernel = std::function<Result<void>(const OverlapGemmTensors&, const OverlapExchange&, CUstream)>;

  /// Collective. The problem fits the plan. Errors: those of SliceExchange::create.
  static Result<std::unique_ptr<OverlapRunner>> create(Communicator::Impl& group, const OverlapGemm& problem,
                                                       const OverlapPlan& plan, bool overlaps, Kernel kernel);

  /// D where other ranks write to it too; else null.
  [[nodiscard]] MatrixView output() const { return output_; }
  /// That A must have; 0: any.
  [[nodiscard]] std::int64_t a_stride() const;

  /// Enqueues the exchange and the kernel. Errors leave nothing enqueued (invalid_argument) or fail the communicator (the rest).
  Result<void> launch(OverlapGemmTensors tensors, CUstream stream);

 private:
  OverlapRunner(Communicator::Impl& group, const OverlapGemm& problem, const OverlapPlan& plan, Kernel kernel,
                std::unique_ptr<SliceExchange> exchange);
  Result<void> check(OverlapGemmTensors& tensors) const;

  Communicator::Impl& group_;
  OverlapGemm problem_;
  OverlapPlan plan_;
  Kernel kernel_;
  std::unique_ptr<SliceExchange> exchange_;
  OverlapBuffers buffers_;
  MatrixView output_;
  OverlapExchange words_;  ///< what no launch changes
  std::vector<void*> peer_slot_;
  std::vector<std::uint32_t*> peer_ready_;
};

}  // namespace ordo::peers
