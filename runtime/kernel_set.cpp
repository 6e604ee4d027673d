#include "runtime/kernel_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <shared_mutex>

#include "runtime/arch.hpp"

namespace ordo {
namespace {

Result<int> attribute_of(const Driver& d, CUdevice_attribute which, CUdevice device) {
  int value = 0;
  if (auto ok = d.check(d.deviceGetAttribute(&value, which, device), "cuDeviceGetAttribute"); !ok) return ok.error();
  return value;
}

/// A cubin for sm_90a runs on compute capability 9.0 and on nothing else; the driver's own message for this is opaque.
Result<void> check_device(const Driver& d, CUdevice device, const KernelImage& image) {
  const Result<int> major = attribute_of(d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  if (!major) return major.error();
  const Result<int> minor = attribute_of(d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  if (!minor) return minor.error();
  if (10 * *major + *minor != arch_number(image.arch)) {
    return Error{ErrorCode::unsupported,
                 fmt::format("Kernel '{}' is compiled for {}, but device {} has compute capability {}.{}.", image.name,
                             image.arch, device, *major, *minor)};
  }
  const Result<int> shared = attribute_of(d, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
  if (!shared) return shared.error();
  if (image.shared_bytes > *shared) {
    return Error{ErrorCode::unsupported, fmt::format("Kernel '{}' needs {} bytes of shared memory a block; device {} has {}.",
                                                     image.name, image.shared_bytes, device, *shared)};
  }
  return {};
}

Result<int> resident_clusters(const Driver& d, CUfunction function, const KernelImage& image, int sm_count) {
  int count = 0;
  if (image.cluster == 1) {
    const CUresult result = d.occupancyMaxActiveBlocksPerMultiprocessor(&count, function, image.threads,
                                                                        static_cast<std::size_t>(image.shared_bytes));
    if (auto ok = d.check(result, fmt::format("occupancy of kernel '{}'", image.name)); !ok) return ok.error();
    return count * sm_count;
  }
  CUlaunchAttribute cluster{};
  cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  cluster.value.clusterDim.x = static_cast<unsigned>(image.cluster);
  cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1;
  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>(image.cluster * sm_count);
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(image.threads);
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(image.shared_bytes);
  config.attrs = &cluster;
  config.numAttrs = 1;
  if (auto ok =
          d.check(d.occupancyMaxActiveClusters(&count, function, &config), fmt::format("occupancy of kernel '{}'", image.name));
      !ok) {
    return ok.error();
  }
  return count;
}

}  // namespace

const LoadedKernel* LoadedKernels::find(std::string_view name) const {
  const auto it = std::find_if(kernels.begin(), kernels.end(), [&](const LoadedKernel& kernel) { return kernel.name == name; });
  return it == kernels.end() ? nullptr : &*it;
}

struct KernelSet::State {
  MadeIn process;
  /// A context by its id too: a destroyed context's address is used again.
  struct Key {
    CUcontext context;
    unsigned long long id;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Loaded {
    Key key;
    std::unique_ptr<LoadedKernels> kernels;
  };

  std::vector<KernelImage> images;
  std::atomic<const Driver*> driver_table;  ///< null before the first load
  std::shared_mutex mutex;
  std::shared_ptr<ModuleRegistry> registry;
  std::vector<std::shared_ptr<Module>> modules;  ///< one an image, for all contexts; empty before the first load
  std::vector<Loaded> loaded;

  const LoadedKernels* find(const Key& key) const {
    const auto it = std::find_if(loaded.begin(), loaded.end(), [&](const Loaded& entry) { return entry.key == key; });
    return it == loaded.end() ? nullptr : it->kernels.get();
  }

  Result<void> load_modules(const Driver& d) {
    while (modules.size() < images.size()) {
      Result<std::shared_ptr<Module>> module = registry->load(d, images[modules.size()]);
      if (!module) return module.error();
      modules.push_back(*std::move(module));
    }
    return {};
  }

  Result<LoadedKernel> load_kernel(const Driver& d, std::size_t index, int sm_count) const {
    const KernelImage& image = images[index];
    CUkernel kernel = nullptr;
    LoadedKernel loaded_kernel{image.name, nullptr, 0};
    if (auto ok = d.check(d.libraryGetKernel(&kernel, modules[index]->get(), image.entry.c_str()),
                          fmt::format("cuLibraryGetKernel of {}", image.entry));
        !ok) {
      return ok.error();
    }
    CUfunction& function = loaded_kernel.function;
    if (auto ok = d.check(d.kernelGetFunction(&function, kernel), fmt::format("cuKernelGetFunction of {}", image.entry)); !ok)
      return ok.error();
    if (image.shared_bytes > 0) {  // beyond 48 KiB a block must opt in
      const CUresult result = d.funcSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, image.shared_bytes);
      if (auto ok = d.check(result, fmt::format("{} bytes of dynamic shared memory for {}", image.shared_bytes, image.entry));
          !ok)
        return ok.error();
    }
    const Result<int> resident = resident_clusters(d, function, image, sm_count);
    if (!resident) return resident.error();
    loaded_kernel.resident_clusters = *resident;
    return loaded_kernel;
  }

  Result<const LoadedKernels*> load(const Driver& d, const Key& key) {
    auto result = std::make_unique<LoadedKernels>();
    result->driver = &d;
    if (auto ok = d.check(d.ctxGetDevice(&result->device), "cuCtxGetDevice"); !ok) return ok.error();
    const Result<int> sm_count = attribute_of(d, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, result->device);
    if (!sm_count) return sm_count.error();
    result->sm_count = *sm_count;
    for (const KernelImage& image : images) {
      if (auto ok = check_device(d, result->device, image); !ok) return ok.error();
    }
    if (auto ok = load_modules(d); !ok) return ok.error();
    for (std::size_t i = 0; i < images.size(); ++i) {
      Result<LoadedKernel> kernel = load_kernel(d, i, *sm_count);
      if (!kernel) return kernel.error();
      result->kernels.push_back(*std::move(kernel));
    }
    loaded.push_back({key, std::move(result)});
    return loaded.back().kernels.get();
  }
};

KernelSet::KernelSet(std::vector<KernelImage> images, const Driver* driver, std::shared_ptr<ModuleRegistry> modules)
    : state_(std::make_unique<State>()) {
  state_->images = std::move(images);
  state_->driver_table = driver;
  state_->registry = modules ? std::move(modules) : std::make_shared<ModuleRegistry>();
}
KernelSet::KernelSet(KernelSet&&) noexcept = default;
KernelSet::~KernelSet() = default;

const std::vector<KernelImage>& KernelSet::images() const { return state_->images; }

Result<const LoadedKernels*> KernelSet::load(CUstream stream) const {
  if (auto ours = state_->process.check("This kernel"); !ours) return ours.error();
  if (state_->driver_table == nullptr) {
    const Result<const Driver*> opened = driver();
    if (!opened) return opened.error();
    state_->driver_table = *opened;
  }
  const Driver& d = *state_->driver_table;
  State::Key key{};
  if (auto ok = d.check(d.ctxGetCurrent(&key.context), "cuCtxGetCurrent"); !ok) return ok.error();
  if (key.context == nullptr) {
    return Error{
        ErrorCode::invalid_argument,
        "No CUDA context is current on this thread. Make the stream's context current (cudaSetDevice, or cuCtxSetCurrent)."};
  }
  if (auto ok = d.check(d.ctxGetId(key.context, &key.id), "cuCtxGetId"); !ok) return ok.error();
  {
    const std::shared_lock lock(state_->mutex);
    if (const LoadedKernels* found = state_->find(key)) return found;
  }
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (auto ok = d.check(d.streamIsCapturing(stream, &capture), "cuStreamIsCapturing"); !ok) return ok.error();
  if (capture != CU_STREAM_CAPTURE_STATUS_NONE) {
    return Error{
        ErrorCode::not_prepared,
        "The stream captures, and the kernels are not loaded on this device: loading them now would break the capture. Call "
        "prepare() with this device's context current, or load(), or launch once, before the capture."};
  }
  const std::unique_lock lock(state_->mutex);
  if (const LoadedKernels* found = state_->find(key)) return found;
  return state_->load(d, key);
}

}  // namespace ordo
