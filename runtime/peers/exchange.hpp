// The exchange of slices around a kernel, on streams: full and empty words, copies by copy engines or NCCL, and what bounds their
// waits.
//
// Every rank has two groups of words in symmetric memory: ready[source][chunk], which says that a chunk lies in this rank's slot
// for `source`, and empty[destination], which says that this rank may write to `destination` again. One launch:
//
//   copy stream     for each transfer in the order of its queue: wait for done[chunk] (and reset it) where the kernel makes what
//   is sent;
//                   wait for empty[to]; copy to the slot at `to`; write ready[me][chunk] there
//                   on a ring, of a slice that another rank brought: wait for its ready[slice][chunk] before, and copy it on out
//                   of the receive buffer; slots and words of a ring go by slice
//   kernel          waits for ready[source][chunk] before it reads a chunk; adds to done[chunk] as it stores
//   copy stream     behind the kernel: write empty[me] at every source. Where what arrives is the caller's output
//                   (arrives_at_end_) it does so at the beginning of a launch instead, and sources wait for that of this very
//                   launch
//
// Words carry the launch's number (the epoch), and waits are for at least that number, so nothing is reset between launches.
// Numbers are constants of the enqueued operations; so that a captured launch can be replayed, an exchange that is captured keeps
// its number from then on, and takes its words back by one at the end of each launch instead.
//
// Bounds: kernels end their waits by themselves (OverlapExchange::timeout_ns); a stream's wait is ended by the watchdog, which
// sets the word.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codegen/overlap/steps.hpp"
#include "runtime/peers/communicator.hpp"
#include "runtime/peers/exchange_watch.hpp"

namespace ordo::peers {

/// Where one transfer's bytes begin, and how many signals of the kernel make its chunk complete.
struct ChunkPlace {
  std::size_t from_offset = 0;  ///< in the sender's buffer
  bool from_received = false;   ///< which is the one that slices arrive in: what it passes on, or its own part of the output
  std::size_t to_offset = 0;    ///< in the receiver's receive buffer
  std::size_t bytes = 0;
  std::uint32_t signals = 0;  ///< that done[] counts up to; 0 where nothing is computed first
};

struct ExchangeRequest {
  overlap::StepSchedule schedule;  ///< that check_route lets run
  std::vector<ChunkPlace> places;  ///< by transfer, the same on every rank
  std::size_t receive_bytes = 0;   ///< the symmetric buffer that slices arrive in
  std::size_t send_bytes = 0;      ///< a local buffer that the kernel stores what leaves in; 0: the caller's own is sent
  bool kernel_sends = false;       ///< the kernel stores into the peers' receive buffers and counts up their ready words itself
  bool overlaps = true;  ///< else slices arrive before the kernel starts, and leave (unless they are partial sums) when it ended
  std::string description;  ///< plan hash, shape: must be the same on every rank
};

/// What a kernel needs to know of one launch. Addresses of this rank's device.
struct LaunchWords {
  CUdeviceptr received = 0, sent = 0;
  CUdeviceptr ready = 0;  ///< [source][sub_slices]
  CUdeviceptr done = 0;   ///< [slice][sub_slices]
  std::uint32_t expected = 0;
  CUdeviceptr abort = 0;
  CUdeviceptr failure = 0;  ///< KernelFailure
  std::uint64_t timeout_ns = 0;
};

/// One rank's side. Used by one thread, and one launch at a time is enqueued: begin(), the kernel, end(), on one stream.
class SliceExchange {
 public:
  /// Collective. Errors: io (the ranks disagree about `description`, or one failed), driver (out of memory on any rank),
  /// invalid_plan.
  static Result<std::unique_ptr<SliceExchange>> create(Communicator::Impl& group, ExchangeRequest request);
  SliceExchange(const SliceExchange&) = delete;
  SliceExchange& operator=(const SliceExchange&) = delete;
  /// Collective, unless the communicator failed.
  ~SliceExchange();

  /// Enqueues what comes before the kernel. `source`: what this rank sends without computing it (its own slice); unused where the
  /// kernel makes what is sent. The stream's earlier work is done before any of it is read.
  Result<LaunchWords> begin(CUstream stream, CUdeviceptr source);
  /// Enqueues what comes behind it. Work that follows on `stream` sees everything sent and received.
  Result<void> end(CUstream stream);
  /// In place of end() when the kernel could not be enqueued; begin() and end() do it themselves when they fail. Work that
  /// follows on `stream` comes behind the copies under way: they still read what is the caller's.
  void abandon(CUstream stream);

  /// What begin() of the next launch returns, but for `expected`.
  [[nodiscard]] LaunchWords words() const;

  /// Where `rank`'s receive buffer and ready words lie for this device, for a kernel that sends.
  [[nodiscard]] CUdeviceptr received_at(int rank) const;
  [[nodiscard]] CUdeviceptr ready_at(int rank) const;

 private:
  SliceExchange(Communicator::Impl& group, ExchangeRequest request);
  Result<void> open();
  Result<void> open_launch(CUstream stream);
  Result<void> close_launch(CUstream stream);
  Result<void> enter(CUstream stream);
  Result<void> send_all(CUdeviceptr source);
  Result<void> send_slot(int slot, CUdeviceptr source);
  Result<void> wait_until_made(const overlap::Transfer& transfer);
  Result<void> send_by_copy(const overlap::Transfer& transfer, const ChunkPlace& place, CUdeviceptr source);
  [[nodiscard]] CUdeviceptr from(const ChunkPlace& place, CUdeviceptr source) const;
  Result<void> send_by_nccl(const overlap::Transfer* out, const overlap::Transfer* in, CUdeviceptr source);
  Result<void> wait_until_free(CUstream stream, int destination);
  Result<void> wait_for_arrivals(CUstream stream);
  [[nodiscard]] bool sends_behind_kernel() const;
  Result<void> give_back(CUstream stream);
  Result<void> follow(CUstream stream, CUstream after, CUevent event);
  Result<void> wait(CUstream stream, CUdeviceptr word, std::uint32_t value);
  Result<void> write(CUstream stream, CUdeviceptr word, std::uint32_t value);
  [[nodiscard]] std::string explain(const std::uint32_t* words) const;
  [[nodiscard]] const ChunkPlace& place_of(const overlap::Transfer& transfer) const;

  // Words in symmetric memory, by rank that holds them: ready for the kernel, ready at the end, empty; then the local ones, done.
  [[nodiscard]] CUdeviceptr word(int rank, std::size_t index) const { return memory_.of(rank) + words_offset_ + 4 * index; }
  [[nodiscard]] std::size_t ready_index(const overlap::Transfer& transfer) const;
  [[nodiscard]] std::size_t empty_index(int destination) const {
    return 2 * ready_words_ + static_cast<std::size_t>(destination);
  }
  [[nodiscard]] std::size_t done_index(int slice, int sub) const;
  /// What an empty word must reach before this launch may send. Words begin at 0: a caller's output is not free before its rank
  /// has told so for this very launch, the first included.
  [[nodiscard]] std::uint32_t free_value() const { return arrives_at_end_ ? epoch_ : epoch_ - 1; }
  [[nodiscard]] bool mapped() const { return group_.transport != PeerTransport::nccl; }
  [[nodiscard]] bool gathers() const { return overlap::pattern_of(request_.schedule.exchange) == overlap::Pattern::gather; }

  Communicator::Impl& group_;
  const Driver& d_;
  ExchangeRequest request_;
  int rank_, ranks_;
  std::size_t ready_words_, word_count_;
  std::size_t words_offset_ = 0;                ///< in memory_, behind the receive buffer
  std::vector<bool> sends_to_, receives_from_;  ///< by rank
  /// What arrives is the caller's output: others may write to it once the launch that fills it has begun here.
  bool arrives_at_end_ = false;
  int slots_ = 0;
  SymmetricMemory memory_;
  CUdeviceptr sent_ = 0;
  PinnedMemory failure_;
  CUstream copies_ = nullptr;
  CUevent begun_ = nullptr, copied_ = nullptr, finished_ = nullptr, freed_ = nullptr;
  std::uint32_t epoch_ = 0;
  bool frozen_ = false;  ///< was captured: the epoch stays
  bool capturing_ = false;
  CUdeviceptr source_ = 0;  ///< of the launch between begin and end
  std::unique_ptr<LaunchWatch> watch_;
};

}  // namespace ordo::peers
