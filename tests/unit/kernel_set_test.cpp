#include "runtime/kernel_set.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <thread>

namespace ordo {
namespace {

/// A driver of the imagination: two contexts on two devices, and what was done to it.
struct FakeDriver {
  unsigned long long context_id = 1;  ///< 0: no context is current
  int device = 0;
  std::map<int, std::pair<int, int>> capability{{0, {9, 0}}, {1, {9, 0}}};
  bool capturing = false;
  CUresult load_result = CUDA_SUCCESS;
  int loads = 0, unloads = 0, functions = 0;
  std::map<int, int> shared_bytes;  ///< by function, as set
  std::set<unsigned> cluster_sizes;
};
FakeDriver* fake = nullptr;

template <class Handle>
Handle handle(std::uintptr_t number) {
  return reinterpret_cast<Handle>(number);
}

CUresult error_text(CUresult, const char** text) {
  *text = "fake";
  return CUDA_SUCCESS;
}
CUresult ctx_get_current(CUcontext* context) {
  *context = fake->context_id == 0 ? nullptr : handle<CUcontext>(16);  // one address for all: only the id tells them apart
  return CUDA_SUCCESS;
}
CUresult ctx_get_id(CUcontext, unsigned long long* id) {
  *id = fake->context_id;
  return CUDA_SUCCESS;
}
CUresult ctx_get_device(CUdevice* device) {
  *device = fake->device;
  return CUDA_SUCCESS;
}
CUresult device_get_attribute(int* value, CUdevice_attribute which, CUdevice device) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = fake->capability[device].first;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = fake->capability[device].second;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = 232448;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
CUresult stream_is_capturing(CUstream, CUstreamCaptureStatus* status) {
  *status = fake->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult exchange_capture_mode(CUstreamCaptureMode*) { return CUDA_SUCCESS; }
CUresult library_load_data(CUlibrary* library, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
  if (fake->load_result != CUDA_SUCCESS) return fake->load_result;
  *library = handle<CUlibrary>(static_cast<std::uintptr_t>(++fake->loads));
  return CUDA_SUCCESS;
}
CUresult library_unload(CUlibrary) {
  ++fake->unloads;
  return CUDA_SUCCESS;
}
CUresult library_get_kernel(CUkernel* kernel, CUlibrary, const char* name) {
  if (std::string(name) == "absent") return CUDA_ERROR_NOT_FOUND;
  *kernel = handle<CUkernel>(32);
  return CUDA_SUCCESS;
}
CUresult kernel_get_function(CUfunction* function, CUkernel) {
  *function = handle<CUfunction>(static_cast<std::uintptr_t>(++fake->functions));
  return CUDA_SUCCESS;
}
CUresult func_set_attribute(CUfunction function, CUfunction_attribute which, int value) {
  CHECK(which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  fake->shared_bytes[static_cast<int>(reinterpret_cast<std::uintptr_t>(function))] = value;
  return CUDA_SUCCESS;
}
CUresult occupancy_blocks(int* count, CUfunction, int threads, std::size_t) {
  *count = 1024 / threads;
  return CUDA_SUCCESS;
}
CUresult occupancy_clusters(int* count, CUfunction, const CUlaunchConfig* config) {
  fake->cluster_sizes.insert(config->attrs[0].value.clusterDim.x);
  CHECK(config->gridDimX % config->attrs[0].value.clusterDim.x == 0);
  *count = 64;
  return CUDA_SUCCESS;
}

Driver table() {
  Driver d;
  d.getErrorName = d.getErrorString = error_text;
  d.ctxGetCurrent = ctx_get_current;
  d.ctxGetId = ctx_get_id;
  d.ctxGetDevice = ctx_get_device;
  d.deviceGetAttribute = device_get_attribute;
  d.streamIsCapturing = stream_is_capturing;
  d.threadExchangeStreamCaptureMode = exchange_capture_mode;
  d.libraryLoadData = library_load_data;
  d.libraryUnload = library_unload;
  d.libraryGetKernel = library_get_kernel;
  d.kernelGetFunction = kernel_get_function;
  d.funcSetAttribute = func_set_attribute;
  d.occupancyMaxActiveBlocksPerMultiprocessor = occupancy_blocks;
  d.occupancyMaxActiveClusters = occupancy_clusters;
  return d;
}

struct Fixture {
  FakeDriver state;
  Driver driver_table = table();
  Fixture() { fake = &state; }
  KernelSet set(std::vector<KernelImage> images) { return KernelSet(std::move(images), &driver_table); }
  static std::vector<KernelImage> images() {
    return {{"main", "k_main", "sm_90a", 384, 200000, 2, {}}, {"convert", "k_convert", "sm_90a", 256, 0, 1, {}}};
  }
};

void check_error(const Result<const LoadedKernels*>& loaded, ErrorCode code, std::string_view part) {
  REQUIRE_FALSE(loaded);
  CHECK(to_string(loaded.error().code) == to_string(code));
  CHECK_MESSAGE(loaded.error().message.find(part) != std::string::npos, loaded.error().message);
}

}  // namespace

TEST_CASE_FIXTURE(Fixture, "kernel set, report 46: loads at the first launch, once a context, and unloads at the end") {
  {
    const KernelSet kernels = set(images());
    CHECK(state.loads == 0);
    const Result<const LoadedKernels*> first = kernels.load(nullptr);
    REQUIRE_MESSAGE(first, first.error().message);
    CHECK(state.loads == 2);
    CHECK((*first)->sm_count == 132);
    REQUIRE((*first)->find("main") != nullptr);
    CHECK((*first)->find("main")->resident_clusters == 64);
    CHECK((*first)->find("convert")->resident_clusters == 4 * 132);
    CHECK((*first)->find("scales") == nullptr);
    CHECK(state.shared_bytes == std::map<int, int>{{1, 200000}});
    CHECK(state.cluster_sizes == std::set<unsigned>{2});

    state.capturing = true;  // loaded already: a capture may launch it
    CHECK(*kernels.load(nullptr) == *first);
    state.capturing = false;

    state.context_id = 2;
    state.device = 1;
    const Result<const LoadedKernels*> second = kernels.load(nullptr);
    REQUIRE(second);
    CHECK(*second != *first);
    CHECK((*second)->device == 1);
    CHECK(state.loads == 2);  // a library serves every context
    CHECK(state.functions == 4);
    state.context_id = 1;
    CHECK(*kernels.load(nullptr) == *first);
    CHECK(state.unloads == 0);
  }
  CHECK(state.unloads == 2);
}

TEST_CASE_FIXTURE(Fixture, "kernel set, report 44: loading is refused while the stream captures, and works afterwards") {
  const KernelSet kernels = set(images());
  state.capturing = true;
  check_error(kernels.load(nullptr), ErrorCode::not_prepared, "capture");
  CHECK(state.loads == 0);
  state.capturing = false;
  CHECK(kernels.load(nullptr));
}

TEST_CASE_FIXTURE(Fixture, "kernel set: no context, another architecture, too much shared memory") {
  const KernelSet kernels = set(images());
  state.context_id = 0;
  check_error(kernels.load(nullptr), ErrorCode::invalid_argument, "No CUDA context");
  state.context_id = 1;
  state.capability[0] = {10, 0};
  check_error(kernels.load(nullptr), ErrorCode::unsupported, "compute capability 10.0");
  state.capability[0] = {9, 0};
  std::vector<KernelImage> large = images();
  large[0].shared_bytes = 232449;
  check_error(set(large).load(nullptr), ErrorCode::unsupported, "232449 bytes of shared memory");
  CHECK(state.loads == 0);
}

TEST_CASE_FIXTURE(Fixture, "kernel set: a driver's failure is named and leaves it usable") {
  const KernelSet kernels = set(images());
  state.load_result = CUDA_ERROR_NO_BINARY_FOR_GPU;
  check_error(kernels.load(nullptr), ErrorCode::driver, "cuLibraryLoadData of kernel 'main'");
  state.load_result = CUDA_SUCCESS;
  CHECK(kernels.load(nullptr));
  CHECK(state.loads == 2);
  std::vector<KernelImage> wrong = images();
  wrong[1].entry = "absent";
  check_error(set(wrong).load(nullptr), ErrorCode::driver, "cuLibraryGetKernel of absent");
}

TEST_CASE_FIXTURE(Fixture, "kernel set: sets share the module of one cubin, and the last of them unloads it") {
  const auto registry = std::make_shared<ModuleRegistry>();
  const auto with = [&](const char* main, const char* convert, int shared_bytes) {
    std::vector<KernelImage> both = images();
    both[0].sha256 = main;
    both[0].shared_bytes = shared_bytes;
    both[1].sha256 = convert;
    return std::make_unique<KernelSet>(std::move(both), &driver_table, registry);
  };
  auto first = with("a", "c", 200000), second = with("b", "c", 200000), third = with("a", "c", 100000);
  REQUIRE(first->load(nullptr));
  CHECK(state.loads == 2);
  REQUIRE(second->load(nullptr));
  CHECK(state.loads == 3);
  REQUIRE(third->load(nullptr));
  CHECK(state.loads == 4);  // the same cubin with other shared memory is a function of its own
  CHECK(registry->size() == 4);
  first.reset();
  CHECK(state.unloads == 1);
  second.reset();
  CHECK(state.unloads == 2);
  third.reset();
  CHECK(state.unloads == 4);
  CHECK(registry->size() == 0);
}

TEST_CASE_FIXTURE(Fixture, "kernel set: threads load once") {
  const KernelSet kernels = set(images());
  std::vector<const LoadedKernels*> found(4, nullptr);
  std::vector<std::thread> threads;
  threads.reserve(found.size());
  for (const LoadedKernels*& result : found) threads.emplace_back([&] { result = *kernels.load(nullptr); });
  for (std::thread& thread : threads) thread.join();
  CHECK(state.loads == 2);
  CHECK(std::all_of(found.begin(), found.end(),
                    [&](const LoadedKernels* result) { return result != nullptr && result == found[0]; }));
}

}  // namespace ordo
