#include "runtime/measure/gemm_reference.hpp"

#include <algorithm>
#include <bit>

namespace ordo::measure {
namespace {

constexpr std::int64_t kGuardBytes = 4096;

}  // namespace

Result<DeviceMatrix> DeviceMatrix::create(std::int64_t line, std::int64_t lines, int element_bytes, std::int64_t padding) {
  DeviceMatrix matrix;
  const std::int64_t step = 16 / element_bytes;
  matrix.line_ = line;
  matrix.lines_ = std::max<std::int64_t>(lines, 1);
  matrix.element_bytes_ = element_bytes;
  matrix.stride_ = (line + padding + step - 1) / step * step;
  auto buffer = DeviceBuffer::allocate(static_cast<std::size_t>(matrix.stride_ * matrix.lines_ * element_bytes + kGuardBytes));
  if (!buffer) return buffer.error();
  matrix.buffer_ = *std::move(buffer);
  return matrix;
}

Result<void> DeviceMatrix::fill_random(const HelperKernels& kernels, DType dtype, std::uint64_t seed, CUstream_st* stream) {
  return kernels.fill_normal(buffer_, dtype, seed, stream);
}

Result<std::uint64_t> DeviceMatrix::touched_padding(const HelperKernels& kernels) const {
  auto counter = DeviceBuffer::allocate(sizeof(std::uint64_t));
  if (!counter) return counter.error();
  if (auto ok = counter->fill(0); !ok) return ok.error();
  const helpers::PaddingParams params{.data = static_cast<const unsigned char*>(buffer_.data()),
                                      .lines = lines_,
                                      .pitch = stride_ * element_bytes_,
                                      .used = (line_ * element_bytes_ + 15) / 16 * 16,
                                      .guard = kGuardBytes,
                                      .count = static_cast<unsigned long long*>(counter->data())};
  if (auto ok = kernels.count_padding(params, nullptr); !ok) return ok.error();
  std::uint64_t touched = 0;
  if (auto ok = counter->copy_to_host(&touched, sizeof touched); !ok) return ok.error();
  return touched;
}

helpers::Operand operand_of(const DeviceMatrix& matrix, Storage storage, std::int64_t row, std::int64_t column) {
  const bool by_columns = storage == Storage::column;
  const std::int64_t offset = by_columns ? column * matrix.stride() + row : row * matrix.stride() + column;
  return {static_cast<const char*>(matrix.view().data) + 2 * offset, matrix.stride(), by_columns};
}

Result<GemmReference> GemmReference::create(const HelperKernels& kernels, DType dtype, std::int64_t m, std::int64_t n) {
  GemmReference reference(kernels, dtype, n);
  for (DeviceBuffer* buffer : {&reference.sum_, &reference.parts_, &reference.mass_}) {
    auto made = DeviceBuffer::allocate(static_cast<std::size_t>(m * n) * sizeof(double));
    if (!made) return made.error();
    *buffer = *std::move(made);
    if (auto ok = buffer->fill(0); !ok) return ok.error();
  }
  return reference;
}

std::array<double*, 3> GemmReference::sums_from(std::int64_t row) const {
  const auto from = [&](const DeviceBuffer& buffer) { return static_cast<double*>(buffer.data()) + row * n_; };
  return {from(sum_), from(parts_), from(mass_)};
}

Result<void> GemmReference::add(const helpers::Operand& a, const helpers::Operand& b, std::int64_t k, std::int64_t row,
                                std::int64_t rows) {
  if (rows == 0 || k == 0) return {};
  const auto [sum, parts, mass] = sums_from(row);
  return kernels_.add_product({.sum = sum,
                               .parts = parts,
                               .mass = mass,
                               .m = static_cast<int>(rows),
                               .n = static_cast<int>(n_),
                               .k = static_cast<int>(k),
                               .fp16 = dtype_ == DType::fp16,
                               .a = a,
                               .b = b},
                              nullptr);
}

Result<GemmDeviation> GemmReference::compare(const OverlapGemm& problem, const void* bias, const MatrixView& d, std::int64_t row,
                                             std::int64_t rows, bool partials_rounded) const {
  if (rows == 0) return GemmDeviation{};
  const bool fp32 = problem.out == OutputType::fp32;
  const double half_unit = dtype_ == DType::bf16 ? 0x1p-8 : 0x1p-11;  // of a 16-bit type, relative
  auto result = DeviceBuffer::allocate(2 * sizeof(std::uint32_t));
  if (!result) return result.error();
  if (auto ok = result->fill(0); !ok) return ok.error();
  const auto [sum, parts, mass] = sums_from(row);
  // The activations' slopes are at most 1.13.
  const helpers::DeviationParams params{.sum = sum,
                                        .parts = parts,
                                        .mass = mass,
                                        .bias = problem.bias ? bias : nullptr,
                                        .d = d.data,
                                        .stride = d.stride,
                                        .m = static_cast<int>(rows),
                                        .n = static_cast<int>(n_),
                                        .fp16 = dtype_ == DType::fp16,
                                        .fp32 = fp32,
                                        .activation = static_cast<int>(problem.activation),
                                        .relative = fp32 ? 0x1p-20 : half_unit * 1.01,
                                        .of_parts = partials_rounded ? half_unit * 1.2 : 0,
                                        .of_mass = 0x1p-20,
                                        .result = static_cast<unsigned int*>(result->data())};
  if (auto ok = kernels_.compare(params, nullptr); !ok) return ok.error();
  std::array<std::uint32_t, 2> host{};
  if (auto ok = result->copy_to_host(host.data(), sizeof host); !ok) return ok.error();
  return GemmDeviation{static_cast<double>(std::bit_cast<float>(host[0])), host[1]};
}

}  // namespace ordo::measure
