// One rank of an overlapped product on a GPU: engine, kernels, tensors.
#pragma once

#include <memory>
#include <vector>

#include "runtime/measure/overlap_bench.hpp"
#include "runtime/measure/overlap_inputs.hpp"
#include "tests/peers/two_gpus.hpp"

namespace ordo::test {

class OverlapRank {
 public:
  /// Kernels are kept in a cache that all ranks and tests share.
  static Result<std::unique_ptr<OverlapRank>> create(Communicator& communicator);

  [[nodiscard]] measure::RankBench with() { return {communicator_, engine_, bench_}; }
  [[nodiscard]] Communicator::Impl& group() { return communicator_.impl(); }
  [[nodiscard]] CUstream stream() const { return bench_.stream().get(); }

  /// One problem with random inputs.
  class Product {
   public:
    static Result<std::unique_ptr<Product>> create(OverlapRank& rank, const OverlapGemm& problem,
                                                   const OverlappedGemmOptions& options = {});
    /// Enqueues it on the rank's stream.
    Result<void> launch();
    Result<void> poison();
    /// Waits, and copies D to the host. Errors: what the communicator's status says.
    Result<std::vector<unsigned char>> result();

   private:
    Product(OverlapRank& rank, OverlappedGemm product) : rank_(rank), product_(std::move(product)) {}
    [[nodiscard]] MatrixView d() const { return product_.output().data != nullptr ? product_.output() : d_.view(); }

    OverlapRank& rank_;
    measure::RankInputs in_;
    measure::DeviceMatrix d_;
    std::size_t bytes_ = 0;
    OverlappedGemm product_;
  };

 private:
  OverlapRank(Communicator& communicator, Engine engine, measure::Workbench bench)
      : communicator_(communicator), engine_(std::move(engine)), bench_(std::move(bench)) {}

  Communicator& communicator_;
  Engine engine_;
  measure::Workbench bench_;
};

/// The planner's plan, but round a ring. The op can take one.
OverlappedGemmOptions by_ring(OverlapRank& rank, const OverlapGemm& problem);

/// A body of on_two_gpus that works with an OverlapRank.
Body on_rank(std::function<Ending(OverlapRank&)> body);

}  // namespace ordo::test
