// Attention backward from C++, with ordo.hpp and nothing else of ordo: plan, prepare, ask for the workspace, launch.
//
// Planning and compiling need no GPU. Launching does, and takes device memory and a stream from you. Your program has its own way
// to both (PyTorch, cudaMalloc); this one asks the driver directly, so that it builds without CUDA's headers.
//
//   c++ -std=c++20 backward_cpp.cpp -lordo -ldl && ./a.out

#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <ordo/ordo.hpp>

namespace {

// Stands for your framework: memory on device 0.
class Device {
 public:
  bool open() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return false;
    const auto init = function<int(unsigned)>(library, "cuInit");
    const auto retain = function<int(void**, int)>(library, "cuDevicePrimaryCtxRetain");
    const auto make_current = function<int(void*)>(library, "cuCtxSetCurrent");
    allocate_ = function<int(std::uint64_t*, std::size_t)>(library, "cuMemAlloc_v2");
    to_device_ = function<int(std::uint64_t, const void*, std::size_t)>(library, "cuMemcpyHtoD_v2");
    to_host_ = function<int(void*, std::uint64_t, std::size_t)>(library, "cuMemcpyDtoH_v2");
    void* context = nullptr;
    return init(0) == 0 && retain(&context, 0) == 0 && make_current(context) == 0;
  }
  void* allocate(std::size_t bytes) const {
    std::uint64_t pointer = 0;
    if (allocate_(&pointer, bytes) != 0) return nullptr;
    return reinterpret_cast<void*>(pointer);  // NOLINT: the driver's pointers are integers
  }
  template <class T>
  void* upload(const std::vector<T>& values) const {
    void* pointer = allocate(values.size() * sizeof(T));
    if (pointer == nullptr || to_device_(reinterpret_cast<std::uint64_t>(pointer), values.data(), values.size() * sizeof(T)) != 0)
      return nullptr;
    return pointer;
  }
  // Copies after everything before it on the default stream is done.
  bool download(std::vector<std::uint16_t>& values, const void* pointer) const {
    return to_host_(values.data(), reinterpret_cast<std::uint64_t>(pointer), values.size() * sizeof(values[0])) == 0;
  }

 private:
  template <class Signature>
  static Signature* function(void* library, const char* name) {
    return reinterpret_cast<Signature*>(dlsym(library, name));
  }
  int (*allocate_)(std::uint64_t*, std::size_t) = nullptr;
  int (*to_device_)(std::uint64_t, const void*, std::size_t) = nullptr;
  int (*to_host_)(void*, std::uint64_t, std::size_t) = nullptr;
};

int fail(const ordo::Error& error) {
  std::fprintf(stderr, "%s\n", error.message.c_str());
  return 1;
}

// Launches on inputs whose gradients are known: q = 0 makes every probability 1 / seqlen_k, and with v = o = do = 1 the gradients
// are dq = dk = 0 and dv = seqlen_q * group / seqlen_k.
int launch(const Device& device, const ordo::AttentionBackward& problem, const ordo::AttentionBackwardKernel& kernel,
           std::size_t workspace_bytes) {
  const auto count = [&](std::int64_t length, std::int64_t heads) {
    return static_cast<std::size_t>(problem.batch * length * heads * problem.head_dim);
  };
  const std::size_t queries = count(problem.seqlen_q, problem.heads), keys = count(problem.seqlen_k, problem.kv_heads);
  const std::uint16_t one = 0x3f80;  // bf16
  const std::vector<std::uint16_t> zeros(queries, 0), q_ones(queries, one), k_ones(keys, one);
  const std::vector<float> lse(queries / static_cast<std::size_t>(problem.head_dim),
                               std::log(static_cast<float>(problem.seqlen_k)));

  const auto q_view = [&](void* data) { return ordo::contiguous(data, problem.seqlen_q, problem.heads, problem.head_dim); };
  const auto k_view = [&](void* data) { return ordo::contiguous(data, problem.seqlen_k, problem.kv_heads, problem.head_dim); };
  ordo::AttentionBackwardTensors tensors;
  tensors.q = q_view(device.upload(zeros));
  tensors.k = k_view(device.upload(k_ones));
  tensors.v = k_view(device.upload(k_ones));
  tensors.o = q_view(device.upload(q_ones));
  tensors.d_o = q_view(device.upload(q_ones));
  tensors.lse = static_cast<const float*>(device.upload(lse));
  tensors.dq = q_view(device.allocate(queries * sizeof(std::uint16_t)));
  tensors.dk = k_view(device.allocate(keys * sizeof(std::uint16_t)));
  tensors.dv = k_view(device.allocate(keys * sizeof(std::uint16_t)));
  tensors.scale = 1 / std::sqrt(static_cast<float>(problem.head_dim));
  void* workspace = device.allocate(workspace_bytes);

  // The last argument is your stream; null is the default stream. A null pointer from a failed allocation is an error here, not a
  // crash.
  if (auto launched = kernel.launch(problem, tensors, workspace, workspace_bytes, nullptr); !launched)
    return fail(launched.error());
  std::vector<std::uint16_t> dv(keys);
  if (!device.download(dv, tensors.dv.data)) return 1;
  const double expected = static_cast<double>(problem.seqlen_q * problem.group()) / static_cast<double>(problem.seqlen_k);
  double worst = 0;
  for (const std::uint16_t bits : dv) {
    const double value = std::ldexp(1 + (bits & 0x7f) / 128.0, (bits >> 7 & 0xff) - 127);
    worst = std::fmax(worst, std::fabs(value / expected - 1));
  }
  std::printf("dv = %g everywhere, within %.1e\n", expected, worst);
  return worst < 1e-2 ? 0 : 1;
}

}  // namespace

int main() {
  ordo::AttentionBackward problem;
  problem.seqlen_q = problem.seqlen_k = 1024;
  problem.heads = 8;
  problem.kv_heads = 2;
  problem.head_dim = 128;

  auto engine = ordo::Engine::create();  // plans for the current device, or for an H200 where there is none
  if (!engine) return fail(engine.error());
  auto choice = engine->plan(problem);
  if (!choice) return fail(choice.error());
  std::printf("plan: %s\nwhy: %s\n", ordo::to_text(choice->plan).c_str(), choice->reason.c_str());

  auto kernel = engine->prepare(choice->plan);  // compiles, or takes the cubins from the cache
  if (!kernel) return fail(kernel.error());
  for (const ordo::KernelReport& report : kernel->reports()) {
    std::printf("kernel %s: %d registers, %d bytes spilled, %s\n", report.name.c_str(), report.launch_registers,
                report.spill_bytes, report.cache_hit ? "from the cache" : "compiled");
  }
  auto bytes = kernel->workspace_bytes(problem);
  if (!bytes) return fail(bytes.error());
  std::printf("workspace: %zu bytes\n", *bytes);

  Device device;
  if (!device.open()) {
    std::printf("no GPU here: nothing is launched\n");
    return 0;
  }
  return launch(device, problem, *kernel, *bytes);
}
