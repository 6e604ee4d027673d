// The CUDA driver API, opened at run time, so that a machine without a GPU or driver still plans, compiles and tests.
//
// For code that launches; it includes <cuda.h>. Code that only needs a device, memory, streams and timing: runtime/device.hpp.
#pragma once

#include <cuda.h>

#include <functional>
#include <string>
#include <string_view>

#include "ordo/error.hpp"

namespace ordo {

/// The functions of libcuda.so.1 that ordo calls. Member `fooBar` is the driver's cuFooBar, in the form it had in CUDA 12.0 (the
/// first with cuLibrary); see the CUDA driver API reference for each. A table from driver() has no null member and lives for
/// ever.
struct Driver {
  // NOLINTBEGIN(readability-identifier-naming): the members are named after the functions they point to
  decltype(&::cuInit) init = nullptr;
  decltype(&::cuDriverGetVersion) driverGetVersion = nullptr;
  decltype(&::cuGetErrorName) getErrorName = nullptr;
  decltype(&::cuGetErrorString) getErrorString = nullptr;

  decltype(&::cuDeviceGet) deviceGet = nullptr;
  decltype(&::cuDeviceGetCount) deviceGetCount = nullptr;
  decltype(&::cuDeviceGetName) deviceGetName = nullptr;
  decltype(&::cuDeviceGetAttribute) deviceGetAttribute = nullptr;
  decltype(&::cuDeviceTotalMem) deviceTotalMem = nullptr;

  decltype(&::cuDevicePrimaryCtxRetain) devicePrimaryCtxRetain = nullptr;
  decltype(&::cuDevicePrimaryCtxRelease) devicePrimaryCtxRelease = nullptr;
  decltype(&::cuCtxGetCurrent) ctxGetCurrent = nullptr;
  decltype(&::cuCtxSetCurrent) ctxSetCurrent = nullptr;
  decltype(&::cuCtxPushCurrent) ctxPushCurrent = nullptr;
  decltype(&::cuCtxPopCurrent) ctxPopCurrent = nullptr;
  CUresult(CUDAAPI* ctxGetDevice)(CUdevice*) = nullptr;  // spelled out: CUDA 13 headers may declare a newer form
  decltype(&::cuCtxGetId) ctxGetId = nullptr;
  CUresult(CUDAAPI* ctxSynchronize)() = nullptr;  // likewise
  decltype(&::cuCtxGetStreamPriorityRange) ctxGetStreamPriorityRange = nullptr;

  decltype(&::cuStreamCreate) streamCreate = nullptr;
  decltype(&::cuStreamCreateWithPriority) streamCreateWithPriority = nullptr;
  decltype(&::cuStreamDestroy) streamDestroy = nullptr;
  decltype(&::cuStreamSynchronize) streamSynchronize = nullptr;
  decltype(&::cuStreamQuery) streamQuery = nullptr;
  decltype(&::cuStreamWaitEvent) streamWaitEvent = nullptr;
  decltype(&::cuStreamIsCapturing) streamIsCapturing = nullptr;
  decltype(&::cuThreadExchangeStreamCaptureMode) threadExchangeStreamCaptureMode = nullptr;
  decltype(&::cuStreamBeginCapture) streamBeginCapture = nullptr;
  decltype(&::cuStreamEndCapture) streamEndCapture = nullptr;
  decltype(&::cuGraphInstantiate) graphInstantiate =
      nullptr;  // cuGraphInstantiateWithFlags: the plain name is the older five-argument form
  decltype(&::cuGraphLaunch) graphLaunch = nullptr;
  decltype(&::cuGraphExecDestroy) graphExecDestroy = nullptr;
  decltype(&::cuGraphDestroy) graphDestroy = nullptr;

  decltype(&::cuEventCreate) eventCreate = nullptr;
  decltype(&::cuEventRecord) eventRecord = nullptr;
  decltype(&::cuEventQuery) eventQuery = nullptr;
  decltype(&::cuEventSynchronize) eventSynchronize = nullptr;
  decltype(&::cuEventElapsedTime) eventElapsedTime = nullptr;
  decltype(&::cuEventDestroy) eventDestroy = nullptr;

  decltype(&::cuMemAlloc) memAlloc = nullptr;
  decltype(&::cuMemFree) memFree = nullptr;
  decltype(&::cuMemGetInfo) memGetInfo = nullptr;
  decltype(&::cuMemHostAlloc) memHostAlloc = nullptr;
  decltype(&::cuMemFreeHost) memFreeHost = nullptr;
  decltype(&::cuMemHostGetDevicePointer) memHostGetDevicePointer = nullptr;
  decltype(&::cuMemcpyHtoD) memcpyHtoD = nullptr;
  decltype(&::cuMemcpyDtoH) memcpyDtoH = nullptr;
  decltype(&::cuMemcpyDtoD) memcpyDtoD = nullptr;
  decltype(&::cuMemcpyHtoDAsync) memcpyHtoDAsync = nullptr;
  decltype(&::cuMemcpyDtoHAsync) memcpyDtoHAsync = nullptr;
  decltype(&::cuMemcpyDtoDAsync) memcpyDtoDAsync = nullptr;
  decltype(&::cuMemsetD8Async) memsetD8Async = nullptr;
  decltype(&::cuMemsetD32Async) memsetD32Async = nullptr;

  // Memory that other devices and processes map (runtime/peers), and values that order copies against a running kernel.
  decltype(&::cuDeviceCanAccessPeer) deviceCanAccessPeer = nullptr;
  decltype(&::cuCtxEnablePeerAccess) ctxEnablePeerAccess = nullptr;
  decltype(&::cuMemGetAllocationGranularity) memGetAllocationGranularity = nullptr;
  decltype(&::cuMemCreate) memCreate = nullptr;
  decltype(&::cuMemRelease) memRelease = nullptr;
  decltype(&::cuMemAddressReserve) memAddressReserve = nullptr;
  decltype(&::cuMemAddressFree) memAddressFree = nullptr;
  decltype(&::cuMemMap) memMap = nullptr;
  decltype(&::cuMemUnmap) memUnmap = nullptr;
  decltype(&::cuMemSetAccess) memSetAccess = nullptr;
  decltype(&::cuMemExportToShareableHandle) memExportToShareableHandle = nullptr;
  decltype(&::cuMemImportFromShareableHandle) memImportFromShareableHandle = nullptr;
  decltype(&::cuIpcGetMemHandle) ipcGetMemHandle = nullptr;
  decltype(&::cuIpcOpenMemHandle) ipcOpenMemHandle = nullptr;
  decltype(&::cuIpcCloseMemHandle) ipcCloseMemHandle = nullptr;
  decltype(&::cuStreamWaitValue32) streamWaitValue32 = nullptr;
  decltype(&::cuStreamWriteValue32) streamWriteValue32 = nullptr;

  decltype(&::cuLibraryLoadData) libraryLoadData = nullptr;
  decltype(&::cuLibraryUnload) libraryUnload = nullptr;
  decltype(&::cuLibraryGetKernel) libraryGetKernel = nullptr;
  decltype(&::cuKernelGetFunction) kernelGetFunction = nullptr;
  decltype(&::cuKernelSetAttribute) kernelSetAttribute = nullptr;
  decltype(&::cuFuncSetAttribute) funcSetAttribute = nullptr;
  decltype(&::cuFuncGetAttribute) funcGetAttribute = nullptr;
  decltype(&::cuOccupancyMaxActiveBlocksPerMultiprocessor) occupancyMaxActiveBlocksPerMultiprocessor = nullptr;
  decltype(&::cuOccupancyMaxActiveClusters) occupancyMaxActiveClusters = nullptr;
  decltype(&::cuLaunchKernelEx) launchKernelEx = nullptr;
  decltype(&::cuTensorMapEncodeTiled) tensorMapEncodeTiled = nullptr;

  /// Success, or an Error that names `what` ("cuMemAlloc of 4096 bytes"), the result's name and its text.
  /// Code: no_device for a driver without a usable device, driver for the rest.
  [[nodiscard]] ORDO_API Result<void> check(CUresult result, std::string_view what) const;
  // NOLINTEND(readability-identifier-naming)
};

/// The driver, opened and initialised (cuInit) once a process. Thread-safe. Errors, all ErrorCode::no_device: libcuda.so.1 is not
/// installed, is older than CUDA 12.0, or has no usable device. A failure is not remembered: a later call tries again.
ORDO_API Result<const Driver*> driver();

/// Fills a table through `lookup(name, version)`, which gives the function's address or null. What driver() uses, apart for
/// tests. Errors (no_device): a function is missing; the message names the first.
ORDO_API Result<Driver> resolve_driver(const std::function<void*(const char* name, int version)>& lookup);

}  // namespace ordo
