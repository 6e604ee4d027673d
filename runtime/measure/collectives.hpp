// The exchanges of OverlapGemm by NCCL, which is opened at run time: what a program without ordo would call.
#pragma once

#include <cstddef>
#include <memory>

#include "ordo/overlap_kernel.hpp"
#include "ordo/peers.hpp"

namespace ordo::measure {

class ORDO_API Collectives {
 public:
  /// Collective. Errors, the same on all ranks: unsupported (NCCL is missing), driver.
  static Result<Collectives> connect(Communicator& communicator);
  Collectives(Collectives&&) noexcept;
  Collectives& operator=(Collectives&&) = delete;
  ~Collectives();

  /// Enqueues the exchange of `problem`: of `mine` to `all` where slices arrive (A), else of `all` (D of every row) to `mine`.
  /// The all-to-alls move as many bytes as they must, without the rearrangement that a product would need.
  Result<void> exchange(const OverlapGemm& problem, void* mine, void* all, CUstream_st* stream) const;

 private:
  struct Impl;
  explicit Collectives(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ordo::measure
