#include "runtime/driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <mutex>

namespace ordo {
namespace {

// cuLibrary and cuGetProcAddress_v2 came with CUDA 12.0 (driver R525); every function is asked for in its form of that version,
// so a newer driver cannot hand out another signature under the same name.
constexpr int driver_api_version = 12000;

struct Symbol {
  const char* name;
  void** slot;
};

template <class Function>
void** slot_of(Function*& function) {
  return reinterpret_cast<void**>(&function);  // POSIX: object and function pointers have one representation
}

auto symbols_of(Driver& d) {
  auto symbols = std::to_array<Symbol>({
      {"cuInit", slot_of(d.init)},
      {"cuDriverGetVersion", slot_of(d.driverGetVersion)},
      {"cuGetErrorName", slot_of(d.getErrorName)},
      {"cuGetErrorString", slot_of(d.getErrorString)},
      {"cuDeviceGet", slot_of(d.deviceGet)},
      {"cuDeviceGetCount", slot_of(d.deviceGetCount)},
      {"cuDeviceGetName", slot_of(d.deviceGetName)},
      {"cuDeviceGetAttribute", slot_of(d.deviceGetAttribute)},
      {"cuDeviceTotalMem", slot_of(d.deviceTotalMem)},
      {"cuDevicePrimaryCtxRetain", slot_of(d.devicePrimaryCtxRetain)},
      {"cuDevicePrimaryCtxRelease", slot_of(d.devicePrimaryCtxRelease)},
      {"cuCtxGetCurrent", slot_of(d.ctxGetCurrent)},
      {"cuCtxSetCurrent", slot_of(d.ctxSetCurrent)},
      {"cuCtxPushCurrent", slot_of(d.ctxPushCurrent)},
      {"cuCtxPopCurrent", slot_of(d.ctxPopCurrent)},
      {"cuCtxGetDevice", slot_of(d.ctxGetDevice)},
      {"cuCtxGetId", slot_of(d.ctxGetId)},
      {"cuCtxSynchronize", slot_of(d.ctxSynchronize)},
      {"cuCtxGetStreamPriorityRange", slot_of(d.ctxGetStreamPriorityRange)},
      {"cuStreamCreate", slot_of(d.streamCreate)},
      {"cuStreamCreateWithPriority", slot_of(d.streamCreateWithPriority)},
      {"cuStreamDestroy", slot_of(d.streamDestroy)},
      {"cuStreamSynchronize", slot_of(d.streamSynchronize)},
      {"cuStreamQuery", slot_of(d.streamQuery)},
      {"cuStreamWaitEvent", slot_of(d.streamWaitEvent)},
      {"cuStreamIsCapturing", slot_of(d.streamIsCapturing)},
      {"cuThreadExchangeStreamCaptureMode", slot_of(d.threadExchangeStreamCaptureMode)},
      {"cuStreamBeginCapture", slot_of(d.streamBeginCapture)},
      {"cuStreamEndCapture", slot_of(d.streamEndCapture)},
      {"cuGraphInstantiateWithFlags", slot_of(d.graphInstantiate)},
      {"cuGraphLaunch", slot_of(d.graphLaunch)},
      {"cuGraphExecDestroy", slot_of(d.graphExecDestroy)},
      {"cuGraphDestroy", slot_of(d.graphDestroy)},
      {"cuEventCreate", slot_of(d.eventCreate)},
      {"cuEventRecord", slot_of(d.eventRecord)},
      {"cuEventQuery", slot_of(d.eventQuery)},
      {"cuEventSynchronize", slot_of(d.eventSynchronize)},
      {"cuEventElapsedTime", slot_of(d.eventElapsedTime)},
      {"cuEventDestroy", slot_of(d.eventDestroy)},
      {"cuMemAlloc", slot_of(d.memAlloc)},
      {"cuMemFree", slot_of(d.memFree)},
      {"cuMemGetInfo", slot_of(d.memGetInfo)},
      {"cuMemHostAlloc", slot_of(d.memHostAlloc)},
      {"cuMemFreeHost", slot_of(d.memFreeHost)},
      {"cuMemHostGetDevicePointer", slot_of(d.memHostGetDevicePointer)},
      {"cuMemcpyHtoD", slot_of(d.memcpyHtoD)},
      {"cuMemcpyDtoH", slot_of(d.memcpyDtoH)},
      {"cuMemcpyDtoD", slot_of(d.memcpyDtoD)},
      {"cuMemcpyHtoDAsync", slot_of(d.memcpyHtoDAsync)},
      {"cuMemcpyDtoHAsync", slot_of(d.memcpyDtoHAsync)},
      {"cuMemcpyDtoDAsync", slot_of(d.memcpyDtoDAsync)},
      {"cuMemsetD8Async", slot_of(d.memsetD8Async)},
      {"cuMemsetD32Async", slot_of(d.memsetD32Async)},
      {"cuDeviceCanAccessPeer", slot_of(d.deviceCanAccessPeer)},
      {"cuCtxEnablePeerAccess", slot_of(d.ctxEnablePeerAccess)},
      {"cuMemGetAllocationGranularity", slot_of(d.memGetAllocationGranularity)},
      {"cuMemCreate", slot_of(d.memCreate)},
      {"cuMemRelease", slot_of(d.memRelease)},
      {"cuMemAddressReserve", slot_of(d.memAddressReserve)},
      {"cuMemAddressFree", slot_of(d.memAddressFree)},
      {"cuMemMap", slot_of(d.memMap)},
      {"cuMemUnmap", slot_of(d.memUnmap)},
      {"cuMemSetAccess", slot_of(d.memSetAccess)},
      {"cuMemExportToShareableHandle", slot_of(d.memExportToShareableHandle)},
      {"cuMemImportFromShareableHandle", slot_of(d.memImportFromShareableHandle)},
      {"cuIpcGetMemHandle", slot_of(d.ipcGetMemHandle)},
      {"cuIpcOpenMemHandle", slot_of(d.ipcOpenMemHandle)},
      {"cuIpcCloseMemHandle", slot_of(d.ipcCloseMemHandle)},
      {"cuStreamWaitValue32", slot_of(d.streamWaitValue32)},
      {"cuStreamWriteValue32", slot_of(d.streamWriteValue32)},
      {"cuLibraryLoadData", slot_of(d.libraryLoadData)},
      {"cuLibraryUnload", slot_of(d.libraryUnload)},
      {"cuLibraryGetKernel", slot_of(d.libraryGetKernel)},
      {"cuKernelGetFunction", slot_of(d.kernelGetFunction)},
      {"cuKernelSetAttribute", slot_of(d.kernelSetAttribute)},
      {"cuFuncSetAttribute", slot_of(d.funcSetAttribute)},
      {"cuFuncGetAttribute", slot_of(d.funcGetAttribute)},
      {"cuOccupancyMaxActiveBlocksPerMultiprocessor", slot_of(d.occupancyMaxActiveBlocksPerMultiprocessor)},
      {"cuOccupancyMaxActiveClusters", slot_of(d.occupancyMaxActiveClusters)},
      {"cuLaunchKernelEx", slot_of(d.launchKernelEx)},
      {"cuTensorMapEncodeTiled", slot_of(d.tensorMapEncodeTiled)},
  });
  static_assert(symbols.size() == sizeof(Driver) / sizeof(void*), "every member of Driver needs its line here");
  return symbols;
}

using GetProcAddress = CUresult(CUDAAPI*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

Error too_old(std::string_view found) {
  return {ErrorCode::no_device,
          fmt::format("The NVIDIA driver is too old: {}. ordo needs a driver for CUDA 12.0 or later (R525 or later).", found)};
}

Result<Driver> open_driver() {
  // Never closed: other libraries of the process use the same driver, and unloading it is not supported.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return Error{
        ErrorCode::no_device,
        fmt::format("No NVIDIA driver: libcuda.so.1 cannot be opened ({}). Planning and compiling work without one; to launch, "
                    "install the driver, or start the container with --gpus all.",
                    reason == nullptr ? "no reason given" : reason)};
  }
  auto get = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) return too_old("libcuda.so.1 has no cuGetProcAddress_v2");
  Result<Driver> table = resolve_driver([get](const char* name, int version) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult status{};
    const CUresult result = get(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, &status);
    return result == CUDA_SUCCESS && status == CU_GET_PROC_ADDRESS_SUCCESS ? address : nullptr;
  });
  if (!table) return table;
  if (Result<void> up = table->check(table->init(0), "cuInit"); !up) return up.error();
  int version = 0;
  if (Result<void> ok = table->check(table->driverGetVersion(&version), "cuDriverGetVersion"); !ok) return ok.error();
  if (version < driver_api_version) return too_old(fmt::format("it is for CUDA {}.{}", version / 1000, version % 1000 / 10));
  return table;
}

}  // namespace

Result<Driver> resolve_driver(const std::function<void*(const char* name, int version)>& lookup) {
  Driver table;
  for (const Symbol& symbol : symbols_of(table)) {
    *symbol.slot = lookup(symbol.name, driver_api_version);
    if (*symbol.slot == nullptr) return too_old(fmt::format("it has no {}", symbol.name));
  }
  return table;
}

Result<const Driver*> driver() {
  static std::atomic<const Driver*> ready{nullptr};  // every launch comes here: no lock once the driver is open
  if (const Driver* table = ready.load(std::memory_order_acquire)) return table;
  static std::mutex mutex;
  static Driver storage;
  const std::scoped_lock lock(mutex);
  if (const Driver* table = ready.load(std::memory_order_acquire)) return table;
  Result<Driver> opened = open_driver();
  if (!opened) return opened.error();
  storage = *opened;
  ready.store(&storage, std::memory_order_release);
  return &storage;
}

Result<void> Driver::check(CUresult result, std::string_view what) const {
  if (result == CUDA_SUCCESS) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  if (getErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown CUresult";
  if (getErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "no description";
  const bool no_device = result == CUDA_ERROR_NO_DEVICE || result == CUDA_ERROR_INVALID_DEVICE ||
                         result == CUDA_ERROR_STUB_LIBRARY || result == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH ||
                         result == CUDA_ERROR_DEVICE_UNAVAILABLE;
  return Error{no_device ? ErrorCode::no_device : ErrorCode::driver,
               fmt::format("{} failed: {} ({}): {}.", what, name, static_cast<int>(result), text)};
}

}  // namespace ordo
