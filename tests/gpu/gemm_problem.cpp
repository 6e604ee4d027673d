#include "tests/gpu/gemm_problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <mutex>
#include <thread>

#include "runtime/compiler.hpp"
#include "tests/gpu/gemm_source.hpp"

namespace ordo::test {
namespace {

constexpr std::int64_t kGuardBytes = 4096;

std::array<unsigned, 3> grid_for(std::int64_t elements) { return {static_cast<unsigned>((elements + 255) / 256), 1, 1}; }

}  // namespace

Result<ReferenceKernels> compile_gemm_kernels(const Driver& driver) {
  auto compiler = Compiler::open();
  if (!compiler) return compiler.error();
  std::array<std::string, 2> cubins;
  for (std::size_t half = 0; half < 2; ++half) {
    const KernelSource source{"gemm reference", "gemm_check", fmt::format("#define HALF {}\n{}", half, kGemmSource),
                              "sm_90a",         256,          0};
    auto cubin = compiler->compile(source, true);
    if (!cubin) return cubin.error();
    cubins[half].assign(reinterpret_cast<const char*>(cubin->bytes.data()), cubin->bytes.size());
  }
  return ReferenceKernels::load(driver, cubins);
}

std::vector<std::optional<OverlapGemmKernel>> prepare_overlap(Engine& engine, std::span<const OverlapPlan> plans, int& failures) {
  std::vector<std::optional<OverlapGemmKernel>> kernels(plans.size());
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i = next++; i < plans.size(); i = next++) {
      auto kernel = engine.prepare(plans[i]);
      if (kernel) {
        kernels[i] = *std::move(kernel);
        continue;
      }
      const std::scoped_lock lock(mutex);
      ++failures;
      fmt::print("NOT COMPILED {}\n  {}\n", to_text(plans[i]), kernel.error().message);
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  threads.clear();
  return kernels;
}

Result<DeviceMatrix> DeviceMatrix::create(std::int64_t line, std::int64_t lines, int element_bytes, std::int64_t padding) {
  DeviceMatrix matrix;
  const std::int64_t step = 16 / element_bytes;
  matrix.line_ = line;
  matrix.lines_ = lines;
  matrix.element_bytes_ = element_bytes;
  matrix.stride_ = (line + padding + step - 1) / step * step;
  auto buffer = DeviceBuffer::allocate(static_cast<std::size_t>(matrix.stride_ * lines * element_bytes + kGuardBytes));
  if (!buffer) return buffer.error();
  matrix.buffer_ = *std::move(buffer);
  return matrix;
}

Result<void> DeviceMatrix::fill_random(const ReferenceKernels& kernels, DType dtype, std::uint64_t seed) {
  void* out = buffer_.data();
  auto n = static_cast<long long>(stride_ * lines_);
  std::array<void*, 3> arguments{&out, &n, &seed};
  return kernels.launch(dtype, "gemm_random", {1024, 1, 1}, 256, arguments.data());
}

Result<std::uint32_t> DeviceMatrix::touched_padding(const ReferenceKernels& kernels) const {
  auto counter = DeviceBuffer::allocate(4);
  if (!counter) return counter.error();
  if (auto ok = counter->fill(0); !ok) return ok.error();
  void *d = buffer_.data(), *out = counter->data();
  long long lines = lines_, stride = stride_ * element_bytes_, used = (line_ * element_bytes_ + 15) / 16 * 16,
            guard = kGuardBytes;
  std::array<void*, 6> arguments{&d, &lines, &stride, &used, &guard, &out};
  if (auto ok = kernels.launch(DType::bf16, "gemm_padding", {264, 1, 1}, 256, arguments.data()); !ok) return ok.error();
  std::uint32_t touched = 0;
  if (auto ok = counter->copy_to_host(&touched, 4); !ok) return ok.error();
  return touched;
}

Operand operand_of(const DeviceMatrix& matrix, Storage storage) {
  const MatrixView view = matrix.view();
  return {view.data, view.stride, storage == Storage::column ? 1 : 0};
}

Result<GemmReference> GemmReference::create(const ReferenceKernels& kernels, DType dtype, std::int64_t m, std::int64_t n) {
  GemmReference reference;
  reference.kernels_ = &kernels;
  reference.dtype_ = dtype;
  reference.m_ = m;
  reference.n_ = n;
  for (DeviceBuffer* buffer : {&reference.sum_, &reference.parts_, &reference.mass_}) {
    auto made = DeviceBuffer::allocate(static_cast<std::size_t>(m * n) * 8);
    if (!made) return made.error();
    *buffer = *std::move(made);
    if (auto ok = buffer->fill(0); !ok) return ok.error();
  }
  return reference;
}

Result<void> GemmReference::add(const Operand& a, const Operand& b, std::int64_t k, std::int64_t row, std::int64_t rows) {
  if (rows == 0 || k == 0) return {};
  std::array<double*, 3> sums = sums_from(row);
  int m = static_cast<int>(rows), n = static_cast<int>(n_), depth = static_cast<int>(k);
  Operand left = a, right = b;
  std::array<void*, 8> arguments{&sums[0], &sums[1], &sums[2], &m, &n, &depth, &left, &right};
  return kernels_->launch(dtype_, "gemm_accumulate", grid_for(rows * n_), 256, arguments.data());
}

std::array<double*, 3> GemmReference::sums_from(std::int64_t row) const {
  const auto from = [&](const DeviceBuffer& buffer) { return static_cast<double*>(buffer.data()) + row * n_; };
  return {from(sum_), from(parts_), from(mass_)};
}

Result<GemmDeviation> GemmReference::compare(const OverlapGemm& problem, const void* bias, const MatrixView& d, std::int64_t row,
                                             std::int64_t rows, bool partials_rounded) const {
  if (rows == 0) return GemmDeviation{};
  struct Check {
    int m, n, fp32, activation, has_bias;
    double relative, of_parts, of_mass;
    long long stride;
  };
  const bool fp32 = problem.out == OutputType::fp32;
  const double half_unit = dtype_ == DType::bf16 ? 0x1p-8 : 0x1p-11;  // of a 16-bit type, relative
  // The activations' slopes are at most 1.13.
  Check check{static_cast<int>(rows),
              static_cast<int>(n_),
              fp32 ? 1 : 0,
              static_cast<int>(problem.activation),
              problem.bias ? 1 : 0,
              fp32 ? 0x1p-20 : half_unit * 1.01,
              partials_rounded ? half_unit * 1.2 : 0,
              0x1p-20,
              d.stride};
  auto counters = DeviceBuffer::allocate(8);
  if (!counters) return counters.error();
  if (auto ok = counters->fill(0); !ok) return ok.error();
  std::array<double*, 3> sums = sums_from(row);
  void *out = d.data, *result = counters->data();
  std::array<void*, 7> arguments{&sums[0], &sums[1], &sums[2], &bias, &out, &check, &result};
  if (auto ok = kernels_->launch(dtype_, "gemm_check", grid_for(rows * n_), 256, arguments.data()); !ok) return ok.error();
  std::array<std::uint32_t, 2> host{};
  if (auto ok = counters->copy_to_host(host.data(), 8); !ok) return ok.error();
  return GemmDeviation{static_cast<double>(std::bit_cast<float>(host[0])), host[1]};
}

}  // namespace ordo::test
