#include "runtime/device.hpp"

#include <fmt/format.h>

#include <array>
#include <cctype>

#include "runtime/driver.hpp"

namespace ordo {
namespace {

CUdeviceptr address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

Result<int> attribute(const Driver& d, CUdevice_attribute which, CUdevice device, std::string_view name) {
  int value = 0;
  if (auto ok = d.check(d.deviceGetAttribute(&value, which, device), fmt::format("cuDeviceGetAttribute {}", name)); !ok)
    return ok.error();
  return value;
}

/// "NVIDIA H200 NVL" holds the word "h200", not "h20".
bool has_word(std::string_view name, std::string_view word) {
  std::string found;
  for (std::size_t i = 0; i <= name.size(); ++i) {
    const char c = i < name.size() ? name[i] : ' ';
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      found += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else {
      if (found == word) return true;
      found.clear();
    }
  }
  return false;
}

}  // namespace

Result<int> device_count() {
  const Result<const Driver*> opened = driver();
  if (!opened) return opened.error();
  const Driver& d = **opened;
  int count = 0;
  if (auto ok = d.check(d.deviceGetCount(&count), "cuDeviceGetCount"); !ok) return ok.error();
  if (count == 0) {
    return Error{ErrorCode::no_device, "The NVIDIA driver sees no GPU. Check nvidia-smi and CUDA_VISIBLE_DEVICES."};
  }
  return count;
}

Result<DeviceFacts> device_facts(int device) {
  const Result<int> count = device_count();
  if (!count) return count.error();
  if (device < 0 || device >= *count) {
    return Error{ErrorCode::no_device,
                 fmt::format("There is no device {}: the driver sees {}, numbered from 0.", device, *count)};
  }
  const Driver& d = **driver();
  CUdevice handle = 0;
  if (auto ok = d.check(d.deviceGet(&handle, device), "cuDeviceGet"); !ok) return ok.error();
  DeviceFacts facts;
  facts.index = device;
  std::array<char, 256> name{};
  if (auto ok = d.check(d.deviceGetName(name.data(), static_cast<int>(name.size()) - 1, handle), "cuDeviceGetName"); !ok)
    return ok.error();
  facts.name = name.data();
  if (auto ok = d.check(d.deviceTotalMem(&facts.memory_bytes, handle), "cuDeviceTotalMem"); !ok) return ok.error();
  if (auto ok = d.check(d.driverGetVersion(&facts.driver_version), "cuDriverGetVersion"); !ok) return ok.error();

  int l2 = 0;
  struct Wanted {
    CUdevice_attribute which;
    std::string_view name;
    int* value;
  };
  for (const Wanted& wanted : {
           Wanted{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "COMPUTE_CAPABILITY_MAJOR", &facts.cc_major},
           Wanted{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, "COMPUTE_CAPABILITY_MINOR", &facts.cc_minor},
           Wanted{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "MULTIPROCESSOR_COUNT", &facts.sm_count},
           Wanted{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
                  &facts.shared_bytes_per_block},
           Wanted{CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, "MAX_REGISTERS_PER_MULTIPROCESSOR",
                  &facts.registers_per_sm},
           Wanted{CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, "L2_CACHE_SIZE", &l2},
       }) {
    const Result<int> value = attribute(d, wanted.which, handle, wanted.name);
    if (!value) return value.error();
    *wanted.value = *value;
  }
  facts.l2_bytes = static_cast<std::size_t>(l2);
  return facts;
}

Result<int> current_device() {
  const Result<int> count = device_count();
  if (!count) return count.error();
  const Driver& d = **driver();
  CUcontext context = nullptr;
  if (auto ok = d.check(d.ctxGetCurrent(&context), "cuCtxGetCurrent"); !ok) return ok.error();
  if (context == nullptr) return 0;
  CUdevice device = 0;
  if (auto ok = d.check(d.ctxGetDevice(&device), "cuCtxGetDevice"); !ok) return ok.error();
  return static_cast<int>(device);  // a CUdevice is the device's ordinal
}

bool has_current_context() {
  const Result<const Driver*> d = driver();
  CUcontext context = nullptr;
  return d && (*d)->ctxGetCurrent(&context) == CUDA_SUCCESS && context != nullptr;
}

Result<Target> target_of_facts(const DeviceFacts& facts) {
  if (facts.cc_major != 9 || facts.cc_minor != 0) {
    return Error{ErrorCode::unsupported,
                 fmt::format("Device {} ({}) has compute capability {}.{}; ordo's kernels are for 9.0 (Hopper: H100, H200, "
                             "H800, H20).",
                             facts.index, facts.name, facts.cc_major, facts.cc_minor)};
  }
  for (const char* name : {"h100", "h200", "h800", "h20"}) {
    if (!has_word(facts.name, name)) continue;
    Result<Target> target = parse_target(name);
    if (!target) return target;
    // A MIG slice or a PCIe card carries the name of its bigger sibling: then only the SM count is certain.
    if (target->sm_count == facts.sm_count && target->shared_bytes_per_block == facts.shared_bytes_per_block) return target;
  }
  return parse_target(fmt::format("sm_90a:{}", facts.sm_count));
}

Result<Target> target_of_device(int device) {
  const Result<DeviceFacts> facts = device_facts(device);
  if (!facts) return facts.error();
  return target_of_facts(*facts);
}

Result<DeviceContext> DeviceContext::open(int device) {
  Result<DeviceFacts> facts = device_facts(device);
  if (!facts) return facts.error();
  const Driver& d = **driver();
  DeviceContext context;
  context.facts_ = *std::move(facts);
  if (auto ok = d.check(d.ctxGetCurrent(&context.previous_), "cuCtxGetCurrent"); !ok) return ok.error();
  if (auto ok = d.check(d.devicePrimaryCtxRetain(&context.context_, device),
                        fmt::format("cuDevicePrimaryCtxRetain of device {}", device));
      !ok) {
    return ok.error();
  }
  if (auto ok = context.make_current(); !ok) return ok.error();
  return context;
}

DeviceContext::DeviceContext(DeviceContext&& other) noexcept
    : facts_(std::move(other.facts_)),
      context_(std::exchange(other.context_, nullptr)),
      previous_(std::exchange(other.previous_, nullptr)) {}

// Destructors have nobody to tell: a failure here means that the context is gone already, and what it owned with it.

DeviceContext::~DeviceContext() {
  if (context_ == nullptr) return;
  const Driver& d = **driver();
  CUcontext current = nullptr;
  if (d.ctxGetCurrent(&current) == CUDA_SUCCESS && current == context_) d.ctxSetCurrent(previous_);
  d.devicePrimaryCtxRelease(facts_.index);
}

Result<void> DeviceContext::make_current() const {
  const Driver& d = **driver();
  return d.check(d.ctxSetCurrent(context_), "cuCtxSetCurrent");
}

Result<void> DeviceContext::synchronize() const {
  const Driver& d = **driver();
  return d.check(d.ctxSynchronize(), "cuCtxSynchronize");
}

Result<std::size_t> DeviceContext::free_bytes() const {
  const Driver& d = **driver();
  std::size_t free = 0;
  std::size_t total = 0;
  if (auto ok = d.check(d.memGetInfo(&free, &total), "cuMemGetInfo"); !ok) return ok.error();
  return free;
}

Result<DeviceBuffer> DeviceBuffer::allocate(std::size_t bytes) {
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  const Result<const Driver*> d = driver();
  if (!d) return d.error();
  CUdeviceptr data = 0;
  if (auto ok = (*d)->check((*d)->memAlloc(&data, bytes), fmt::format("cuMemAlloc of {} bytes", bytes)); !ok) return ok.error();
  buffer.data_ = reinterpret_cast<void*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) (*driver())->memFree(address(data_));
}

namespace {
Result<void> check_range(std::size_t bytes, std::size_t offset, std::size_t size) {
  if (offset <= size && bytes <= size - offset) return {};
  return Error{
      ErrorCode::invalid_argument,
      fmt::format("A copy of {} bytes at offset {} passes the end of a device buffer of {} bytes.", bytes, offset, size)};
}
}  // namespace

Result<void> DeviceBuffer::copy_from_host(const void* host, std::size_t bytes, std::size_t offset) {
  if (auto ok = check_range(bytes, offset, bytes_); !ok || bytes == 0) return ok;
  const Driver& d = **driver();
  if (auto ok = d.check(d.memcpyHtoD(address(data_) + offset, host, bytes), "cuMemcpyHtoD"); !ok) return ok;
  // From pageable memory it returns once the bytes are staged; streams that do not wait for the default one could overtake them
  // (CUDA driver API, "API synchronization behavior").
  return d.check(d.streamSynchronize(nullptr), "cuStreamSynchronize");
}

Result<void> DeviceBuffer::copy_to_host(void* host, std::size_t bytes, std::size_t offset) const {
  if (auto ok = check_range(bytes, offset, bytes_); !ok || bytes == 0) return ok;
  const Driver& d = **driver();
  return d.check(d.memcpyDtoH(host, address(data_) + offset, bytes), "cuMemcpyDtoH");
}

Result<void> DeviceBuffer::fill(std::uint8_t value, CUstream_st* stream) {
  if (bytes_ == 0) return {};
  const Driver& d = **driver();
  return d.check(d.memsetD8Async(address(data_), value, bytes_, stream), "cuMemsetD8Async");
}

Result<Stream> Stream::create() {
  const Result<const Driver*> d = driver();
  if (!d) return d.error();
  Stream stream;
  if (auto ok = (*d)->check((*d)->streamCreate(&stream.stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate"); !ok)
    return ok.error();
  return stream;
}

Stream::~Stream() {
  if (stream_ != nullptr) (*driver())->streamDestroy(stream_);
}

Result<void> Stream::synchronize() const {
  const Driver& d = **driver();
  return d.check(d.streamSynchronize(stream_), "cuStreamSynchronize");
}

Result<Event> Event::create() {
  const Result<const Driver*> d = driver();
  if (!d) return d.error();
  Event event;
  if (auto ok = (*d)->check((*d)->eventCreate(&event.event_, CU_EVENT_DEFAULT), "cuEventCreate"); !ok) return ok.error();
  return event;
}

Event::~Event() {
  if (event_ != nullptr) (*driver())->eventDestroy(event_);
}

Result<void> Event::record(CUstream_st* stream) const {
  const Driver& d = **driver();
  return d.check(d.eventRecord(event_, stream), "cuEventRecord");
}

Result<void> Event::synchronize() const {
  const Driver& d = **driver();
  return d.check(d.eventSynchronize(event_), "cuEventSynchronize");
}

Result<bool> Event::done() const {
  const Driver& d = **driver();
  const CUresult result = d.eventQuery(event_);
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (auto ok = d.check(result, "cuEventQuery"); !ok) return ok.error();
  return true;
}

Result<double> Event::milliseconds_since(const Event& start) const {
  const Driver& d = **driver();
  float milliseconds = 0;
  if (auto ok = d.check(d.eventElapsedTime(&milliseconds, start.event_, event_), "cuEventElapsedTime"); !ok) return ok.error();
  return static_cast<double>(milliseconds);
}

}  // namespace ordo
