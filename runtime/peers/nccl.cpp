#include "runtime/peers/nccl.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <climits>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

namespace ordo::peers {
namespace {

constexpr int kSuccess = 0, kInProgress = 7;  // ncclResult_t
constexpr int kOldestVersion = 21800;

// ncclConfig_t as NCCL 2.18 has it; newer ones read the size and the version, and take their defaults for the rest.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldestVersion;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;  // INT_MIN: NCCL's default
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

template <class Function>
bool find(void* library, const char* name, Function*& out) {
  out = reinterpret_cast<Function*>(dlsym(library, name));
  return out != nullptr;
}

Error missing(const std::string& what) {
  return {ErrorCode::unsupported,
          fmt::format("NCCL cannot be used: {}. Install libnccl.so.2 (2.18 or later), or name it with ORDO_NCCL.", what)};
}

Result<Nccl> open_nccl() {
  const char* name = std::getenv("ORDO_NCCL");
  void* library = dlopen(name != nullptr ? name : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);  // never closed: its threads go on
  if (library == nullptr) {
    const char* reason = dlerror();
    return missing(reason == nullptr ? "it cannot be opened" : reason);
  }
  Nccl n;
  const bool complete = find(library, "ncclGetVersion", n.getVersion) && find(library, "ncclGetUniqueId", n.getUniqueId) &&
                        find(library, "ncclCommInitRankConfig", n.commInitRankConfig) &&
                        find(library, "ncclCommGetAsyncError", n.commGetAsyncError) &&
                        find(library, "ncclCommAbort", n.commAbort) && find(library, "ncclCommDestroy", n.commDestroy) &&
                        find(library, "ncclSend", n.send) && find(library, "ncclRecv", n.recv) &&
                        find(library, "ncclAllGather", n.allGather) && find(library, "ncclReduceScatter", n.reduceScatter) &&
                        find(library, "ncclAllReduce", n.allReduce) && find(library, "ncclGroupStart", n.groupStart) &&
                        find(library, "ncclGroupEnd", n.groupEnd) && find(library, "ncclGetErrorString", n.getErrorString);
  if (!complete) {
    const char* reason = dlerror();
    return missing(reason == nullptr ? "a function is missing" : reason);
  }
  int version = 0;
  if (n.getVersion(&version) != kSuccess || version < kOldestVersion) return missing(fmt::format("its version is {}", version));
  return n;
}

}  // namespace

Result<void> Nccl::check(int result, const std::string& what) const {
  if (result == kSuccess || result == kInProgress) return {};
  return Error{ErrorCode::driver, fmt::format("{} failed: {} ({})", what, getErrorString(result), result)};
}

Result<const Nccl*> nccl() {
  static std::mutex mutex;
  static Nccl table;
  static bool ready = false;
  const std::scoped_lock lock(mutex);
  if (!ready) {
    Result<Nccl> opened = open_nccl();
    if (!opened) return opened.error();
    table = *opened;
    ready = true;
  }
  return &table;
}

Result<std::unique_ptr<NcclComm>> NcclComm::create(const Nccl& nccl, const NcclId& id, int rank, int ranks, int most_ctas,
                                                   Deadline deadline) {
  Config config;
  if (most_ctas > 0) config.max_ctas = most_ctas;
  void* comm = nullptr;
  if (auto begun = nccl.check(nccl.commInitRankConfig(&comm, ranks, id, rank, &config), "ncclCommInitRankConfig"); !begun)
    return begun.error();
  std::unique_ptr<NcclComm> out(new NcclComm(nccl, comm));
  if (auto settled = out->settle("ncclCommInitRankConfig", deadline); !settled) {
    out->abort();
    return settled.error();
  }
  return out;
}

NcclComm::~NcclComm() {
  if (void* comm = comm_.exchange(nullptr)) nccl_->commDestroy(comm);
}

Result<void> NcclComm::settle(const std::string& what, Deadline deadline) const {
  for (;;) {
    void* comm = comm_;
    if (comm == nullptr) return Error{ErrorCode::io, what + ": the communicator was aborted"};
    int state = kSuccess;
    if (auto asked = nccl_->check(nccl_->commGetAsyncError(comm, &state), "ncclCommGetAsyncError"); !asked) return asked;
    if (state == kSuccess) return {};
    if (state != kInProgress) return Error{ErrorCode::io, nccl_->check(state, what).error().message};
    if (deadline.passed()) return Error{ErrorCode::io, what + ": not all ranks answered in time"};
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

Result<void> NcclComm::group(const std::function<int(const Nccl&, void* comm)>& calls, Deadline deadline) const {
  void* comm = comm_;
  if (comm == nullptr) return Error{ErrorCode::io, "NCCL's communicator was aborted"};
  if (auto begun = nccl_->check(nccl_->groupStart(), "ncclGroupStart"); !begun) return begun;
  const auto called = nccl_->check(calls(*nccl_, comm), "NCCL's transfer");
  if (auto ended = nccl_->check(nccl_->groupEnd(), "ncclGroupEnd"); !ended) return ended;
  return called ? settle("NCCL's transfer", deadline) : called;
}

void NcclComm::abort() {
  if (void* comm = comm_.exchange(nullptr)) nccl_->commAbort(comm);
}

}  // namespace ordo::peers
