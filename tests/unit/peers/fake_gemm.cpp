#include "tests/unit/peers/fake_gemm.hpp"

#include <bit>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "runtime/overlap_slices.hpp"
#include "tests/unit/peers/fake_driver.hpp"

namespace ordo::test {
namespace {

CUdeviceptr address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

MatrixView moved(const MatrixView& matrix, bool fp32, std::int64_t rows, std::int64_t columns = 0) {
  return {static_cast<char*>(matrix.data) + (rows * matrix.stride + columns) * (fp32 ? 4 : 2), matrix.stride};
}

class Gemm {
 public:
  Gemm(const OverlapGemm& problem, const OverlapPlan& plan, const OverlapGemmTensors& tensors, const OverlapExchange& exchange)
      : p_(problem), plan_(plan), t_(tensors), x_(exchange), buffers_(overlap_buffers(problem, plan)), ranks_(plan.ranks) {}

  void run() {
    if (p_.op == OverlapOp::all_to_all_gemm) {
      for (int chunk = 0; chunk < plan_.sub_slices; ++chunk) {
        if (!blocks_of_k(chunk)) return;
      }
      return;
    }
    const auto pattern = p_.op == OverlapOp::all_gather_gemm ? overlap::Pattern::gather : overlap::Pattern::reduce;
    for (int step = 0; step < ranks_; ++step) {
      const int slice = overlap::slice_at_step(pattern, overlap::Route::direct, x_.rank, ranks_, step);
      for (int chunk = 0; chunk < plan_.sub_slices; ++chunk) {
        if (!run_chunk(slice, chunk)) return;
      }
    }
  }

 private:
  bool run_chunk(int slice, int chunk) {
    switch (p_.op) {
      case OverlapOp::all_gather_gemm:
        return gathered(slice, chunk);
      case OverlapOp::gemm_all_to_all:
        return scattered(slice, chunk);
      default:
        return reduced(slice, chunk);
    }
  }

  [[nodiscard]] SliceRange rows_of(int slice, int chunk) const {
    const std::int64_t rows = slice_rows(p_, slice), begin = overlap::part_begin(rows, plan_.sub_slices, unit(), chunk);
    return {begin, overlap::part_begin(rows, plan_.sub_slices, unit(), chunk + 1) - begin};
  }
  [[nodiscard]] int unit() const { return plan_.tile_m * plan_.cluster; }
  [[nodiscard]] bool partial_fp32() const { return plan_.partial == OutputType::fp32; }
  [[nodiscard]] bool out_fp32() const { return p_.out == OutputType::fp32; }
  [[nodiscard]] bool direct() const { return plan_.transport == Transport::direct; }
  [[nodiscard]] MatrixView received(int source) const {
    return {static_cast<char*>(x_.received) + static_cast<std::size_t>(source) * buffers_.receive_slot_bytes,
            buffers_.receive_pitch};
  }
  [[nodiscard]] MatrixView sent(int owner) const {
    if (direct())
      return {x_.peer_slot[static_cast<std::size_t>(owner)],
              p_.op == OverlapOp::gemm_all_to_all ? x_.peer_pitch : buffers_.receive_pitch};
    return {static_cast<char*>(x_.sent) + static_cast<std::size_t>(owner) * buffers_.send_slot_bytes, buffers_.send_pitch};
  }
  [[nodiscard]] std::size_t word(int slice, int chunk) const {
    return static_cast<std::size_t>(slice * plan_.sub_slices + chunk);
  }

  /// Row of A times column of B over `k` elements.
  [[nodiscard]] static float dot(const MatrixView& a, const MatrixView& b, std::int64_t row, std::int64_t column,
                                 std::int64_t k) {
    float sum = 0;
    for (std::int64_t i = 0; i < k; ++i) sum += load(a, false, row, i) * load(b, false, i, column);
    return sum;
  }
  [[nodiscard]] float finished(float sum, std::int64_t column) const {
    return p_.bias ? sum + load({const_cast<void*>(t_.bias), p_.n}, false, 0, column) : sum;
  }

  bool gathered(int slice, int chunk) {
    const SliceRange rows = rows_of(slice, chunk);
    if (rows.size == 0) return true;
    const bool own = slice == x_.rank;
    if (!own && !wait(slice, chunk)) return false;
    const MatrixView a = own ? t_.a : received(slice);
    const MatrixView d = moved(t_.d, out_fp32(), slice_range(p_.m, p_.ranks, slice).begin);
    for (std::int64_t i = rows.begin; i < rows.begin + rows.size; ++i)
      for (std::int64_t j = 0; j < p_.n; ++j) store(d, out_fp32(), i, j, finished(dot(a, t_.b, i, j, p_.k), j));
    return true;
  }

  bool blocks_of_k(int chunk) {
    const SliceRange rows = rows_of(0, chunk);
    if (rows.size == 0) return true;
    std::vector<float> sums(static_cast<std::size_t>(rows.size * p_.n));
    for (int step = 0; step < ranks_; ++step) {
      const int source = overlap::slice_at_step(overlap::Pattern::gather, overlap::Route::direct, x_.rank, ranks_, step);
      const SliceRange depth = slice_range(p_.k, p_.ranks, source);
      if (depth.size == 0) continue;
      const bool own = source == x_.rank;
      if (!own && !wait(source, chunk)) return false;
      const MatrixView a = own ? moved(t_.a, false, x_.rank * p_.m) : received(source), b = moved(t_.b, false, depth.begin);
      for (std::int64_t i = 0; i < rows.size; ++i)
        for (std::int64_t j = 0; j < p_.n; ++j)
          sums[static_cast<std::size_t>(i * p_.n + j)] += dot(a, b, rows.begin + i, j, depth.size);
    }
    for (std::int64_t i = 0; i < rows.size; ++i)
      for (std::int64_t j = 0; j < p_.n; ++j)
        store(t_.d, out_fp32(), rows.begin + i, j, finished(sums[static_cast<std::size_t>(i * p_.n + j)], j));
    return true;
  }

  bool scattered(int slice, int chunk) {
    const SliceRange rows = rows_of(slice, chunk), columns = slice_range(p_.n, p_.ranks, slice);
    if (rows.size == 0) return true;
    const bool own = slice == x_.rank;
    const MatrixView d = own ? moved(t_.d, out_fp32(), x_.rank * p_.m) : sent(slice);
    for (std::int64_t i = rows.begin; i < rows.begin + rows.size; ++i)
      for (std::int64_t j = 0; j < columns.size; ++j)
        store(d, out_fp32(), i, j, finished(dot(t_.a, t_.b, i, columns.begin + j, p_.k), columns.begin + j));
    if (!own) signal(slice, chunk);
    return true;
  }

  bool reduced(int slice, int chunk) {
    const SliceRange rows = rows_of(slice, chunk), all = slice_range(p_.m, p_.ranks, slice);
    if (rows.size == 0) return true;
    if (slice != x_.rank) {
      for (std::int64_t i = rows.begin; i < rows.begin + rows.size; ++i)
        for (std::int64_t j = 0; j < p_.n; ++j) store(sent(slice), partial_fp32(), i, j, dot(t_.a, t_.b, all.begin + i, j, p_.k));
      signal(slice, chunk);
      return true;
    }
    for (int source = 0; source < ranks_; ++source) {
      if (source != x_.rank && !wait(source, chunk)) return false;
    }
    const bool everywhere = p_.op == OverlapOp::gemm_all_reduce;
    const MatrixView d = everywhere ? moved(t_.d, out_fp32(), all.begin) : t_.d;
    for (std::int64_t i = rows.begin; i < rows.begin + rows.size; ++i) {
      for (std::int64_t j = 0; j < p_.n; ++j) {
        float sum = dot(t_.a, t_.b, all.begin + i, j, p_.k);
        for (int source = 0; source < ranks_; ++source) {
          if (source != x_.rank) sum += load(received(source), partial_fp32(), i, j);
        }
        store(d, out_fp32(), i, j, finished(sum, j));
      }
    }
    if (everywhere) signal(slice, chunk);
    return true;
  }

  /// As many signals as the kernel's warps give.
  void signal(int slice, int chunk) {
    const bool to_peer = direct() && slice != x_.rank;
    std::uint32_t* at =
        to_peer ? x_.peer_ready[static_cast<std::size_t>(slice)] + word(x_.rank, chunk) : x_.done + word(slice, chunk);
    const std::uint32_t parts = overlap_chunk_arrivals(p_, plan_, slice, chunk);
    for (std::uint32_t part = 0; part < parts; ++part) fake::add_release(address(at), 1);
  }

  bool wait(int source, int chunk) {
    const std::uint32_t expected = direct() ? overlap_chunk_arrivals(p_, plan_, x_.rank, chunk) : x_.expected;
    const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(x_.timeout_ns);
    for (;;) {
      const std::uint32_t seen = fake::load_acquire(address(x_.ready + word(source, chunk)));
      if (static_cast<std::int32_t>(seen - expected) >= 0) return true;
      if (fake::load_acquire(address(x_.abort)) != 0) return false;
      if (std::chrono::steady_clock::now() > end) {
        fake::report({1, x_.rank, source, chunk, expected, seen}, *x_.failure);
        return false;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(5));
    }
  }

  const OverlapGemm& p_;
  const OverlapPlan& plan_;
  const OverlapGemmTensors& t_;
  const OverlapExchange& x_;
  OverlapBuffers buffers_;
  int ranks_;
};

}  // namespace

std::uint16_t to_bf16(float value) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16); }
float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

HostMatrix HostMatrix::poisoned(std::int64_t rows, std::int64_t columns, bool fp32, std::int64_t pitch) {
  const std::int64_t element = fp32 ? 4 : 2, step = 16 / element;
  HostMatrix out{rows, columns, pitch != 0 ? pitch : (columns + step - 1) / step * step, fp32, {}};
  out.bytes.assign(static_cast<std::size_t>(std::max<std::int64_t>(out.rows, 1) * out.stride * element), 0xff);
  return out;
}

float load(const MatrixView& matrix, bool fp32, std::int64_t row, std::int64_t column) {
  const char* at = static_cast<const char*>(matrix.data) + (row * matrix.stride + column) * (fp32 ? 4 : 2);
  float value = 0;
  std::uint16_t half = 0;
  std::memcpy(fp32 ? static_cast<void*>(&value) : &half, at, fp32 ? 4 : 2);
  return fp32 ? value : from_bf16(half);
}

void store(const MatrixView& matrix, bool fp32, std::int64_t row, std::int64_t column, float value) {
  char* at = static_cast<char*>(matrix.data) + (row * matrix.stride + column) * (fp32 ? 4 : 2);
  const std::uint16_t half = to_bf16(value);
  std::memcpy(at, fp32 ? static_cast<const void*>(&value) : &half, fp32 ? 4 : 2);
}

void fake_gemm(const OverlapGemm& problem, const OverlapPlan& plan, const OverlapGemmTensors& tensors,
               const OverlapExchange& exchange) {
  Gemm(problem, plan, tensors, exchange).run();
}

}  // namespace ordo::test
