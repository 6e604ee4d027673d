// The generated forward against fp64: shapes, strides, NaN, bits, and how fast it is.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tests/gpu/gpu.hpp"

namespace ordo::test {
namespace {

std::vector<AttentionBackward> shapes() {
  constexpr std::array<std::array<std::int64_t, 2>, 10> kLengths{
      {{1, 1}, {64, 64}, {127, 129}, {128, 128}, {300, 100}, {100, 300}, {1, 777}, {777, 1}, {1000, 1000}, {513, 1024}}};
  constexpr std::array<std::array<std::int64_t, 3>, 4> kHeads{{{1, 1, 1}, {2, 3, 3}, {1, 8, 2}, {3, 4, 1}}};  // batch, heads, kv
  std::vector<AttentionBackward> out;
  for (const DType dtype : {DType::bf16, DType::fp16})
    for (const std::int64_t head_dim : {64, 128})
      for (const Mask mask : {Mask::full, Mask::causal})
        for (std::size_t i = 0; i < kLengths.size(); ++i) {
          const auto [batch, heads, kv_heads] = kHeads[i % kHeads.size()];
          out.push_back({.batch = batch,
                         .seqlen_q = kLengths[i][0],
                         .seqlen_k = kLengths[i][1],
                         .heads = heads,
                         .kv_heads = kv_heads,
                         .head_dim = head_dim,
                         .mask = mask,
                         .dtype = dtype});
        }
  return out;
}

std::vector<unsigned char> bytes_of(const DeviceBuffer& buffer) {
  std::vector<unsigned char> bytes(buffer.bytes());
  must(buffer.copy_to_host(bytes.data(), bytes.size()));
  return bytes;
}

void set_16_bits(DeviceBuffer& buffer, std::size_t element, std::uint16_t bits) {
  std::vector<unsigned char> bytes = bytes_of(buffer);
  std::memcpy(bytes.data() + 2 * element, &bits, 2);
  must(buffer.copy_from_host(bytes.data(), bytes.size()));
}

}  // namespace

TEST_CASE("forward: O and LSE agree with fp64, and repeat their bits") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  double worst_o = 0, worst_lse = 0;
  for (const AttentionBackward& problem : shapes()) {
    const std::string text = to_text(problem);
    const Deadline deadline(text, 60);
    auto made = must(GpuProblem::create(device->reference, problem, 21, false));
    const ForwardDeviation error = must(made.compare_forward());
    // P is rounded to 8 bits (bf16) before it is summed with V, O once more: 2e-3 of the norm in the mean.
    CHECK_MESSAGE(error.o <= 5e-3, text, ": error of O ", error.o);
    CHECK_MESSAGE(error.lse <= 2e-5, text, ": error of LSE ", error.lse);
    CHECK_MESSAGE(error.empty_wrong == 0, text);
    worst_o = std::max(worst_o, error.o);
    worst_lse = std::max(worst_lse, error.lse);

    const std::vector<unsigned char> o = bytes_of(made.input(3)), lse = bytes_of(made.lse());
    must(made.input(3).fill(0xff));
    must(made.lse().fill(0xff));
    const AttentionForward forward = must(device->reference.forward(problem));
    must(forward.launch(problem, made.forward_tensors(), nullptr));
    CHECK_MESSAGE(bytes_of(made.input(3)) == o, text, ": a repeat gives other bits of O");
    CHECK_MESSAGE(bytes_of(made.lse()) == lse, text, ": a repeat gives other bits of LSE");
    check_context(*device, text);
  }
  fmt::print("forward: {} shapes, worst error {:.2e} of O's norm, {:.2e} of LSE\n", shapes().size(), worst_o, worst_lse);
}

TEST_CASE("forward: a strided O gets the same bits and keeps its gaps") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  const AttentionBackward p{.batch = 2, .seqlen_q = 333, .seqlen_k = 200, .heads = 3, .kv_heads = 3, .mask = Mask::causal};
  auto made = must(GpuProblem::create(device->reference, p, 22, false));
  const std::int64_t head = p.head_dim + 8, row = p.heads * head + 24, batch = p.seqlen_q * row + 40;
  auto arena = must(DeviceBuffer::allocate(static_cast<std::size_t>(p.batch * batch) * 2));
  must(arena.fill(0x5c));
  AttentionForwardTensors tensors = made.forward_tensors();
  tensors.o = {arena.data(), batch, row, head};
  must(must(device->reference.forward(p)).launch(p, tensors, nullptr));
  const std::vector<unsigned char> dense = bytes_of(made.input(3));
  std::vector<unsigned char> strided = bytes_of(arena);
  std::size_t from = 0;
  const auto row_bytes = static_cast<std::size_t>(p.head_dim) * 2;
  bool same = true;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t s = 0; s < p.seqlen_q; ++s)
      for (std::int64_t h = 0; h < p.heads; ++h, from += row_bytes) {
        unsigned char* at = strided.data() + static_cast<std::size_t>(b * batch + s * row + h * head) * 2;
        same = same && std::memcmp(at, dense.data() + from, row_bytes) == 0;
        std::memset(at, 0x5c, row_bytes);
      }
  CHECK(same);
  CHECK(std::all_of(strided.begin(), strided.end(), [](unsigned char byte) { return byte == 0x5c; }));
}

TEST_CASE("forward: a NaN key reaches the rows that see it, and no others") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  const AttentionBackward p{.batch = 1, .seqlen_q = 400, .seqlen_k = 400, .heads = 1, .kv_heads = 1, .mask = Mask::causal};
  auto made = must(GpuProblem::create(device->reference, p, 23, false));
  constexpr std::int64_t kKey = 250;
  set_16_bits(made.input(1), static_cast<std::size_t>(kKey * p.head_dim + 5), 0x7fff);
  must(must(device->reference.forward(p)).launch(p, made.forward_tensors(), nullptr));
  std::vector<float> lse(static_cast<std::size_t>(p.seqlen_q));
  must(made.lse().copy_to_host(lse.data(), lse.size() * 4));
  for (std::int64_t i = 0; i < p.seqlen_q; ++i)
    CHECK_MESSAGE(std::isnan(lse[static_cast<std::size_t>(i)]) == (i >= kKey), "row ", i);
}

TEST_CASE("forward: refuses what it was not made for") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  AttentionBackward p{.batch = 1, .seqlen_q = 64, .seqlen_k = 64, .heads = 1, .kv_heads = 1};
  auto made = must(GpuProblem::create(device->reference, p, 24, false));
  const AttentionForward forward = must(device->reference.forward(p));
  AttentionForwardTensors tensors = made.forward_tensors();
  tensors.lse = nullptr;
  CHECK(forward.launch(p, tensors, nullptr).error().message.find("lse") != std::string::npos);
  tensors = made.forward_tensors();
  tensors.scale = 0;
  CHECK(forward.launch(p, tensors, nullptr).error().message.find("scale") != std::string::npos);
  p.mask = Mask::causal;
  CHECK(forward.launch(p, made.forward_tensors(), nullptr).error().code == ErrorCode::invalid_argument);
}

TEST_CASE("forward: speed, for the record") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  for (const std::int64_t head_dim : {64, 128})
    for (const Mask mask : {Mask::full, Mask::causal}) {
      const AttentionBackward p{.batch = 1,
                                .seqlen_q = 16384,
                                .seqlen_k = 16384,
                                .heads = 2048 / head_dim,
                                .kv_heads = 2048 / head_dim,
                                .head_dim = head_dim,
                                .mask = mask};
      const Deadline deadline(to_text(p), 60);
      auto made = must(GpuProblem::create(device->reference, p, 25, false));
      const AttentionForward forward = must(device->reference.forward(p));
      const Event start = must(Event::create()), end = must(Event::create());
      constexpr int kLaunches = 50;
      must(start.record(nullptr));
      for (int i = 0; i < kLaunches; ++i) must(forward.launch(p, made.forward_tensors(), nullptr));
      must(end.record(nullptr));
      must(end.synchronize());
      const double ms = must(end.milliseconds_since(start)) / kLaunches;
      // 4 of the backward's 10 flops a pair and element.
      fmt::print("forward: head_dim {} {} 16384: {:.3f} ms, {:.0f} TFLOP/s\n", head_dim, to_string(mask), ms,
                 0.4 * p.flops() / ms * 1e-9);
    }
}

}  // namespace ordo::test
