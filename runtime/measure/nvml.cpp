#include "runtime/measure/nvml.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>

namespace ordo::measure {
namespace {

// From NVML's reference: 0 is success; clock types 1 (SM) and 2 (memory).
using Status = int;
constexpr Status kSuccess = 0;
constexpr std::size_t kTextBytes = 96;  // NVML_DEVICE_UUID_V2_BUFFER_SIZE, and longer than a driver version

/// nvmlProcessInfo_t of nvmlDeviceGetComputeRunningProcesses_v3.
struct Process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
constexpr int kSmClock = 1, kMemoryClock = 2;

}  // namespace

struct Nvml::Library {
  void* handle = nullptr;
  Status (*init)() = nullptr;
  Status (*shutdown)() = nullptr;
  Status (*device_by_index)(unsigned, void**) = nullptr;
  Status (*clock)(void*, int, unsigned*) = nullptr;
  Status (*power)(void*, unsigned*) = nullptr;  // milliwatts
  Status (*driver_version)(char*, unsigned) = nullptr;
  Status (*uuid)(void*, char*, unsigned) = nullptr;
  Status (*processes)(void*, unsigned*, Process*) = nullptr;
  bool running = false;

  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (running) (void)shutdown();
    if (handle != nullptr) (void)::dlclose(handle);
  }

  bool start() {
    handle = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return false;
    const auto find = [this](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
      return function != nullptr;
    };
    running = find(init, "nvmlInit_v2") && find(shutdown, "nvmlShutdown") &&
              find(device_by_index, "nvmlDeviceGetHandleByIndex_v2") && find(clock, "nvmlDeviceGetClockInfo") &&
              find(power, "nvmlDeviceGetPowerUsage") && find(driver_version, "nvmlSystemGetDriverVersion") &&
              find(uuid, "nvmlDeviceGetUUID") && find(processes, "nvmlDeviceGetComputeRunningProcesses_v3") && init() == kSuccess;
    return running;
  }
};

std::optional<Nvml> Nvml::open(int index) {
  const auto physical = physical_index(std::getenv("CUDA_VISIBLE_DEVICES"), index);
  if (!physical) return std::nullopt;
  auto library = std::make_shared<Library>();
  void* device = nullptr;
  if (!library->start() || library->device_by_index(*physical, &device) != kSuccess) return std::nullopt;
  return Nvml(std::move(library), device);
}

std::optional<GpuState> Nvml::state() const {
  GpuState out;
  unsigned milliwatts = 0;
  if (library_->clock(device_, kSmClock, &out.sm_clock_mhz) != kSuccess ||
      library_->clock(device_, kMemoryClock, &out.memory_clock_mhz) != kSuccess ||
      library_->power(device_, &milliwatts) != kSuccess) {
    return std::nullopt;
  }
  out.watts = milliwatts * 1e-3;
  return out;
}

std::string Nvml::driver_version() const {
  std::array<char, kTextBytes> text{};
  if (library_->driver_version(text.data(), kTextBytes) != kSuccess) return {};
  return text.data();
}

std::string Nvml::uuid() const {
  std::array<char, kTextBytes> text{};
  if (library_->uuid(device_, text.data(), kTextBytes) != kSuccess) return {};
  return text.data();
}

std::optional<int> Nvml::other_processes() const {
  std::array<Process, 64> list{};
  auto count = static_cast<unsigned>(list.size());
  if (library_->processes(device_, &count, list.data()) != kSuccess) return std::nullopt;
  const auto self = static_cast<unsigned>(::getpid());
  return static_cast<int>(std::count_if(list.begin(), list.begin() + std::min<std::size_t>(count, list.size()),
                                        [&](const Process& p) { return p.pid != self; }));
}

std::optional<unsigned> physical_index(const char* visible_devices, int index) {
  if (index < 0) return std::nullopt;
  if (visible_devices == nullptr) return static_cast<unsigned>(index);
  std::string_view rest = visible_devices;
  for (int i = 0;; ++i) {
    const std::size_t comma = rest.find(',');
    const std::string_view entry = rest.substr(0, comma);
    if (i == index) {
      unsigned number = 0;
      const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), number);
      if (error != std::errc() || end != entry.data() + entry.size() || entry.empty()) return std::nullopt;
      return number;
    }
    if (comma == std::string_view::npos) return std::nullopt;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace ordo::measure
