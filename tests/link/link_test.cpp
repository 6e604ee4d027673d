// What a program that links ordo may do with it: many threads and engines, several devices, objects destroyed while work is in
// flight, fork(). Through the C interface. Runs on a GPU in ordo_gpu_tests, and without one in ordo_link_tests, whose kernels
// hash what they are given (fake_cuda.cpp).
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ordo/ordo.h"
#include "runtime/driver.hpp"
#include "tests/unit/scratch.hpp"

namespace ordo::test {
namespace {

constexpr int kThreads = 8, kLaunches = 1000;

const Driver* device_driver() {
  const Result<const Driver*> opened = driver();
  if (opened) return *opened;
  MESSAGE("skipped: ", opened.error().message);
  return nullptr;
}

// Doctest's checks are slow and take a lock; threads count what goes wrong and say it once.
class Verdict {
 public:
  void expect(bool good, const std::string& what) {
    if (good) return;
    const std::scoped_lock lock(mutex_);
    if (failures_++ == 0) first_ = what;
  }
  void expect(ordo_status status) { expect(status == ORDO_OK, ordo_last_error()); }
  void expect(CUresult result, const char* what) { expect(result == CUDA_SUCCESS, what); }
  void check() const { CHECK_MESSAGE(failures_ == 0, failures_, " failures, the first: ", first_); }

 private:
  std::mutex mutex_;
  int failures_ = 0;
  std::string first_;
};

struct Shape {
  ordo_attention_backward problem;
  ordo_plan_request request;
};

Shape shape(std::int64_t batch, std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t heads, std::int64_t kv_heads,
            std::int64_t head_dim, const char* mask, const char* accumulate) {
  Shape out{};
  out.problem = {sizeof(ordo_attention_backward), batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim, mask, "bf16"};
  out.request.struct_size = sizeof(ordo_plan_request);
  out.request.accumulate = accumulate;
  return out;
}

const std::array<Shape, 4>& shapes() {
  static const std::array<Shape, 4> list{
      shape(1, 200, 200, 4, 2, 64, "causal", "ordered"), shape(2, 130, 70, 2, 2, 64, "full", "ordered"),
      shape(1, 384, 384, 4, 1, 128, "causal", "exact"), shape(2, 128, 256, 2, 2, 128, "full", "ordered")};
  return list;
}

/// One problem's device memory.
class Buffers {
 public:
  Buffers(const Driver& driver, const ordo_attention_backward& p, std::size_t workspace_bytes, std::uint32_t seed,
          Verdict& verdict)
      : driver_(driver), verdict_(verdict), random_(seed) {
    tensors_.struct_size = sizeof tensors_;
    const std::int64_t q_rows = p.seqlen_q, k_rows = p.seqlen_k;
    for (ordo_tensor* tensor : {&tensors_.q, &tensors_.o, &tensors_.d_o}) *tensor = tensor_of(p, q_rows, p.heads);
    for (ordo_tensor* tensor : {&tensors_.k, &tensors_.v}) *tensor = tensor_of(p, k_rows, p.kv_heads);
    tensors_.dq = output_of(p, q_rows, p.heads);
    tensors_.dk = output_of(p, k_rows, p.kv_heads);
    tensors_.dv = output_of(p, k_rows, p.kv_heads);
    // Large enough that no probability overflows.
    const std::vector<float> lse(static_cast<std::size_t>(p.batch * p.heads * q_rows), 8.0F);
    tensors_.lse = static_cast<const float*>(copied(lse.data(), lse.size() * sizeof(float)));
    tensors_.scale = 0.125F;
    workspace_bytes_ = workspace_bytes;
    workspace_ = allocated(workspace_bytes);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() {
    for (CUdeviceptr data : owned_) driver_.memFree(data);
  }

  /// The outputs' bits turned around first.
  void launch(const ordo_kernel* kernel, const ordo_attention_backward& problem, CUstream stream) {
    for (const Output& output : outputs_)
      verdict_.expect(driver_.memsetD8Async(output.data, 0xA5, output.bytes, stream), "memset");
    verdict_.expect(
        ordo_kernel_launch(kernel, &problem, &tensors_, reinterpret_cast<void*>(workspace_), workspace_bytes_, stream));
  }
  std::vector<char> results(CUstream stream) {
    verdict_.expect(driver_.streamSynchronize(stream), "the launch");
    std::vector<char> all;
    for (const Output& output : outputs_) {
      const std::size_t at = all.size();
      all.resize(at + output.bytes);
      verdict_.expect(driver_.memcpyDtoH(all.data() + at, output.data, output.bytes), "cuMemcpyDtoH");
    }
    return all;
  }

 private:
  struct Output {
    CUdeviceptr data;
    std::size_t bytes;
  };

  CUdeviceptr allocated(std::size_t bytes) {
    CUdeviceptr data = 0;
    verdict_.expect(driver_.memAlloc(&data, bytes), "cuMemAlloc");
    owned_.push_back(data);
    return data;
  }
  void* copied(const void* from, std::size_t bytes) {
    const CUdeviceptr data = allocated(bytes);
    verdict_.expect(driver_.memcpyHtoD(data, from, bytes), "cuMemcpyHtoD");
    verdict_.expect(driver_.streamSynchronize(nullptr), "cuStreamSynchronize");  // it may return before the bytes are there
    return reinterpret_cast<void*>(data);
  }
  static ordo_tensor view(void* data, std::int64_t rows, std::int64_t heads, std::int64_t dim) {
    return {data, rows * heads * dim, heads * dim, dim};
  }
  ordo_tensor tensor_of(const ordo_attention_backward& p, std::int64_t rows, std::int64_t heads) {
    std::vector<std::uint16_t> values(static_cast<std::size_t>(p.batch * rows * heads * p.head_dim));
    // bf16 between 2^-7 and 4 in size, of either sign.
    for (std::uint16_t& value : values)
      value = static_cast<std::uint16_t>(0x3C00U + random_() % 0x480U + (random_() % 2) * 0x8000U);
    return view(copied(values.data(), values.size() * 2), rows, heads, p.head_dim);
  }
  ordo_tensor output_of(const ordo_attention_backward& p, std::int64_t rows, std::int64_t heads) {
    const auto bytes = static_cast<std::size_t>(p.batch * rows * heads * p.head_dim) * 2;
    outputs_.push_back({allocated(bytes), bytes});
    return view(reinterpret_cast<void*>(outputs_.back().data), rows, heads, p.head_dim);
  }

  const Driver& driver_;
  Verdict& verdict_;
  std::minstd_rand random_;
  std::vector<CUdeviceptr> owned_;
  std::vector<Output> outputs_;
  ordo_attention_backward_tensors tensors_{};
  CUdeviceptr workspace_ = 0;
  std::size_t workspace_bytes_ = 0;
};

/// One for all tests: each compiles what it is the first to need.
const std::string& cache_file() {
  static const Folder folder;
  static const std::string path = folder.file("cache.db");
  return path;
}

ordo_engine* make_engine() {
  ordo_engine_options options{};
  options.struct_size = sizeof options;
  options.cache_path = cache_file().c_str();
  options.target = "h200";
  ordo_engine* engine = nullptr;
  REQUIRE_MESSAGE(ordo_engine_create(&options, &engine) == ORDO_OK, ordo_last_error());
  return engine;
}

/// An engine with a kernel for every shape.
struct Prepared {
  ordo_engine* engine;
  std::array<ordo_kernel*, 4> kernels{};
  Prepared() : engine(make_engine()) {
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      const ordo_status status = ordo_kernel_prepare_for(engine, &shapes()[i].problem, &shapes()[i].request, &kernels[i]);
      REQUIRE_MESSAGE(status == ORDO_OK, ordo_last_error());
    }
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
  ~Prepared() {
    for (ordo_kernel* kernel : kernels) ordo_kernel_destroy(kernel);
    ordo_engine_destroy(engine);
  }
};

std::size_t workspace_bytes(const ordo_kernel* kernel, const ordo_attention_backward& problem, Verdict& verdict) {
  std::size_t bytes = 0;
  verdict.expect(ordo_kernel_workspace_bytes(kernel, &problem, &bytes));
  return bytes;
}

/// The primary contexts of all devices, at most two; none is current on this thread when it goes.
class Contexts {
 public:
  explicit Contexts(const Driver& driver) : driver_(driver) {
    int devices = 0;
    REQUIRE(driver.deviceGetCount(&devices) == CUDA_SUCCESS);
    contexts_.resize(static_cast<std::size_t>(std::min(devices, 2)));
    for (std::size_t i = 0; i < contexts_.size(); ++i)
      REQUIRE(driver.devicePrimaryCtxRetain(&contexts_[i], static_cast<CUdevice>(i)) == CUDA_SUCCESS);
    driver.ctxGetCurrent(&before_);
  }
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;
  ~Contexts() {
    driver_.ctxSetCurrent(before_);
    for (std::size_t i = 0; i < contexts_.size(); ++i) driver_.devicePrimaryCtxRelease(static_cast<CUdevice>(i));
  }
  /// Thread number `i` works on this one.
  [[nodiscard]] CUcontext of(int i) const { return contexts_[static_cast<std::size_t>(i) % contexts_.size()]; }

 private:
  const Driver& driver_;
  std::vector<CUcontext> contexts_;
  CUcontext before_ = nullptr;
};

/// Bytes of memory that this process has in use, of the host and of the device.
struct Memory {
  std::size_t host = 0, device = 0;
};
Memory memory_now(const Driver& driver) {
  Memory now;
  std::size_t pages = 0, resident = 0, free = 0, total = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  driver.memGetInfo(&free, &total);
  now.host = resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  now.device = total - free;
  return now;
}

struct Crowd {
  const Driver& driver;
  const Contexts& contexts;
  const std::array<Prepared, 2>& engines;
  Verdict& verdict;
  std::barrier<> warm{kThreads + 1}, measured{kThreads + 1}, done{kThreads + 1}, over{kThreads + 1};

  void work(int number) {
    verdict.expect(driver.ctxSetCurrent(contexts.of(number)), "cuCtxSetCurrent");
    CUstream stream = nullptr;
    verdict.expect(driver.streamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    std::minstd_rand random(static_cast<unsigned>(number) + 77);
    std::vector<std::unique_ptr<Buffers>> buffers;
    std::vector<std::vector<char>> expected;
    for (std::size_t i = 0; i < shapes().size(); ++i) {
      const ordo_kernel* kernel = engines[0].kernels[i];
      buffers.push_back(std::make_unique<Buffers>(driver, shapes()[i].problem,
                                                  workspace_bytes(kernel, shapes()[i].problem, verdict), random(), verdict));
      buffers[i]->launch(kernel, shapes()[i].problem, stream);
      expected.push_back(buffers[i]->results(stream));
    }
    const auto launch_some = [&](int launches) {
      for (int launch = 0; launch < launches; ++launch) {
        const std::size_t i = random() % shapes().size();
        const Prepared& from = engines[random() % engines.size()];
        if (launch % 16 == 0) look_up(from, i);
        buffers[i]->launch(from.kernels[i], shapes()[i].problem, stream);
        verdict.expect(buffers[i]->results(stream) == expected[i], "the results are not those of the first launch");
      }
    };
    launch_some(kLaunches / 10);
    warm.arrive_and_wait();
    measured.arrive_and_wait();
    launch_some(kLaunches - kLaunches / 10);
    done.arrive_and_wait();
    over.arrive_and_wait();
    buffers.clear();
    driver.streamDestroy(stream);
  }

  /// What a program asks between launches.
  void look_up(const Prepared& from, std::size_t i) {
    ordo_kernel* again = nullptr;
    verdict.expect(ordo_kernel_prepare_for(from.engine, &shapes()[i].problem, &shapes()[i].request, &again));
    verdict.expect(std::strcmp(ordo_kernel_plan_text(again), ordo_kernel_plan_text(from.kernels[i])) == 0, "another plan");
    ordo_kernel_destroy(again);
    ordo_attention_backward bad = shapes()[i].problem;
    bad.head_dim = 80;
    ordo_plan* none = nullptr;
    verdict.expect(ordo_plan_create(from.engine, &bad, nullptr, &none) == ORDO_INVALID_PROBLEM, "head_dim 80 was taken");
    verdict.expect(std::strstr(ordo_last_error(), "80") != nullptr, "another thread's message");
  }
};

}  // namespace

TEST_CASE("link: 8 threads, 2 engines, 1,000 launches each of mixed shapes: right results and flat memory") {
  const Driver* driver = device_driver();
  if (driver == nullptr) return;
  const Contexts contexts(*driver);
  const std::array<Prepared, 2> engines{};
  Verdict verdict;
  Crowd crowd{*driver, contexts, engines, verdict};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back([&crowd, i] { crowd.work(i); });
  driver->ctxSetCurrent(contexts.of(0));
  crowd.warm.arrive_and_wait();
  const Memory before = memory_now(*driver);
  crowd.measured.arrive_and_wait();
  crowd.done.arrive_and_wait();
  const Memory after = memory_now(*driver);
  crowd.over.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
  verdict.check();
  CHECK(after.device == before.device);
#ifndef ORDO_SANITIZER  // which keep what is freed
  CHECK(after.host < before.host + (std::size_t{4} << 20));
#endif
}

TEST_CASE("link: kernels and engines destroyed while launches are in flight") {
  const Driver* driver = device_driver();
  if (driver == nullptr) return;
  const Contexts contexts(*driver);
  driver->ctxSetCurrent(contexts.of(0));
  CUstream stream = nullptr;
  REQUIRE(driver->streamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  Verdict verdict;
  for (std::size_t i = 0; i < shapes().size(); ++i) {
    const ordo_attention_backward& problem = shapes()[i].problem;
    auto prepared = std::make_unique<Prepared>();
    Buffers buffers(*driver, problem, workspace_bytes(prepared->kernels[i], problem, verdict), 5, verdict);
    buffers.launch(prepared->kernels[i], problem, stream);
    const std::vector<char> expected = buffers.results(stream);
    for (int launch = 0; launch < 50; ++launch) buffers.launch(prepared->kernels[i], problem, stream);
    prepared.reset();
    CHECK(buffers.results(stream) == expected);
  }
  verdict.check();
  driver->streamDestroy(stream);
}

TEST_CASE("link: a thread without a context is told so, and one with another context loads there by itself") {
  const Driver* driver = device_driver();
  if (driver == nullptr) return;
  const Contexts contexts(*driver);
  driver->ctxSetCurrent(contexts.of(0));
  const Prepared prepared;
  REQUIRE(ordo_kernel_load(prepared.kernels[1], nullptr) == ORDO_OK);
  Verdict verdict;
  std::thread([&] {
    verdict.expect(ordo_kernel_load(prepared.kernels[1], nullptr) == ORDO_INVALID_ARGUMENT, "no context was needed");
    verdict.expect(std::strstr(ordo_last_error(), "context") != nullptr, ordo_last_error());
    driver->ctxSetCurrent(contexts.of(1));
    verdict.expect(ordo_kernel_load(prepared.kernels[1], nullptr));
    const ordo_attention_backward& problem = shapes()[1].problem;
    Buffers buffers(*driver, problem, workspace_bytes(prepared.kernels[1], problem, verdict), 6, verdict);
    buffers.launch(prepared.kernels[1], problem, nullptr);
    buffers.results(nullptr);
  }).join();
  verdict.check();
}

TEST_CASE("link: two ranks as threads meet, agree and part through the C interface") {
  const Driver* driver = device_driver();
  if (driver == nullptr) return;
  int devices = 0;
  REQUIRE(driver->deviceGetCount(&devices) == CUDA_SUCCESS);
  if (devices < 2) {
    MESSAGE("skipped: one GPU");
    return;
  }
  Verdict verdict;
  const std::string address = "unix:@ordo-link-test-" + std::to_string(getpid());
  const auto rank = [&](int number) {
    ordo_communicator_options options{};
    options.struct_size = sizeof options;
    options.address = address.c_str();
    options.rank = number;
    options.ranks = 2;
    options.has_device = 1;
    options.device = number;
    options.timeout_ms = 20000;
    ordo_communicator* group = nullptr;
    verdict.expect(ordo_communicator_create(&options, &group));
    verdict.expect(ordo_communicator_rank(group) == number && ordo_communicator_ranks(group) == 2, "another rank");
    verdict.expect(ordo_communicator_device(group) == number, "another device");
    verdict.expect(std::strlen(ordo_communicator_transport(group)) > 0, "no transport");
    for (int round = 0; round < 10; ++round) verdict.expect(ordo_communicator_barrier(group));
    verdict.expect(ordo_communicator_status(group));
    ordo_communicator_destroy(group);
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
  verdict.check();
}

TEST_CASE(
    "link: after fork() the child's calls on the parent's objects are refused, its own engine plans, and the parent goes on") {
  const Driver* driver = device_driver();
  if (driver == nullptr) return;
  const Contexts contexts(*driver);
  driver->ctxSetCurrent(contexts.of(0));
  const Prepared prepared;
  Verdict verdict;
  const ordo_attention_backward& problem = shapes()[1].problem;
  Buffers buffers(*driver, problem, workspace_bytes(prepared.kernels[1], problem, verdict), 7, verdict);
  buffers.launch(prepared.kernels[1], problem, nullptr);
  const std::vector<char> expected = buffers.results(nullptr);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto refused = [](ordo_status status) {
      return status == ORDO_INVALID_ARGUMENT && std::strstr(ordo_last_error(), "fork") != nullptr;
    };
    ordo_kernel* kernel = nullptr;
    ordo_plan* plan = nullptr;
    if (!refused(ordo_kernel_load(prepared.kernels[1], nullptr))) _exit(1);
    if (!refused(ordo_kernel_prepare_for(prepared.engine, &problem, nullptr, &kernel))) _exit(2);
    if (!refused(ordo_plan_query(prepared.engine, &problem, nullptr, &plan))) _exit(3);
    if (ordo_plan_create(prepared.engine, &problem, nullptr, &plan) != ORDO_OK) _exit(4);
    ordo_plan_destroy(plan);
    ordo_engine_options options{};
    options.struct_size = sizeof options;
    options.cache_path = cache_file().c_str();
    options.target = "h200";
    ordo_engine* own = nullptr;
    if (ordo_engine_create(&options, &own) != ORDO_OK) _exit(5);
    if (ordo_kernel_prepare_for(own, &problem, &shapes()[1].request, &kernel) != ORDO_OK) _exit(6);
    ordo_kernel_destroy(kernel);
    ordo_engine_destroy(own);
    ordo_kernel_destroy(prepared.kernels[1]);  // the parent's keeps what it has loaded
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  buffers.launch(prepared.kernels[1], problem, nullptr);
  CHECK(buffers.results(nullptr) == expected);
  verdict.check();
}

}  // namespace ordo::test
