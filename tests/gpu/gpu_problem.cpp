#include "tests/gpu/gpu_problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "runtime/compiler.hpp"
#include "runtime/reference/numbers.hpp"
#include "tests/gpu/masks.hpp"
#include "tests/gpu/reference_source.hpp"

namespace ordo::test {
namespace {

/// Mirrors `struct Sizes` of reference_source.hpp.
struct Sizes {
  int batch, sq, sk, heads, kv_heads, d, mask;
  double scale;
};

Sizes sizes_of(const AttentionBackward& p, double scale) {
  return {static_cast<int>(p.batch),
          static_cast<int>(p.seqlen_q),
          static_cast<int>(p.seqlen_k),
          static_cast<int>(p.heads),
          static_cast<int>(p.kv_heads),
          static_cast<int>(p.head_dim),
          number_of(p.mask),
          scale};
}

std::size_t q_elements(const AttentionBackward& p) {
  return static_cast<std::size_t>(p.batch * p.seqlen_q * p.heads * p.head_dim);
}
std::size_t k_elements(const AttentionBackward& p) {
  return static_cast<std::size_t>(p.batch * p.seqlen_k * p.kv_heads * p.head_dim);
}
std::size_t elements(const AttentionBackward& p, int output) { return output == 0 ? q_elements(p) : k_elements(p); }

Result<void> allocate(DeviceBuffer& buffer, std::size_t bytes) {
  auto made = DeviceBuffer::allocate(bytes);
  if (!made) return made.error();
  buffer = *std::move(made);
  return {};
}

}  // namespace

Result<ReferenceKernels> ReferenceKernels::compile(const Driver& driver) {
  auto compiler = Compiler::open();
  if (!compiler) return compiler.error();
  std::array<std::string, 2> cubins;
  for (std::size_t half = 0; half < 2; ++half) {
    // The entry is any one of them; the compiler wants to know that it exists.
    const KernelSource source{"reference", "ref_dq", fmt::format("#define HALF {}\n{}", half, kReferenceSource),
                              "sm_90a",    128,      0};
    auto cubin = compiler->compile(source, true);
    if (!cubin) return cubin.error();
    cubins[half].assign(reinterpret_cast<const char*>(cubin->bytes.data()), cubin->bytes.size());
  }
  return load(driver, cubins);
}

Result<ReferenceKernels> ReferenceKernels::load(const Driver& driver, const std::array<std::string, 2>& cubins) {
  ReferenceKernels kernels;
  kernels.driver_ = &driver;
  for (std::size_t i = 0; i < 2; ++i)
    if (auto ok = driver.check(
            driver.libraryLoadData(&kernels.libraries_[i], cubins[i].data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            "load reference");
        !ok)
      return ok.error();
  return kernels;
}

Result<AttentionForward> ReferenceKernels::forward(const AttentionBackward& problem) const {
  const std::string key = fmt::format("{} {} {}", to_string(problem.dtype), problem.head_dim, to_string(problem.mask));
  if (const auto found = forwards_->find(key); found != forwards_->end()) return found->second;
  KernelBuilderOptions options;
  options.memory_cache_only = std::getenv("ORDO_CACHE") == nullptr;
  auto made = AttentionForward::create(problem, options);
  if (made) forwards_->emplace(key, *made);
  return made;
}

Result<void> ReferenceKernels::launch(DType dtype, const char* name, std::array<unsigned, 3> grid, unsigned threads,
                                      void** arguments, CUstream stream, unsigned shared_bytes) const {
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  if (auto ok = driver_->check(driver_->libraryGetKernel(&kernel, libraries_[dtype == DType::fp16 ? 1 : 0], name), name); !ok)
    return ok;
  if (auto ok = driver_->check(driver_->kernelGetFunction(&function, kernel), name); !ok) return ok;
  if (shared_bytes > 48 * 1024)
    if (auto ok = driver_->check(
            driver_->funcSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(shared_bytes)),
            name);
        !ok)
      return ok;
  CUlaunchConfig config{};
  config.gridDimX = grid[0];
  config.gridDimY = grid[1];
  config.gridDimZ = grid[2];
  config.blockDimX = threads;
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = shared_bytes;
  config.hStream = stream;
  return driver_->check(driver_->launchKernelEx(&config, function, arguments, nullptr), name);
}

Result<GpuProblem> GpuProblem::create(const ReferenceKernels& kernels, const AttentionBackward& problem, std::uint64_t seed,
                                      bool with_reference) {
  GpuProblem made;
  made.kernels_ = &kernels;
  made.problem_ = problem;
  made.scale_ = static_cast<float>(1.0 / std::sqrt(static_cast<double>(problem.head_dim)));
  const std::size_t q = q_elements(problem), k = k_elements(problem);
  const auto rows = static_cast<std::size_t>(problem.batch * problem.heads * problem.seqlen_q);
  const std::array<std::size_t, 5> counts{q, k, k, q, q};
  for (std::size_t i = 0; i < 5; ++i) {
    if (auto ok = allocate(made.inputs_[i], counts[i] * 2); !ok) return ok.error();
    void* out = made.inputs_[i].data();
    auto n = static_cast<long long>(counts[i]);
    std::uint64_t stream_seed = seed * 8 + i;
    float factor = 1.f;
    std::array<void*, 4> arguments{&out, &n, &stream_seed, &factor};
    if (auto ok = kernels.launch(problem.dtype, "ref_random", {static_cast<unsigned>((counts[i] + 255) / 256), 1, 1}, 256,
                                 arguments.data());
        !ok)
      return ok.error();
  }
  for (std::size_t i = 0; i < 3; ++i)
    if (auto ok = allocate(made.outputs_[i], elements(problem, static_cast<int>(i)) * 2); !ok) return ok.error();
  if (auto ok = allocate(made.lse_, rows * 4); !ok) return ok.error();
  auto forward = kernels.forward(problem);
  if (!forward) return forward.error();
  if (auto ok = forward->launch(problem, made.forward_tensors(), nullptr); !ok) return ok.error();
  if (with_reference)
    if (auto ok = made.refresh_reference(); !ok) return ok.error();
  return made;
}

Result<void> GpuProblem::make_reference() {
  const auto rows = static_cast<std::size_t>(problem_.batch * problem_.heads * problem_.seqlen_q);
  if (auto ok = allocate(delta_, rows * 8); !ok) return ok;
  for (std::size_t i = 0; i < 3; ++i)
    for (DeviceBuffer* buffer : {&reference_[i], &straight_[i], &mass_[i]})
      if (auto ok = allocate(*buffer, elements(problem_, static_cast<int>(i)) * 8); !ok) return ok;
  Sizes z = sizes_of(problem_, scale_);
  void *q = inputs_[0].data(), *k = inputs_[1].data(), *v = inputs_[2].data(), *o = inputs_[3].data(), *d_o = inputs_[4].data();
  void *lse = lse64_.data(), *delta = delta_.data();
  std::array<void*, 4> delta_arguments{&z, &o, &d_o, &delta};
  if (auto ok = kernels_->launch(problem_.dtype, "ref_delta", {static_cast<unsigned>((rows + 255) / 256), 1, 1}, 256,
                                 delta_arguments.data());
      !ok)
    return ok;
  for (int rounded = 0; rounded < 2; ++rounded) {
    auto& to = rounded != 0 ? straight_ : reference_;
    void *dq = to[0].data(), *dk = to[1].data(), *dv = to[2].data();
    void *mass_q = mass_[0].data(), *mass_k = mass_[1].data(), *mass_v = mass_[2].data();
    std::array<void*, 10> dq_arguments{&z, &q, &k, &v, &d_o, &lse, &delta, &dq, &mass_q, &rounded};
    if (auto ok = kernels_->launch(
            problem_.dtype, "ref_dq",
            {static_cast<unsigned>(problem_.seqlen_q), static_cast<unsigned>(problem_.batch * problem_.heads), 1}, 128,
            dq_arguments.data());
        !ok)
      return ok;
    std::array<void*, 12> dkv_arguments{&z, &q, &k, &v, &d_o, &lse, &delta, &dk, &dv, &mass_k, &mass_v, &rounded};
    if (auto ok = kernels_->launch(
            problem_.dtype, "ref_dkv",
            {static_cast<unsigned>(problem_.seqlen_k), static_cast<unsigned>(problem_.batch * problem_.kv_heads), 1}, 128,
            dkv_arguments.data());
        !ok)
      return ok;
  }
  return {};
}

AttentionForwardTensors GpuProblem::forward_tensors() {
  const AttentionBackwardTensors t = tensors();
  return {.q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = static_cast<float*>(lse_.data()), .scale = scale_};
}

Result<ForwardDeviation> GpuProblem::compare_forward() {
  const auto rows = static_cast<std::size_t>(problem_.batch * problem_.heads * problem_.seqlen_q);
  DeviceBuffer o64, lse64;
  if (auto ok = allocate(o64, q_elements(problem_) * 8); !ok) return ok.error();
  if (auto ok = allocate(lse64, rows * 8); !ok) return ok.error();
  Sizes z = sizes_of(problem_, scale_);
  std::array<void*, 5> pointers{inputs_[0].data(), inputs_[1].data(), inputs_[2].data(), o64.data(), lse64.data()};
  std::array<void*, 6> arguments{&z, &pointers[0], &pointers[1], &pointers[2], &pointers[3], &pointers[4]};
  const auto q_rows = static_cast<unsigned>(problem_.seqlen_q), q_heads = static_cast<unsigned>(problem_.batch * problem_.heads);
  if (auto ok = kernels_->launch(problem_.dtype, "ref_forward", {q_rows, q_heads, 1}, 128, arguments.data()); !ok)
    return ok.error();
  std::vector<double> o_wanted(q_elements(problem_)), lse_wanted(rows);
  std::vector<std::uint16_t> o(q_elements(problem_));
  std::vector<float> lse(rows);
  if (auto ok = o64.copy_to_host(o_wanted.data(), o_wanted.size() * 8); !ok) return ok.error();
  if (auto ok = lse64.copy_to_host(lse_wanted.data(), lse_wanted.size() * 8); !ok) return ok.error();
  if (auto ok = inputs_[3].copy_to_host(o.data(), o.size() * 2); !ok) return ok.error();
  if (auto ok = lse_.copy_to_host(lse.data(), lse.size() * 4); !ok) return ok.error();

  ForwardDeviation deviation;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < o.size(); ++i) {
    const double got = reference::widen(problem_.dtype, o[i]);
    difference += (got - o_wanted[i]) * (got - o_wanted[i]);
    norm += o_wanted[i] * o_wanted[i];
  }
  deviation.o = norm == 0 ? difference : std::sqrt(difference / norm);  // NaN where o is
  for (std::size_t r = 0; r < rows; ++r) {
    if (std::isinf(lse_wanted[r])) {
      deviation.empty_wrong += lse[r] == -std::numeric_limits<float>::infinity() ? 0 : 1;
    } else {
      const double error = std::abs(lse[r] - lse_wanted[r]) / std::max(1.0, std::abs(lse_wanted[r]));
      if (!(error <= deviation.lse)) deviation.lse = error;
    }
  }
  return deviation;
}

AttentionBackwardTensors GpuProblem::tensors() const {
  const auto q_like = [&](const DeviceBuffer& b) {
    return contiguous(b.data(), problem_.seqlen_q, problem_.heads, problem_.head_dim);
  };
  const auto k_like = [&](const DeviceBuffer& b) {
    return contiguous(b.data(), problem_.seqlen_k, problem_.kv_heads, problem_.head_dim);
  };
  return {.q = q_like(inputs_[0]),
          .k = k_like(inputs_[1]),
          .v = k_like(inputs_[2]),
          .o = q_like(inputs_[3]),
          .d_o = q_like(inputs_[4]),
          .lse = static_cast<const float*>(lse_.data()),
          .dq = q_like(outputs_[0]),
          .dk = k_like(outputs_[1]),
          .dv = k_like(outputs_[2]),
          .scale = scale_};
}

Result<void> GpuProblem::poison(CUstream stream) {
  for (DeviceBuffer& buffer : outputs_)
    if (auto ok = buffer.fill(0xff, stream); !ok) return ok;  // NaN in both types
  return {};
}

Result<std::array<Deviation, 3>> GpuProblem::compare() const {
  std::array<Deviation, 3> deviations;
  auto sums = DeviceBuffer::allocate(5 * 8);
  if (!sums) return sums.error();
  for (std::size_t i = 0; i < 3; ++i) {
    void *got = outputs_[i].data(), *ref = reference_[i].data(), *straight = straight_[i].data(), *mass = mass_[i].data(),
         *out = sums->data();
    auto n = static_cast<long long>(elements(problem_, static_cast<int>(i)));
    std::array<void*, 6> arguments{&got, &ref, &straight, &mass, &n, &out};
    if (auto ok = kernels_->launch(problem_.dtype, "ref_compare", {1, 1, 1}, 1024, arguments.data()); !ok) return ok.error();
    std::array<double, 5> s{};
    if (auto ok = sums->copy_to_host(s.data(), 5 * 8); !ok) return ok.error();
    const double norm = std::sqrt(s[1]), floor = 1e-300;
    deviations[i].relative = std::sqrt(s[0]) / std::max(norm, floor);
    deviations[i].allowed = (std::max(5e-3 * norm, 1.1 * std::sqrt(s[2])) + 1e-6 * std::sqrt(s[3])) / std::max(norm, floor);
    deviations[i].non_finite = s[4];
  }
  return deviations;
}

Result<void> GpuProblem::keep_bits() {
  const Driver& driver = kernels_->driver();
  for (std::size_t i = 0; i < 3; ++i) {
    if (auto ok = allocate(kept_[i], outputs_[i].bytes()); !ok) return ok;
    if (auto ok = driver.check(driver.memcpyDtoD(reinterpret_cast<CUdeviceptr>(kept_[i].data()),
                                                 reinterpret_cast<CUdeviceptr>(outputs_[i].data()), outputs_[i].bytes()),
                               "copy of the outputs");
        !ok)
      return ok;
  }
  // The host does not wait for copies on the device, nor do the tests' streams, which write to the outputs next.
  return driver.check(driver.streamSynchronize(nullptr), "copy of the outputs");
}

Result<void> GpuProblem::add_differing_words(DeviceBuffer& counter, CUstream stream) const {
  for (std::size_t i = 0; i < 3; ++i) {
    void *a = outputs_[i].data(), *b = kept_[i].data(), *c = counter.data();
    auto words = static_cast<long long>(outputs_[i].bytes() / 4);
    std::array<void*, 4> arguments{&a, &b, &words, &c};
    if (auto ok = kernels_->launch(problem_.dtype, "ref_differ", {264, 1, 1}, 256, arguments.data(), stream); !ok) return ok;
  }
  return {};
}

Result<std::uint64_t> GpuProblem::differing_words() const {
  auto count = DeviceBuffer::allocate(8);
  if (!count) return count.error();
  std::uint64_t total = 0;
  if (auto ok = count->copy_from_host(&total, 8); !ok) return ok.error();
  if (auto ok = add_differing_words(*count, nullptr); !ok) return ok.error();
  if (auto ok = count->copy_to_host(&total, 8); !ok) return ok.error();
  return total;
}

Result<void> GpuProblem::refresh_reference() {
  std::vector<float> lse(lse_.bytes() / 4);
  if (auto ok = lse_.copy_to_host(lse.data(), lse_.bytes()); !ok) return ok;
  const std::vector<double> wide(lse.begin(), lse.end());
  if (auto ok = allocate(lse64_, wide.size() * 8); !ok) return ok;
  if (auto ok = lse64_.copy_from_host(wide.data(), lse64_.bytes()); !ok) return ok;
  return make_reference();
}

Result<std::vector<double>> GpuProblem::reference(int index) const {
  const DeviceBuffer& from = reference_[static_cast<std::size_t>(index)];
  std::vector<double> values(from.bytes() / 8);
  if (auto ok = from.copy_to_host(values.data(), from.bytes()); !ok) return ok.error();
  return values;
}

}  // namespace ordo::test
