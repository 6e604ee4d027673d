#include "runtime/arrival_tables.hpp"

#include <fmt/format.h>

#include <mutex>
#include <shared_mutex>
#include <vector>

#include "codegen/schedule/visit_table.hpp"

namespace ordo {
namespace {

struct Copy {
  const LoadedKernels* kernels = nullptr;  ///< names the context
  CUcontext context = nullptr;
  unsigned long long context_id = 0;
  CUdeviceptr data = 0;
  AttentionBackward problem;  ///< that it was made for
};

/// Frees in the copy's own context, unless that is gone, and the memory with it.
void release(const Copy& copy) {
  const Driver& d = *copy.kernels->driver;
  unsigned long long id = 0;
  if (d.ctxGetId(copy.context, &id) != CUDA_SUCCESS || id != copy.context_id) return;
  CUcontext current = nullptr;
  d.ctxGetCurrent(&current);
  if (d.ctxSetCurrent(copy.context) == CUDA_SUCCESS) d.memFree(copy.data);
  d.ctxSetCurrent(current);
}

Result<void> refuse_capture(const Driver& d, CUstream stream) {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (auto ok = d.check(d.streamIsCapturing(stream, &capture), "cuStreamIsCapturing"); !ok) return ok;
  if (capture == CU_STREAM_CAPTURE_STATUS_NONE) return {};
  return Error{ErrorCode::invalid_argument,
               "The first launch of a plan with schedule arrival or a mask by expression uploads its orders, once for every "
               "shape, which would break the stream capture under way. "
               "Launch once outside of the capture first, or call load() with the problem."};
}

Result<void> upload(const Driver& d, CUdeviceptr to, const std::vector<std::uint32_t>& words, CUstream stream) {
  // Waits: launches on other streams use the copy from now on.
  if (auto ok = d.check(d.memcpyHtoDAsync(to, words.data(), words.size() * 4, stream), "cuMemcpyHtoDAsync of the orders of adds");
      !ok)
    return ok;
  return d.check(d.streamSynchronize(stream), "cuStreamSynchronize");
}

Result<Copy> make_copy(const LoadedKernels& kernels, const AttentionBackward& problem, const Plan& plan, CUstream stream) {
  const Driver& d = *kernels.driver;
  if (auto ok = refuse_capture(d, stream); !ok) return ok.error();
  const auto table = table_of(problem, plan);
  if (!table) return table.error();
  Copy copy;
  copy.kernels = &kernels;
  copy.problem = problem;
  if (auto ok = d.check(d.ctxGetCurrent(&copy.context), "cuCtxGetCurrent"); !ok) return ok.error();
  if (auto ok = d.check(d.ctxGetId(copy.context, &copy.context_id), "cuCtxGetId"); !ok) return ok.error();
  const std::size_t bytes = table->words.size() * 4;
  if (auto ok = d.check(d.memAlloc(&copy.data, bytes), fmt::format("cuMemAlloc of {} bytes for the orders of adds", bytes)); !ok)
    return ok.error();
  if (auto ok = upload(d, copy.data, table->words, stream); !ok) {
    d.memFree(copy.data);
    return ok.error();
  }
  return copy;
}

}  // namespace

struct ArrivalTables::State {
  std::shared_mutex mutex;
  std::vector<Copy> copies;

  const unsigned int* find(const LoadedKernels& kernels, const AttentionBackward& problem) const {
    for (const Copy& copy : copies) {
      if (copy.kernels == &kernels && copy.problem == problem) return reinterpret_cast<const unsigned int*>(copy.data);
    }
    return nullptr;
  }
};

ArrivalTables::ArrivalTables() : state_(std::make_unique<State>()) {}
ArrivalTables::ArrivalTables(ArrivalTables&&) noexcept = default;
ArrivalTables::~ArrivalTables() {
  if (!state_) return;
  for (const Copy& copy : state_->copies) release(copy);
}

Result<const unsigned int*> ArrivalTables::get(const LoadedKernels& kernels, const AttentionBackward& problem, const Plan& plan,
                                               CUstream stream) {
  {
    const std::shared_lock lock(state_->mutex);
    if (const unsigned int* found = state_->find(kernels, problem)) return found;
  }
  const std::unique_lock lock(state_->mutex);
  if (const unsigned int* found = state_->find(kernels, problem)) return found;
  const auto copy = make_copy(kernels, problem, plan, stream);
  if (!copy) return copy.error();
  state_->copies.push_back(*copy);
  return state_->find(kernels, problem);
}

}  // namespace ordo
