// The launchable form of an OverlapPlan. Single rank: launch(). Several ranks: the communicator (runtime/peers) supplies an
// OverlapExchange and moves the slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ordo/ordo.hpp"
#include "ordo/overlap.hpp"

namespace ordo {

/// A matrix in device memory. `stride` counts elements from one row to the next (Storage::row) or from one column to the next
/// (Storage::column); rows (columns) are 16-byte aligned, as is the pointer. The caller owns the memory.
struct MatrixView {
  void* data = nullptr;
  std::int64_t stride = 0;
};

/// Device memory of one rank. Shapes: OverlapGemm. D is stored by rows; every element of it is written. The copy engine stores
/// whole 16-byte units: where a row of D ends inside one, the rest of that unit is overwritten too.
struct OverlapGemmTensors {
  MatrixView a, b, d;
  const void* bias = nullptr;  ///< [n] in A's type, 16-byte aligned; looked at only if the problem has one
};

/// How much memory the ranks exchange slices through, the same on every rank. A slot holds one slice, rows `pitch` elements
/// apart, as long as the longest slice.
struct OverlapBuffers {
  std::int64_t slots = 0;  ///< a buffer: one a rank
  std::int64_t slot_rows = 0;
  std::int64_t receive_pitch = 0;  ///< elements
  std::int64_t send_pitch = 0;
  std::size_t receive_slot_bytes = 0;  ///< of `received`; 0: nothing arrives
  std::size_t send_slot_bytes = 0;     ///< of `sent`; 0: the kernel stores no slice for a copy engine
  std::size_t words = 0;               ///< of `ready` and of `done`: slots * sub_slices
  std::int64_t output_pitch = 0;       ///< of a D that other ranks write to as well, which lies in memory that they share ...
  std::size_t output_bytes = 0;        ///< ... and takes so much of it; 0: D is this rank's own
};

/// For pairs that check_fit accepts.
ORDO_API OverlapBuffers overlap_buffers(const OverlapGemm& problem, const OverlapPlan& plan);

/// What the kernel's signals of chunk `chunk` of `slice` add up to in `done` (copy engine) or in the owner's `ready` (direct).
/// 0: the chunk is empty.
ORDO_API std::uint32_t overlap_chunk_arrivals(const OverlapGemm& problem, const OverlapPlan& plan, int slice, int chunk);

/// Where a wait of the kernel failed. In host memory that the device sees; zeroed before the first launch.
struct OverlapFailure {
  std::uint32_t state = 0;  ///< 0: none, 1: being written, 2: written
  std::int32_t rank = 0;    ///< whose kernel waited
  std::int32_t slice = 0;   ///< what arrives: the slice waited for; a reduction: the rank whose partial sum is missing
  std::int32_t chunk = 0;
  std::uint32_t expected = 0, seen = 0;
};

/// What a launch needs of the communicator, as addresses of this rank's device. Word [x][c] of an array of `words` is word
/// x * sub_slices + c.
///
/// The kernel promises: it reads slot q of `received` only after ready[q][chunk] has reached `expected` (signed difference;
/// Transport::direct: the chunk's arrivals); it adds to done[slice][chunk], with release semantics for the system, once for each
/// part of a tile that it has stored to `sent`, up to overlap_chunk_arrivals; it resets no word. Every wait ends after
/// timeout_ns; then, or when *abort is not 0, nothing that depends on the missing data is stored or signalled.
struct OverlapExchange {
  int rank = 0;
  void* received = nullptr;  ///< all_gather_gemm, all_to_all_gemm: slices of A by source; reductions: partial sums by source
  void* sent = nullptr;      ///< slices for other ranks, by owner; copy engine only
  const std::uint32_t* ready = nullptr;
  std::uint32_t* done = nullptr;
  std::uint32_t expected = 1;
  const std::uint32_t* abort = nullptr;  ///< a word that anybody may set
  OverlapFailure* failure = nullptr;
  std::uint64_t timeout_ns = 10'000'000'000;

  /// Transport::direct only, by rank: where slot `rank` of the owner's `received` lies (gemm_all_to_all: row rank * m of its D,
  /// rows peer_pitch elements apart), and the owner's `ready`.
  std::span<void* const> peer_slot;
  std::span<std::uint32_t* const> peer_ready;
  std::int64_t peer_pitch = 0;  ///< gemm_all_to_all only
};

/// The compiled kernel of one plan. Thread-safe.
class ORDO_API OverlapGemmKernel {
 public:
  [[nodiscard]] const OverlapPlan& plan() const;
  [[nodiscard]] const KernelReport& report() const;

  /// Loads the kernel in the current context, as the first launch there would. Errors: those of launch() that have to do with the
  /// device.
  Result<void> load() const;

  /// Enqueues the product on `stream` of the current context. No allocation, no synchronisation; capture-safe after the first
  /// launch on a device. `exchange` may be left out for one rank.
  /// Errors: a problem the plan was not made for, a misaligned or null pointer, a stride TMA cannot express, an incomplete
  /// exchange, a device that is not the plan's arch, and driver failures.
  Result<void> launch(const OverlapGemm& problem, const OverlapGemmTensors& tensors, const OverlapExchange& exchange,
                      CUstream_st* stream) const;
  Result<void> launch(const OverlapGemm& problem, const OverlapGemmTensors& tensors, CUstream_st* stream) const {
    return launch(problem, tensors, {}, stream);
  }

  struct Impl;
  explicit OverlapGemmKernel(std::shared_ptr<Impl> impl);

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace ordo
