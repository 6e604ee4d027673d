// A libcuda.so.1 of host memory and threads, for programs that link ordo where there is no GPU: two devices "of capability 9.0",
// streams that are threads, and kernels that instead of computing hash everything they were given. What a kernel read through
// another launch's workspace or parameters therefore shows in its outputs.
//
// Made of tests/unit/peers/fake_driver, which has memory, streams and events, and of what loading and launching needs.
#include <cuda.h>

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/driver.hpp"
#include "templates/attention_backward/params.cuh"
#include "tests/unit/peers/fake_driver.hpp"

namespace ordo {
namespace {

namespace kernels = attention_backward;

constexpr int kDevices = 2;

/// A loaded cubin. Never freed: a launch after its unloading must be noticed, not crash.
struct Library {
  std::uint64_t digest = 0;
  std::atomic<bool> loaded{true};
  std::atomic<int> in_flight{0};
};
struct Function {
  Library* library = nullptr;
  std::string entry;
};

std::mutex mutex;  // of the two lists
std::vector<std::unique_ptr<Library>> libraries;
std::vector<std::unique_ptr<Function>> functions;

class Hash {
 public:
  Hash& bytes(const void* data, std::size_t size) {
    const auto* byte = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < size; ++i) value_ = (value_ ^ byte[i]) * 0x100000001b3u;
    return *this;
  }
  template <class T>
  Hash& of(const T& value) {
    return bytes(&value, sizeof value);
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

Hash& add(Hash& hash, const kernels::Scratch& s) {
  return hash.of(s.neg_lse2).of(s.neg_delta).of(s.dq).of(s.control).of(s.row_scale).of(s.poison).of(s.key_exponents);
}

std::uint64_t read(const void* from) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, sizeof value);
  return value;
}
void write(void* to, std::uint64_t value) { std::memcpy(to, &value, sizeof value); }

/// A map begins with the tensor's address, see encode().
void* tensor_of(const TensorMap& map) { return reinterpret_cast<void*>(read(map.bytes)); }

void preprocess(const kernels::PreprocessParams& p, std::uint64_t cubin) {
  Hash hash;
  add(hash.of(cubin).of(p.o).of(p.d_o).of(p.lse).of(p.o_strides).of(p.do_strides).of(p.shape), p.scratch);
  write(p.scratch.neg_lse2, hash.value());
}
void scales(const kernels::ScalesParams& p, std::uint64_t cubin) {
  Hash hash;
  add(hash.of(cubin).of(p.k).of(p.v).of(p.k_strides).of(p.v_strides).of(p.shape), p.scratch);
  write(p.scratch.key_exponents, hash.value());
}
void main_kernel(const kernels::MainParams& p, std::uint64_t cubin) {
  Hash hash;
  add(hash.of(cubin).of(p.q).of(p.d_o).of(p.k).of(p.v).of(p.dk).of(p.dv).of(p.shape).of(p.scale).of(p.scale_log2), p.scratch);
  hash.of(p.dq.data).of(p.dq.strides).of(p.dq.scale).of(read(p.scratch.neg_lse2));
  write(p.scratch.dq, hash.value());
  write(p.dq.data, hash.value());
  write(tensor_of(p.dk), hash.value() + 1);
  write(tensor_of(p.dv), hash.value() + 2);
}
void convert(const kernels::ConvertParams& p, std::uint64_t cubin) {
  Hash hash;
  add(hash.of(cubin).of(p.dq.data).of(p.dq.strides).of(p.dq.scale).of(p.shape).of(read(p.scratch.dq)), p.scratch);
  write(p.dq.data, hash.value());
}

template <class Params>
CUresult enqueue(CUstream stream, Library& library, const void* params, void (*kernel)(const Params&, std::uint64_t)) {
  auto copy = std::make_shared<Params>(*static_cast<const Params*>(params));
  ++library.in_flight;
  test::fake::launch(stream, [copy, &library, kernel] {
    kernel(*copy, library.digest);
    --library.in_flight;
  });
  return CUDA_SUCCESS;
}

CUresult launch(const CUlaunchConfig* config, CUfunction function, void** params, void**) {
  const Function& what = *reinterpret_cast<Function*>(function);
  if (!what.library->loaded) return CUDA_ERROR_INVALID_HANDLE;
  const auto named = [&](const char* name) { return what.entry.find(name) != std::string::npos; };
  if (named("preprocess")) return enqueue<kernels::PreprocessParams>(config->hStream, *what.library, params[0], preprocess);
  if (named("scales")) return enqueue<kernels::ScalesParams>(config->hStream, *what.library, params[0], scales);
  if (named("convert")) return enqueue<kernels::ConvertParams>(config->hStream, *what.library, params[0], convert);
  return enqueue<kernels::MainParams>(config->hStream, *what.library, params[0], main_kernel);
}

CUresult init(unsigned) { return CUDA_SUCCESS; }
CUresult version(int* out) {
  *out = 13000;
  return CUDA_SUCCESS;
}
CUresult device_get(CUdevice* out, int index) {
  *out = index;
  return index < kDevices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult device_count(int* out) {
  *out = kDevices;
  return CUDA_SUCCESS;
}
CUresult device_attribute(int* value, CUdevice_attribute which, CUdevice) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = 232448;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}

/// The contexts of fake_driver, numbered as they are met; the number is the device too.
int number_of(CUcontext context) {
  static std::map<CUcontext, int> numbers;
  const std::scoped_lock lock(mutex);
  return numbers.emplace(context, static_cast<int>(numbers.size())).first->second;
}
CUresult context_id(CUcontext context, unsigned long long* id) {
  *id = static_cast<unsigned long long>(number_of(context)) + 1;
  return CUDA_SUCCESS;
}
CUresult context_device(CUdevice* device) {
  CUcontext current = nullptr;
  test::fake::driver().ctxGetCurrent(&current);
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = number_of(current);
  return CUDA_SUCCESS;
}

CUresult library_load(CUlibrary* out, const void* cubin, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
  auto library = std::make_unique<Library>();
  library->digest = Hash().bytes(cubin, 4096).value();
  const std::scoped_lock lock(mutex);
  *out = reinterpret_cast<CUlibrary>(libraries.emplace_back(std::move(library)).get());
  return CUDA_SUCCESS;
}
/// Waits for what is in flight, as the real one does (tests/link/link_test.cpp shows it on a GPU).
CUresult library_unload(CUlibrary library) {
  auto& what = *reinterpret_cast<Library*>(library);
  while (what.in_flight > 0) std::this_thread::yield();
  what.loaded = false;
  return CUDA_SUCCESS;
}
CUresult library_kernel(CUkernel* out, CUlibrary library, const char* name) {
  const std::scoped_lock lock(mutex);
  auto& kernel = functions.emplace_back(std::make_unique<Function>());
  kernel->library = reinterpret_cast<Library*>(library);
  kernel->entry = name;
  *out = reinterpret_cast<CUkernel>(kernel.get());
  return CUDA_SUCCESS;
}
CUresult kernel_function(CUfunction* out, CUkernel kernel) {
  *out = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
CUresult set_attribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult blocks(int* count, CUfunction, int, std::size_t) {
  *count = 1;
  return CUDA_SUCCESS;
}
CUresult clusters(int* count, CUfunction, const CUlaunchConfig*) {
  *count = 66;
  return CUDA_SUCCESS;
}
CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* sizes,
                const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  Hash hash;
  hash.of(type).bytes(sizes, rank * sizeof *sizes).bytes(strides, (rank - 1) * sizeof *strides).bytes(box, rank * sizeof *box);
  std::memset(map, 0, sizeof *map);
  write(map, reinterpret_cast<std::uint64_t>(address));
  write(reinterpret_cast<char*>(map) + 8, hash.value());
  return CUDA_SUCCESS;
}
CUresult memory_info(std::size_t* free, std::size_t* total) {
  *total = std::size_t{1} << 37;
  *free = *total - static_cast<std::size_t>(test::fake::live().allocations);
  return CUDA_SUCCESS;
}

Driver make_table() {
  Driver d = test::fake::driver();
  d.init = init;
  d.driverGetVersion = version;
  d.deviceGet = device_get;
  d.deviceGetCount = device_count;
  d.deviceGetAttribute = device_attribute;
  d.ctxGetId = context_id;
  d.ctxGetDevice = context_device;
  d.memGetInfo = memory_info;
  d.libraryLoadData = library_load;
  d.libraryUnload = library_unload;
  d.libraryGetKernel = library_kernel;
  d.kernelGetFunction = kernel_function;
  d.funcSetAttribute = set_attribute;
  d.occupancyMaxActiveBlocksPerMultiprocessor = blocks;
  d.occupancyMaxActiveClusters = clusters;
  d.launchKernelEx = launch;
  d.tensorMapEncodeTiled = encode;
  return d;
}

CUresult unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }

using Slots = std::array<void*, sizeof(Driver) / sizeof(void*)>;

Slots slots_of(const Driver& table) {
  Slots slots;
  std::memcpy(slots.data(), &table, sizeof table);
  return slots;
}

/// Where each function lies in a table: found by filling one with numbers.
std::map<std::string, std::size_t> make_index() {
  std::vector<std::string> names;
  const auto numbered = resolve_driver([&](const char* name, int) {
    names.emplace_back(name);
    return reinterpret_cast<void*>(names.size());
  });
  std::map<std::string, std::size_t> index;
  const Slots slots = slots_of(*numbered);
  for (std::size_t i = 0; i < slots.size(); ++i) index[names[reinterpret_cast<std::size_t>(slots[i]) - 1]] = i;
  return index;
}

}  // namespace
}  // namespace ordo

extern "C" __attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(const char* name, void** out, int, cuuint64_t,
                                                                               CUdriverProcAddressQueryResult* status) {
  static const std::map<std::string, std::size_t> index = ordo::make_index();
  static const ordo::Slots slots = ordo::slots_of(ordo::make_table());
  const auto found = index.find(name);
  *out = found == index.end() ? nullptr : slots[found->second];
  if (*out == nullptr) *out = reinterpret_cast<void*>(&ordo::unsupported);
  *status = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}
