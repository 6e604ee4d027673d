// A transport is trusted once bytes have arrived by it: flags and attributes promise more than containers and boards keep.
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/peers/communicator.hpp"

namespace ordo::peers {
namespace {

constexpr std::size_t kPiece = 64 << 10;  ///< bytes between two ranks
constexpr std::uint32_t kArrived = 0x0a11;

std::vector<std::uint32_t> pattern(int from) {
  std::vector<std::uint32_t> words(kPiece / sizeof(std::uint32_t));
  std::uint32_t value = 0x9e3779b9u * static_cast<std::uint32_t>(from + 1);
  for (std::uint32_t& word : words) word = value = value * 1664525u + 1013904223u;
  return words;
}

/// A stream of its own, destroyed at the end.
class ProbeStream {
 public:
  explicit ProbeStream(const Driver& driver) : driver_(driver) {}
  ProbeStream(const ProbeStream&) = delete;
  ProbeStream& operator=(const ProbeStream&) = delete;
  ~ProbeStream() {
    if (stream_ != nullptr) driver_.streamDestroy(stream_);
  }
  Result<void> open() { return driver_.check(driver_.streamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate"); }
  [[nodiscard]] CUstream get() const { return stream_; }

 private:
  const Driver& driver_;
  CUstream stream_ = nullptr;
};

/// The steps of one probe. The memory of a rank: what it sends, a slot a rank for what it receives, a word a rank.
class Probe {
 public:
  Probe(Communicator::Impl& group, PeerTransport transport)
      : group_(group),
        d_(group.driver()),
        transport_(transport),
        ranks_(group.links.ranks()),
        rank_(group.links.rank()),
        stream_(d_) {}

  Result<void> run() {
    auto memory = SymmetricMemory::allocate({&d_, &group_.links, group_.options.device, group_.options.timeout}, transport_,
                                            kPiece * static_cast<std::size_t>(ranks_ + 2));
    if (!memory) return memory.error();
    memory_ = *std::move(memory);
    if (transport_ == PeerTransport::nccl) {
      auto connected = connect_nccl(group_, kNcclCtas);
      if (!connected) return connected.error();
      group_.nccl = *std::move(connected);
    }
    const auto verdict = transfer();
    group_.release(std::move(memory_));
    return verdict;
  }

 private:
  static CUdeviceptr slot(CUdeviceptr base, int rank) { return base + kPiece * static_cast<std::size_t>(rank + 1); }
  [[nodiscard]] CUdeviceptr word(CUdeviceptr base, int rank) const {
    return slot(base, ranks_) + sizeof(std::uint32_t) * static_cast<std::size_t>(rank);
  }
  Result<void> transfer() {
    if (auto begun = group_.conclude(prepare()); !begun) return begun;
    if (auto sent = finished(transport_ == PeerTransport::nccl ? send_by_nccl() : send_by_copies()); !sent) return sent;
    return finished(verify());
  }

  // Nothing may be in flight when the ranks go on, for they may give their memory back.
  Result<void> finished(const Result<void>& mine) {
    const auto drained = wait_for_stream(d_, stream_.get(), *group_.watchdog, group_.deadline());
    return group_.conclude(mine ? drained : mine);
  }

  Result<void> prepare() {
    if (auto opened = stream_.open(); !opened) return opened;
    // On the stream that sends it: cuMemcpyHtoD may return before its bytes are there, and this stream waits for no other.
    return d_.check(d_.memcpyHtoDAsync(memory_.local(), pattern(rank_).data(), kPiece, stream_.get()), "cuMemcpyHtoDAsync");
  }

  Result<void> send_by_copies() {
    for (int rank = 0; rank < ranks_; ++rank) {
      const CUdeviceptr to = memory_.of(rank);
      if (auto ok = d_.check(d_.memcpyDtoDAsync(slot(to, rank_), memory_.local(), kPiece, stream_.get()),
                             fmt::format("a copy to the memory of rank {}", rank));
          !ok) {
        return ok;
      }
      if (auto ok = d_.check(d_.streamWriteValue32(stream_.get(), word(to, rank_), kArrived, 0),
                             fmt::format("cuStreamWriteValue32 to the memory of rank {}", rank));
          !ok) {
        return ok;
      }
    }
    return {};
  }

  Result<void> send_by_nccl() {
    const auto calls = [&](const Nccl& n, void* comm) {
      for (int rank = 0; rank < ranks_; ++rank) {
        const auto data = [](CUdeviceptr at) { return reinterpret_cast<void*>(at); };
        const int type = static_cast<int>(NcclType::int8);
        if (int result = n.send(data(memory_.local()), kPiece, type, rank, comm, stream_.get()); result != 0) return result;
        if (int result = n.recv(data(slot(memory_.local(), rank)), kPiece, type, rank, comm, stream_.get()); result != 0)
          return result;
      }
      return 0;
    };
    if (auto called = group_.nccl->group(calls, group_.deadline()); !called)
      return Error{ErrorCode::driver, called.error().message};
    for (int rank = 0; rank < ranks_; ++rank) {
      if (auto ok =
              d_.check(d_.streamWriteValue32(stream_.get(), word(memory_.local(), rank), kArrived, 0), "cuStreamWriteValue32");
          !ok)
        return ok;
    }
    return {};
  }

  // All ranks have sent. The wait is for values that must be there: one that is not shows as an error, not as a wait.
  Result<void> verify() {
    std::vector<std::uint32_t> words(kPiece / sizeof(std::uint32_t));
    for (int rank = 0; rank < ranks_; ++rank) {
      std::uint32_t arrived = 0;
      if (auto ok = d_.check(d_.memcpyDtoH(&arrived, word(memory_.local(), rank), sizeof arrived), "cuMemcpyDtoH"); !ok)
        return ok;
      if (arrived != kArrived) return Error{ErrorCode::driver, fmt::format("the value that rank {} wrote did not arrive", rank)};
      if (auto ok = d_.check(d_.streamWaitValue32(stream_.get(), word(memory_.local(), rank), kArrived, CU_STREAM_WAIT_VALUE_GEQ),
                             "cuStreamWaitValue32");
          !ok) {
        return ok;
      }
      if (auto ok = d_.check(d_.memcpyDtoH(words.data(), slot(memory_.local(), rank), kPiece), "cuMemcpyDtoH"); !ok) return ok;
      if (words != pattern(rank)) return Error{ErrorCode::driver, fmt::format("what rank {} sent arrived damaged", rank)};
    }
    return {};
  }

  Communicator::Impl& group_;
  const Driver& d_;
  PeerTransport transport_;
  int ranks_, rank_;
  ProbeStream stream_;
  SymmetricMemory memory_;
};

}  // namespace

Result<std::unique_ptr<NcclComm>> connect_nccl(Communicator::Impl& group, int most_ctas) {
  const int rank = group.links.rank(), ranks = group.links.ranks();
  NcclId id{};
  const auto opened = group.platform.nccl();
  Result<void> ready = opened ? Result<void>() : Result<void>(opened.error());
  if (ready && rank == 0) ready = (*opened)->check((*opened)->getUniqueId(&id), "ncclGetUniqueId");
  if (auto all = group.conclude(ready); !all) return all.error();
  std::vector<NcclId> ids(static_cast<std::size_t>(ranks));
  if (auto gathered = group.links.all_gather(&id, sizeof id, ids.data(), group.deadline()); !gathered) return gathered.error();
  auto comm = NcclComm::create(**opened, ids[0], rank, ranks, most_ctas, group.deadline());
  const auto connected = comm ? Result<void>() : Result<void>(Error{ErrorCode::driver, comm.error().message});
  if (auto all = group.conclude(connected); !all) return all.error();
  return comm;
}

Result<void> probe(Communicator::Impl& group, PeerTransport transport) {
  auto verdict = Probe(group, transport).run();
  if (!verdict) group.nccl.reset();
  return verdict;
}

}  // namespace ordo::peers
