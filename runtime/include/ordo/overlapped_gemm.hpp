// OverlappedGemm: a product on several ranks whose slices travel while it runs. The kernel of an OverlapPlan, the memory that the
// ranks share, and the copies between them.
//
//   auto world = ordo::world_from_environment(timeout);
//   auto group = ordo::Communicator::create(*world, {});
//   auto product = ordo::OverlappedGemm::create(*group, *engine, problem);   // collective
//   product->launch({a, b, d}, stream);                                      // on every rank, in the same order
//   cuStreamSynchronize(stream); group->status();                            // whether D is to be trusted
#pragma once

#include <memory>
#include <optional>

#include "ordo/overlap_kernel.hpp"
#include "ordo/peers.hpp"

namespace ordo {

struct OverlappedGemmOptions {
  std::optional<OverlapPlan> plan;  ///< absent: that of make_overlap_plan
  std::optional<bool> overlap;      ///< absent: where it pays
};

/// One rank's side. Created, launched and destroyed by all ranks in the same order; one thread a rank uses it, with the
/// communicator's context current, and launches are enqueued one at a time (on any streams; each launch comes behind the one
/// before). The communicator must outlive it.
///
/// Memory: it owns the buffers that slices arrive in and leave from (overlap_buffers()). Launches share them, so that one object
/// serves every layer of the same shape.
class ORDO_API OverlappedGemm {
 public:
  /// Collective: plans, compiles, loads the kernel on this rank's device, and makes the buffers. Errors, the same on every rank:
  /// invalid_problem (op gemm; another number of ranks than the communicator's), invalid_plan, toolchain, compile, unsupported
  /// (Transport::direct without peer access), driver (out of memory), io (ranks that disagree about problem and plan, or failed).
  static Result<OverlappedGemm> create(Communicator& communicator, Engine& engine, const OverlapGemm& problem,
                                       const OverlappedGemmOptions& options = {});
  OverlappedGemm(OverlappedGemm&&) noexcept;
  OverlappedGemm& operator=(OverlappedGemm&&) = delete;
  /// Collective, unless the communicator failed. No launch may be in flight.
  ~OverlappedGemm();

  [[nodiscard]] const OverlapGemm& problem() const;
  /// The plan in use, whether it overlaps, and why.
  [[nodiscard]] const OverlapChoice& choice() const;
  [[nodiscard]] const KernelReport& report() const;

  /// gemm_all_reduce, gemm_all_to_all: where D is, in memory that the other ranks write to. The result of a launch may be read,
  /// in stream order, until the next launch begins. Other ops: null, D is the caller's.
  [[nodiscard]] MatrixView output() const;
  /// all_gather_gemm, all_to_all_gemm: the stride, in elements, that A must have, since its rows are copied as they lie. Other
  /// ops: 0, any.
  [[nodiscard]] std::int64_t a_stride() const;

  /// Enqueues the product on `stream` of the communicator's context. D may be left out where output() has it. A, B and bias are
  /// read until the work is done. No device or host memory is allocated, nothing synchronised (NCCL's transport excepted);
  /// capture-safe, also at the first launch. A captured launch may be replayed any number of times, on all ranks alike, and mixed
  /// with others; in a graph the kernel's own waits are bounded, and those of streams end when any rank's failure is noticed.
  /// Every wait ends within the communicator's timeout: then status() is an error on every rank, and the results are undefined.
  /// Errors: invalid_argument (tensors; nothing is enqueued), what status() says, and driver failures, which fail the
  /// communicator.
  Result<void> launch(const OverlapGemmTensors& tensors, CUstream_st* stream);

  struct Impl;

 private:
  explicit OverlappedGemm(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ordo
