// NCCL, opened at run time: the transport where ranks cannot map each other's memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ordo/error.hpp"
#include "runtime/peers/deadline.hpp"

struct CUstream_st;

namespace ordo::peers {

/// ncclUniqueId: 128 bytes that every rank of a communicator passes to init.
using NcclId = std::array<char, 128>;

/// Element types of ncclDataType_t that are used here.
enum class NcclType : int { int8 = 0, fp16 = 6, fp32 = 7, bf16 = 9 };

/// The functions of libnccl.so.2 (2.18 or later) that ordo calls, as nccl.h declares them; a communicator is an opaque pointer.
struct Nccl {
  // NOLINTBEGIN(readability-identifier-naming): the members are named after the functions they point to
  int (*getVersion)(int* version) = nullptr;
  int (*getUniqueId)(NcclId* id) = nullptr;
  int (*commInitRankConfig)(void** comm, int ranks, NcclId id, int rank, void* config) = nullptr;
  int (*commGetAsyncError)(void* comm, int* error) = nullptr;
  int (*commAbort)(void* comm) = nullptr;
  int (*commDestroy)(void* comm) = nullptr;
  int (*send)(const void* data, std::size_t count, int type, int peer, void* comm, CUstream_st* stream) = nullptr;
  int (*recv)(void* data, std::size_t count, int type, int peer, void* comm, CUstream_st* stream) = nullptr;
  int (*allGather)(const void* mine, void* all, std::size_t count, int type, void* comm, CUstream_st* stream) = nullptr;
  int (*reduceScatter)(const void* all, void* mine, std::size_t count, int type, int op, void* comm,
                       CUstream_st* stream) = nullptr;
  int (*allReduce)(const void* in, void* out, std::size_t count, int type, int op, void* comm, CUstream_st* stream) = nullptr;
  int (*groupStart)() = nullptr;
  int (*groupEnd)() = nullptr;
  const char* (*getErrorString)(int result) = nullptr;
  // NOLINTEND(readability-identifier-naming)

  /// Success, or an Error (driver) that names `what` and NCCL's text.
  [[nodiscard]] Result<void> check(int result, const std::string& what) const;
};

/// Opened once a process. Errors (unsupported): libnccl.so.2 is not installed ($ORDO_NCCL names another file), lacks a function,
/// or is older than 2.18.
Result<const Nccl*> nccl();

/// One rank's NCCL communicator.
class NcclComm {
 public:
  /// Collective: the id of rank 0. At most `most_ctas` CTAs of a device work for a transfer; 0: as many as NCCL wants. Errors:
  /// driver (NCCL's own), peer (not all ranks came in time; what was begun is aborted).
  static Result<std::unique_ptr<NcclComm>> create(const Nccl& nccl, const NcclId& id, int rank, int ranks, int most_ctas,
                                                  Deadline deadline);
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;
  ~NcclComm();

  /// Runs `calls` between groupStart and groupEnd, and returns once they are enqueued: the first call between two ranks connects
  /// them. Errors: driver (NCCL's own), io (a rank did not connect in time, or closed its connection).
  Result<void> group(const std::function<int(const Nccl&, void* comm)>& calls, Deadline deadline) const;
  /// Ends kernels that wait for a peer which will not come. Thread-safe; once.
  void abort();

 private:
  NcclComm(const Nccl& nccl, void* comm) : nccl_(&nccl), comm_(comm) {}
  Result<void> settle(const std::string& what, Deadline deadline) const;
  const Nccl* nccl_;
  std::atomic<void*> comm_;
};

}  // namespace ordo::peers
