#include "cli/nvml.hpp"

#include <dlfcn.h>

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>

namespace ordo::cli {
namespace {

// From NVML's reference: 0 is success; clock types 1 (SM) and 2 (memory).
using Status = int;
constexpr Status kSuccess = 0;
constexpr int kSmClock = 1, kMemoryClock = 2;

}  // namespace

struct Nvml::Library {
  void* handle = nullptr;
  Status (*init)() = nullptr;
  Status (*shutdown)() = nullptr;
  Status (*device_by_index)(unsigned, void**) = nullptr;
  Status (*clock)(void*, int, unsigned*) = nullptr;
  Status (*power)(void*, unsigned*) = nullptr;  // milliwatts
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
              find(power, "nvmlDeviceGetPowerUsage") && init() == kSuccess;
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

}  // namespace ordo::cli
