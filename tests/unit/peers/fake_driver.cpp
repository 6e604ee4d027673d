#include "tests/unit/peers/fake_driver.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

namespace ordo::test::fake {
namespace {

constexpr std::size_t kPage = 4096;
constexpr int kDevices = 16;

struct Failure {
  std::string name;
  CUresult result;
  int device, after;
};

// Everything that the functions share.
struct World {
  std::mutex mutex;
  std::vector<Failure> failures;
  std::map<CUdeviceptr, std::pair<int, std::size_t>> allocations;  // address: memfd, bytes
  std::map<CUdeviceptr, std::size_t> opened;                       // by cuIpcOpenMemHandle
  Live live;
  std::atomic<std::uint32_t> seed{0};
  std::atomic<int> most_microseconds{0};
  std::atomic<bool> undefined_copies{false};
};
World& world() {
  static World instance;
  return instance;
}

int contexts[kDevices];
thread_local CUcontext current = nullptr;
thread_local bool capturing = false;

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(&contexts[device]); }
int current_device() { return current == nullptr ? -1 : static_cast<int>(reinterpret_cast<int*>(current) - contexts); }

std::optional<CUresult> injected(const char* name) {
  const std::scoped_lock lock(world().mutex);
  for (Failure& failure : world().failures) {
    if (failure.name != name || (failure.device >= 0 && failure.device != current_device())) continue;
    if (failure.after-- <= 0) return failure.result;
  }
  return std::nullopt;
}

void count(int Live::* member, int by) {
  const std::scoped_lock lock(world().mutex);
  world().live.*member += by;
}

std::atomic_ref<std::uint32_t> word(CUdeviceptr address) { return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(address)); }
void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// A thread that does one thing after another.
class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    {
      const std::scoped_lock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void push(std::function<void()> work) {
    {
      const std::scoped_lock lock(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  bool idle() {
    const std::scoped_lock lock(mutex_);
    return queue_.empty();
  }
  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return queue_.empty(); });
  }

 private:
  void run() {
    static std::atomic<std::uint32_t> number{0};
    std::minstd_rand random(world().seed + ++number * 7919u);
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !queue_.empty() || ending_; });
      if (queue_.empty()) return;
      const std::function<void()> work = std::move(queue_.front());
      lock.unlock();
      if (const int most = world().most_microseconds; most > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int>(random() % static_cast<unsigned>(most))));
      }
      work();
      lock.lock();
      queue_.pop_front();  // only now: idle() and drain() wait for the work itself
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool ending_ = false;
  std::thread thread_;
};

struct Event {
  std::atomic<std::uint64_t> recorded{0}, done{0};
};

Stream* stream_of(CUstream stream) { return reinterpret_cast<Stream*>(stream); }
Event* event_of(CUevent event) { return reinterpret_cast<Event*>(event); }

CUresult enqueue(CUstream stream, std::function<void()> work) {
  if (stream == nullptr) {
    work();
  } else {
    stream_of(stream)->push(std::move(work));
  }
  return CUDA_SUCCESS;
}

void pause() { std::this_thread::sleep_for(std::chrono::microseconds(10)); }

// clang-format off
#define ORDO_FAKE(name) if (const auto bad = injected(name)) return *bad
// clang-format on

CUresult error_name(CUresult result, const char** text) {
  *text = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
  return CUDA_SUCCESS;
}

CUresult ctx_get_current(CUcontext* context) {
  *context = current;
  return CUDA_SUCCESS;
}
CUresult ctx_set_current(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}
CUresult primary_retain(CUcontext* context, CUdevice device) {
  ORDO_FAKE("devicePrimaryCtxRetain");
  if (device < 0 || device >= kDevices) return CUDA_ERROR_INVALID_DEVICE;
  *context = context_of(device);
  count(&Live::contexts, 1);
  return CUDA_SUCCESS;
}
CUresult primary_release(CUdevice) {
  count(&Live::contexts, -1);
  return CUDA_SUCCESS;
}
CUresult exchange_capture_mode(CUstreamCaptureMode*) { return CUDA_SUCCESS; }
CUresult enable_peer(CUcontext, unsigned) {
  ORDO_FAKE("ctxEnablePeerAccess");
  return CUDA_SUCCESS;
}

CUresult stream_create(CUstream* stream, unsigned) {
  ORDO_FAKE("streamCreate");
  *stream = reinterpret_cast<CUstream>(new Stream);
  count(&Live::streams, 1);
  return CUDA_SUCCESS;
}
CUresult stream_create_with_priority(CUstream* stream, unsigned flags, int) { return stream_create(stream, flags); }
CUresult stream_priorities(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}
CUresult stream_destroy(CUstream stream) {
  delete stream_of(stream);
  count(&Live::streams, -1);
  return CUDA_SUCCESS;
}
CUresult stream_synchronize(CUstream stream) {
  if (stream != nullptr) stream_of(stream)->drain();
  return CUDA_SUCCESS;
}
CUresult stream_query(CUstream stream) {
  ORDO_FAKE("streamQuery");
  return stream == nullptr || stream_of(stream)->idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult stream_is_capturing(CUstream, CUstreamCaptureStatus* status) {
  *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult stream_wait_event(CUstream stream, CUevent event, unsigned) {
  const std::uint64_t wanted = event_of(event)->recorded;
  return enqueue(stream, [event, wanted] {
    while (event_of(event)->done < wanted) pause();
  });
}
CUresult event_create(CUevent* event, unsigned) {
  ORDO_FAKE("eventCreate");
  *event = reinterpret_cast<CUevent>(new Event);
  count(&Live::events, 1);
  return CUDA_SUCCESS;
}
CUresult event_destroy(CUevent event) {
  delete event_of(event);
  count(&Live::events, -1);
  return CUDA_SUCCESS;
}
CUresult event_record(CUevent event, CUstream stream) {
  ORDO_FAKE("eventRecord");
  const std::uint64_t number = ++event_of(event)->recorded;
  return enqueue(stream, [event, number] { event_of(event)->done = number; });
}
CUresult event_query(CUevent event) {
  return event_of(event)->done >= event_of(event)->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

// Memory of one memfd; what exports and handles name.
int make_file(std::size_t bytes) {
  const int fd = ::memfd_create("ordo-fake", MFD_CLOEXEC);
  if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(pages(bytes))) != 0) {
    ::close(fd);
    return -1;
  }
  return fd;
}
void* map_file(int fd, std::size_t bytes) {
  void* at = ::mmap(nullptr, pages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : at;
}

CUresult mem_alloc(CUdeviceptr* out, std::size_t bytes) {
  ORDO_FAKE("memAlloc");
  const int fd = make_file(bytes);
  void* at = fd < 0 ? nullptr : map_file(fd, bytes);
  if (at == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<CUdeviceptr>(at);
  count(&Live::allocations, 1);
  const std::scoped_lock lock(world().mutex);
  world().allocations[*out] = {fd, bytes};
  return CUDA_SUCCESS;
}
CUresult mem_free(CUdeviceptr data) {
  const std::scoped_lock lock(world().mutex);
  const auto found = world().allocations.find(data);
  if (found == world().allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  ::munmap(pointer(data), pages(found->second.second));
  ::close(found->second.first);
  world().allocations.erase(found);
  --world().live.allocations;
  return CUDA_SUCCESS;
}
CUresult host_alloc(void** out, std::size_t bytes, unsigned) {
  ORDO_FAKE("memHostAlloc");
  *out = ::operator new(bytes);
  count(&Live::pinned, 1);
  return CUDA_SUCCESS;
}
CUresult free_host(void* data) {
  ::operator delete(data);
  count(&Live::pinned, -1);
  return CUDA_SUCCESS;
}
CUresult host_pointer(CUdeviceptr* out, void* data, unsigned) {
  *out = reinterpret_cast<CUdeviceptr>(data);
  return CUDA_SUCCESS;
}

CUresult copy_from_host(CUdeviceptr to, const void* from, std::size_t bytes) {
  ORDO_FAKE("memcpyHtoD");
  std::memcpy(pointer(to), from, bytes);
  return CUDA_SUCCESS;
}
CUresult copy_to_host(void* to, CUdeviceptr from, std::size_t bytes) {
  ORDO_FAKE("memcpyDtoH");
  std::memcpy(to, pointer(from), bytes);
  return CUDA_SUCCESS;
}
/// Words, volatile: a plain loop would become a memcpy, which TSan sees.
__attribute__((no_sanitize("thread"))) void copy_unseen(void* to, const void* from, std::size_t bytes) {
  auto* out = static_cast<volatile unsigned char*>(to);
  const auto* in = static_cast<const volatile unsigned char*>(from);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = in[i];
}
CUresult copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  ORDO_FAKE("memcpyDtoDAsync");
  return enqueue(stream, [=] {
    if (world().undefined_copies)
      copy_unseen(pointer(to), pointer(from), bytes);
    else
      std::memcpy(pointer(to), pointer(from), bytes);
  });
}
CUresult copy_from_host_async(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  ORDO_FAKE("memcpyHtoDAsync");
  const auto* first = static_cast<const unsigned char*>(from);
  return enqueue(stream, [to, staged = std::vector<unsigned char>(first, first + bytes)] {
    std::memcpy(pointer(to), staged.data(), staged.size());
  });
}
CUresult copy_to_host_async(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return enqueue(stream, [=] {
    for (std::size_t i = 0; i < bytes / 4; ++i)
      static_cast<std::uint32_t*>(to)[i] = word(from + 4 * i).load(std::memory_order_acquire);
  });
}
CUresult fill8(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream stream) {
  ORDO_FAKE("memsetD8Async");
  return enqueue(stream, [=] { std::memset(pointer(to), value, bytes); });
}
CUresult fill32(CUdeviceptr to, unsigned value, std::size_t words, CUstream stream) {
  ORDO_FAKE("memsetD32Async");
  return enqueue(stream, [=] {
    for (std::size_t i = 0; i < words; ++i) word(to + 4 * i).store(value, std::memory_order_release);
  });
}
CUresult wait_value(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
  ORDO_FAKE("streamWaitValue32");
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_NOT_SUPPORTED;
  return enqueue(stream, [=] {
    while (static_cast<std::int32_t>(word(at).load(std::memory_order_acquire) - value) < 0) pause();
  });
}
CUresult write_value(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned) {
  ORDO_FAKE("streamWriteValue32");
  return enqueue(stream, [=] { word(at).store(value, std::memory_order_release); });
}

CUresult granularity(std::size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  ORDO_FAKE("memGetAllocationGranularity");
  *bytes = kPage;
  return CUDA_SUCCESS;
}
CUresult mem_create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp*, unsigned long long) {
  ORDO_FAKE("memCreate");
  const int fd = make_file(bytes);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = static_cast<CUmemGenericAllocationHandle>(fd);
  count(&Live::handles, 1);
  return CUDA_SUCCESS;
}
CUresult mem_release(CUmemGenericAllocationHandle handle) {
  ::close(static_cast<int>(handle));
  count(&Live::handles, -1);
  return CUDA_SUCCESS;
}
CUresult address_reserve(CUdeviceptr* out, std::size_t bytes, std::size_t, CUdeviceptr, unsigned long long) {
  ORDO_FAKE("memAddressReserve");
  void* at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<CUdeviceptr>(at);
  count(&Live::reservations, 1);
  return CUDA_SUCCESS;
}
CUresult address_free(CUdeviceptr at, std::size_t bytes) {
  ::munmap(pointer(at), bytes);
  count(&Live::reservations, -1);
  return CUDA_SUCCESS;
}
CUresult mem_map(CUdeviceptr at, std::size_t bytes, std::size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  ORDO_FAKE("memMap");
  if (::mmap(pointer(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, static_cast<int>(handle), 0) == MAP_FAILED)
    return CUDA_ERROR_INVALID_VALUE;
  count(&Live::mappings, 1);
  return CUDA_SUCCESS;
}
CUresult mem_unmap(CUdeviceptr at, std::size_t bytes) {
  ::mmap(pointer(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  count(&Live::mappings, -1);
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc*, std::size_t) {
  ORDO_FAKE("memSetAccess");
  return ::mprotect(pointer(at), bytes, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult export_handle(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType, unsigned long long) {
  ORDO_FAKE("memExportToShareableHandle");
  *static_cast<int*>(out) = ::fcntl(static_cast<int>(handle), F_DUPFD_CLOEXEC, 0);
  return *static_cast<int*>(out) < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
CUresult import_handle(CUmemGenericAllocationHandle* handle, void* fd, CUmemAllocationHandleType) {
  ORDO_FAKE("memImportFromShareableHandle");
  const int copied = ::fcntl(static_cast<int>(reinterpret_cast<std::intptr_t>(fd)), F_DUPFD_CLOEXEC, 0);
  if (copied < 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = static_cast<CUmemGenericAllocationHandle>(copied);
  count(&Live::handles, 1);
  return CUDA_SUCCESS;
}

// A handle says whose memfd it is; the other process opens it through /proc.
struct IpcHandle {
  pid_t process;
  int fd;
  std::size_t bytes;
};
CUresult ipc_get(CUipcMemHandle* out, CUdeviceptr data) {
  ORDO_FAKE("ipcGetMemHandle");
  const std::scoped_lock lock(world().mutex);
  const auto found = world().allocations.find(data);
  if (found == world().allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  const IpcHandle handle{::getpid(), found->second.first, found->second.second};
  std::memcpy(out, &handle, sizeof handle);
  return CUDA_SUCCESS;
}
CUresult ipc_open(CUdeviceptr* out, CUipcMemHandle from, unsigned) {
  ORDO_FAKE("ipcOpenMemHandle");
  IpcHandle handle{};
  std::memcpy(&handle, &from, sizeof handle);
  if (handle.process == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* at = fd < 0 ? nullptr : map_file(fd, handle.bytes);
  if (fd >= 0) ::close(fd);
  if (at == nullptr) return CUDA_ERROR_MAP_FAILED;
  *out = reinterpret_cast<CUdeviceptr>(at);
  count(&Live::ipc, 1);
  const std::scoped_lock lock(world().mutex);
  world().opened[*out] = handle.bytes;
  return CUDA_SUCCESS;
}
CUresult ipc_close(CUdeviceptr data) {
  const std::scoped_lock lock(world().mutex);
  ::munmap(pointer(data), pages(world().opened[data]));
  world().opened.erase(data);
  --world().live.ipc;
  return CUDA_SUCCESS;
}

#undef ORDO_FAKE

Driver make_table() {
  Driver d;
  d.getErrorName = error_name;
  d.getErrorString = error_name;
  d.ctxGetCurrent = ctx_get_current;
  d.ctxSetCurrent = ctx_set_current;
  d.devicePrimaryCtxRetain = primary_retain;
  d.devicePrimaryCtxRelease = primary_release;
  d.threadExchangeStreamCaptureMode = exchange_capture_mode;
  d.ctxEnablePeerAccess = enable_peer;
  d.ctxGetStreamPriorityRange = stream_priorities;
  d.streamCreate = stream_create;
  d.streamCreateWithPriority = stream_create_with_priority;
  d.streamDestroy = stream_destroy;
  d.streamSynchronize = stream_synchronize;
  d.streamQuery = stream_query;
  d.streamIsCapturing = stream_is_capturing;
  d.streamWaitEvent = stream_wait_event;
  d.eventCreate = event_create;
  d.eventDestroy = event_destroy;
  d.eventRecord = event_record;
  d.eventQuery = event_query;
  d.memAlloc = mem_alloc;
  d.memFree = mem_free;
  d.memHostAlloc = host_alloc;
  d.memFreeHost = free_host;
  d.memHostGetDevicePointer = host_pointer;
  d.memcpyHtoD = copy_from_host;
  d.memcpyHtoDAsync = copy_from_host_async;
  d.memcpyDtoH = copy_to_host;
  d.memcpyDtoDAsync = copy;
  d.memcpyDtoHAsync = copy_to_host_async;
  d.memsetD8Async = fill8;
  d.memsetD32Async = fill32;
  d.streamWaitValue32 = wait_value;
  d.streamWriteValue32 = write_value;
  d.memGetAllocationGranularity = granularity;
  d.memCreate = mem_create;
  d.memRelease = mem_release;
  d.memAddressReserve = address_reserve;
  d.memAddressFree = address_free;
  d.memMap = mem_map;
  d.memUnmap = mem_unmap;
  d.memSetAccess = set_access;
  d.memExportToShareableHandle = export_handle;
  d.memImportFromShareableHandle = import_handle;
  d.ipcGetMemHandle = ipc_get;
  d.ipcOpenMemHandle = ipc_open;
  d.ipcCloseMemHandle = ipc_close;
  return d;
}

}  // namespace

const Driver& driver() {
  static const Driver table = make_table();
  return table;
}

void reset() {
  const std::scoped_lock lock(world().mutex);
  world().failures.clear();
  world().most_microseconds = 0;
  world().undefined_copies = false;
}

void fail(const std::string& name, CUresult result, int device, int after) {
  const std::scoped_lock lock(world().mutex);
  world().failures.push_back({name, result, device, after});
}

void delay(std::uint32_t seed, int most_microseconds) {
  world().seed = seed;
  world().most_microseconds = most_microseconds;
}

void undefined_copies(bool on) { world().undefined_copies = on; }

void capture(bool on) { capturing = on; }

void launch(CUstream stream, std::function<void()> kernel) { enqueue(stream, std::move(kernel)); }

Live live() {
  const std::scoped_lock lock(world().mutex);
  return world().live;
}

std::uint32_t load_acquire(CUdeviceptr address) { return word(address).load(std::memory_order_acquire); }
void add_release(CUdeviceptr address, std::uint32_t value) { word(address).fetch_add(value, std::memory_order_release); }

}  // namespace ordo::test::fake
