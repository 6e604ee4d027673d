#include "runtime/overlap_launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "codegen/generate/overlap.hpp"
#include "runtime/launch.hpp"
#include "runtime/overlap_kernel_impl.hpp"
#include "runtime/overlap_slices.hpp"
#include "templates/overlap/params.cuh"

namespace ordo {
namespace {

namespace device = overlap;
using Params = device::Params<device::kMostRanks>;

static_assert(sizeof(OverlapFailure) == sizeof(device::Failure));

Error bad_argument(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

bool aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

/// `line`: elements of a row (Storage::row) or column.
Result<void> check_matrix(const char* name, const MatrixView& view, std::int64_t line, int element) {
  if (view.data == nullptr || !aligned(view.data))
    return bad_argument(
        fmt::format("matrix {}: pointer {} is null or not 16-byte aligned; pass an aligned device pointer", name, view.data));
  const int step = 16 / element;
  if (view.stride >= line && view.stride % step == 0 && view.stride < (std::int64_t{1} << 40) / element) return {};
  return bad_argument(
      fmt::format("matrix {}: stride {}; it must be a multiple of {} elements (16 bytes), at least the {} elements of a "
                  "row or column, and below 2^40 bytes; copy the matrix to one with padded rows otherwise",
                  name, view.stride, step, line));
}

Result<void> check_exchange(const OverlapPlan& plan, const OverlapExchange& x) {
  if (x.rank < 0 || x.rank >= plan.ranks)
    return bad_argument(fmt::format("exchange: rank is {}; it must be within 0 .. {}", x.rank, plan.ranks - 1));
  const device::Config config = device_config(plan);
  const bool receives = device::reduces(config) || device::gathers(config);
  const bool direct = plan.transport == Transport::direct;
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  const auto missing = [](const char* what) { return bad_argument(fmt::format("exchange: {} is missing", what)); };
  if (receives && x.received == nullptr) return missing("received");
  if (receives && x.ready == nullptr) return missing("ready");
  if (receives && (x.abort == nullptr || x.failure == nullptr)) return missing("abort or failure");
  if (!device::gathers(config) && !direct && (x.sent == nullptr || x.done == nullptr)) return missing("sent or done");
  if (direct && (x.peer_slot.size() != ranks || x.peer_ready.size() != ranks))
    return missing("peer_slot or peer_ready of some rank");
  const auto misaligned = [](const char* what, const void* address) {
    return bad_argument(fmt::format("exchange: {} {} is not 16-byte aligned", what, address));
  };
  if (!aligned(x.received)) return misaligned("received", x.received);
  if (!aligned(x.sent)) return misaligned("sent", x.sent);
  for (const void* slot : x.peer_slot)
    if (!aligned(slot)) return misaligned("peer_slot", slot);
  return {};
}

/// Elements of a matrix as the copy engine reads them: `inner` contiguous, `outer` lines `stride` elements apart.
struct Plane {
  void* data;
  std::int64_t inner, outer, stride;
  bool fp32 = false;
  int columns = device::kTileK;  ///< of a box
};

/// Fills the parameters of one launch. The boxes of every map are one swizzle atom wide: 128 or 64 bytes.
struct Filler {
  const Driver& driver;
  const OverlapGemm& problem;
  const OverlapPlan& plan;
  const OverlapGemmTensors& tensors;
  const OverlapExchange& exchange;
  OverlapBuffers buffers;
  Params& params;

  [[nodiscard]] CUtensorMapDataType type(bool fp32) const {
    if (fp32) return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    return problem.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  }

  Result<void> encode(TensorMap& map, const char* what, const Plane& plane, int lines) const {
    const cuuint32_t element = plane.fp32 ? 4 : 2;
    const std::array<cuuint64_t, 2> sizes{static_cast<cuuint64_t>(plane.inner), static_cast<cuuint64_t>(plane.outer)};
    const cuuint64_t stride = static_cast<cuuint64_t>(plane.stride) * element;
    const std::array<cuuint32_t, 2> box{static_cast<cuuint32_t>(plane.columns), static_cast<cuuint32_t>(lines)};
    const CUtensorMapSwizzle swizzle = box[0] * element == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
    const std::array<cuuint32_t, 2> steps{1, 1};
    static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
    return driver.check(
        driver.tensorMapEncodeTiled(reinterpret_cast<CUtensorMap*>(&map), type(plane.fp32), 2, plane.data, sizes.data(), &stride,
                                    box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        what);
  }

  /// A from `data` on: `rows` x `k` by rows, or stored by columns.
  Result<void> encode_a(TensorMap& map, void* data, std::int64_t rows, std::int64_t k, std::int64_t stride) const {
    if (problem.a == Storage::row) return encode(map, "cuTensorMapEncodeTiled of A", {data, k, rows, stride}, plan.tile_m);
    return encode(map, "cuTensorMapEncodeTiled of A", {data, rows, k, stride}, device::kTileK);
  }

  Result<void> encode_b() {
    const bool column = problem.b == Storage::column;
    const Plane plane{tensors.b.data, column ? problem.k : problem.n, column ? problem.n : problem.k, tensors.b.stride};
    TensorMap& first = params.slice[0].b;
    if (auto ok = encode(first, "cuTensorMapEncodeTiled of B", plane, column ? plan.tile_n / plan.cluster : device::kTileK); !ok)
      return ok;
    for (int i = 1; i < plan.ranks; ++i) params.slice[i].b = first;
    return {};
  }

  Result<void> encode_bias() {
    if (!problem.bias) return {};
    const auto size = static_cast<cuuint64_t>(problem.n);
    const auto box = static_cast<cuuint32_t>(plan.tile_n);
    const cuuint32_t step = 1;
    const cuuint64_t no_stride = 0;
    return driver.check(
        driver.tensorMapEncodeTiled(reinterpret_cast<CUtensorMap*>(&params.bias), type(false), 1, const_cast<void*>(tensors.bias),
                                    &size, &no_stride, &box, &step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                    CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "cuTensorMapEncodeTiled of bias");
  }

  [[nodiscard]] int chunk_columns(bool fp32) const { return device::chunk_columns(device_config(plan), fp32); }
  static void* offset(void* data, std::int64_t elements, bool fp32) {
    return static_cast<char*>(data) + elements * (fp32 ? 4 : 2);
  }
  [[nodiscard]] void* receive_slot(int source) const {
    return static_cast<char*>(exchange.received) + static_cast<std::size_t>(source) * buffers.receive_slot_bytes;
  }
  [[nodiscard]] void* send_slot(int owner) const {
    return static_cast<char*>(exchange.sent) + static_cast<std::size_t>(owner) * buffers.send_slot_bytes;
  }
  [[nodiscard]] unsigned* words(std::uint32_t* base, int index) const { return base + std::ptrdiff_t{index} * plan.sub_slices; }

  Result<void> fill_slice(int index) {
    device::Slice& slice = params.slice[index];
    const bool own = index == exchange.rank;
    slice.rows = static_cast<int>(slice_rows(problem, index));
    switch (problem.op) {
      case OverlapOp::gemm:
      case OverlapOp::all_gather_gemm:
        return fill_gather(slice, index, own);
      case OverlapOp::all_to_all_gemm:
        return fill_source(slice, index, own);
      case OverlapOp::gemm_reduce_scatter:
      case OverlapOp::gemm_all_reduce:
        return fill_reduce(slice, index, own);
      case OverlapOp::gemm_all_to_all:
        return fill_scatter(slice, index, own);
    }
    return {};
  }

  /// A's slice from where it is, D's slice in place.
  Result<void> fill_gather(device::Slice& slice, int index, bool own) {
    const SliceRange range = slice_range(problem.m, problem.ranks, index);
    const std::int64_t rows = std::max<std::int64_t>(range.size, 1);  // the kernel prefetches the map of an empty slice, too
    if (auto ok = own ? encode_a(slice.a, tensors.a.data, rows, problem.k, tensors.a.stride)
                      : encode_a(slice.a, receive_slot(index), rows, problem.k, buffers.receive_pitch);
        !ok)
      return ok;
    if (range.size == 0) return {};
    return encode_d(slice.d, range);
  }

  /// The rows `range` of the whole D.
  Result<void> encode_d(TensorMap& map, SliceRange range) {
    const bool fp32 = problem.out == OutputType::fp32;
    return encode(map, "cuTensorMapEncodeTiled of D",
                  {offset(tensors.d.data, range.begin * tensors.d.stride, fp32), problem.n, range.size, tensors.d.stride, fp32,
                   chunk_columns(fp32)},
                  64);
  }

  /// One source's block of k. The first one also holds D.
  Result<void> fill_source(device::Slice& slice, int index, bool own) {
    if (index == 0) {
      if (auto ok = encode_d(slice.d, {0, problem.m}); !ok) return ok;
    }
    const SliceRange range = slice_range(problem.k, problem.ranks, index);
    slice.k_origin = static_cast<int>(range.begin);
    slice.k_blocks = static_cast<int>((range.size + device::kTileK - 1) / device::kTileK);
    if (range.size == 0) return {};
    if (!own) return encode_a(slice.a, receive_slot(index), problem.m, range.size, buffers.receive_pitch);
    return encode_a(slice.a, offset(tensors.a.data, exchange.rank * problem.m * tensors.a.stride, false), problem.m, range.size,
                    tensors.a.stride);
  }

  /// A row slice of the whole A; D's where this rank owns it, else a partial sum for its owner.
  Result<void> fill_reduce(device::Slice& slice, int index, bool own) {
    const bool all = problem.op == OverlapOp::gemm_all_reduce, fp32 = plan.partial == OutputType::fp32;
    const bool direct = plan.transport == Transport::direct;
    const SliceRange range = slice_range(problem.m, problem.ranks, index);
    const SliceRange mine = slice_range(problem.m, problem.ranks, exchange.rank);
    slice.a_origin = static_cast<int>(range.begin);
    if (auto ok = encode_a(slice.a, tensors.a.data, problem.m, problem.k, tensors.a.stride); !ok) return ok;
    if (!own && mine.size > 0) {
      const Plane plane{receive_slot(index), problem.n, mine.size, buffers.receive_pitch, fp32, chunk_columns(fp32)};
      if (auto ok = encode(slice.partial, "cuTensorMapEncodeTiled of a partial sum", plane, plan.tile_m); !ok) return ok;
    }
    if (slice.rows == 0) return {};
    if (own) {
      if (all) slice.signal = words(exchange.done, index);
      return encode_d(slice.d, {all ? range.begin : 0, range.size});
    }
    slice.signal =
        direct ? words(exchange.peer_ready[static_cast<std::size_t>(index)], exchange.rank) : words(exchange.done, index);
    void* to = direct ? exchange.peer_slot[static_cast<std::size_t>(index)] : send_slot(index);
    return encode(slice.d, "cuTensorMapEncodeTiled of a slice for its owner",
                  {to, problem.n, range.size, direct ? buffers.receive_pitch : buffers.send_pitch, fp32, chunk_columns(fp32)},
                  64);
  }

  /// All of A; a column slice of D, here or for its owner.
  Result<void> fill_scatter(device::Slice& slice, int index, bool own) {
    const bool direct = plan.transport == Transport::direct, fp32 = problem.out == OutputType::fp32;
    const SliceRange range = slice_range(problem.n, problem.ranks, index);
    slice.b_origin = static_cast<int>(range.begin);
    if (auto ok = encode_a(slice.a, tensors.a.data, problem.m, problem.k, tensors.a.stride); !ok) return ok;
    if (slice.rows == 0) return {};
    Plane plane{send_slot(index), range.size, problem.m, buffers.send_pitch, fp32, chunk_columns(fp32)};
    if (own) {
      plane.data = offset(tensors.d.data, exchange.rank * problem.m * tensors.d.stride, fp32);
      plane.stride = tensors.d.stride;
    } else {
      slice.signal = words(exchange.done, index);
      if (direct) {
        slice.signal = words(exchange.peer_ready[static_cast<std::size_t>(index)], exchange.rank);
        plane.data = exchange.peer_slot[static_cast<std::size_t>(index)];
        plane.stride = exchange.peer_pitch;
      }
    }
    return encode(slice.d, "cuTensorMapEncodeTiled of a slice for its owner", plane, 64);
  }

  Result<void> fill() {
    params.waiting = {.ready = exchange.ready,
                      .abort = exchange.abort,
                      .failure = reinterpret_cast<device::Failure*>(exchange.failure),
                      .timeout_ns = exchange.timeout_ns,
                      .expected = exchange.expected};
    params.tiles = tiles_of(problem, plan, exchange.rank);
    params.chunks = plan.sub_slices;
    for (int i = 0; i < plan.ranks; ++i) {
      if (auto ok = fill_slice(i); !ok) return ok;
    }
    params.k_blocks = static_cast<int>((problem.k + device::kTileK - 1) / device::kTileK);
    if (problem.op == OverlapOp::all_to_all_gemm) {
      params.k_blocks = 0;
      for (int i = 0; i < plan.ranks; ++i) params.k_blocks += params.slice[i].k_blocks;
    }
    if (auto ok = encode_b(); !ok) return ok;
    return encode_bias();
  }
};

}  // namespace

Result<void> check_overlap_arguments(const OverlapGemm& problem, const OverlapPlan& plan, const OverlapGemmTensors& tensors,
                                     const OverlapExchange& exchange) {
  if (plan.ranks > 1) {
    if (auto ok = check_exchange(plan, exchange); !ok) return ok;
  } else if (exchange.rank != 0) {
    return bad_argument(fmt::format("exchange: rank is {}, and there is one rank", exchange.rank));
  }
  const auto own = [&](std::int64_t size) { return slice_range(size, problem.ranks, exchange.rank).size; };
  const std::int64_t a_line = problem.a == Storage::column               ? problem.m
                              : problem.op == OverlapOp::all_to_all_gemm ? own(problem.k)
                                                                         : problem.k;
  if (auto ok = check_matrix("a", tensors.a, a_line, 2); !ok) return ok;
  if (auto ok = check_matrix("b", tensors.b, problem.b == Storage::column ? problem.k : problem.n, 2); !ok) return ok;
  const std::int64_t d_line = problem.op == OverlapOp::gemm_all_to_all ? own(problem.n) : problem.n;
  if (auto ok = check_matrix("d", tensors.d, d_line, problem.out == OutputType::fp32 ? 4 : 2); !ok) return ok;
  if (problem.bias && (tensors.bias == nullptr || !aligned(tensors.bias)))
    return bad_argument("bias: null or not 16-byte aligned; pass an aligned device pointer");
  if (problem.op == OverlapOp::gemm_all_to_all && plan.transport == Transport::direct && problem.ranks > 1 &&
      exchange.peer_pitch % (problem.out == OutputType::fp32 ? 4 : 8) != 0)
    return bad_argument(fmt::format("exchange: peer_pitch {} is not a multiple of 16 bytes", exchange.peer_pitch));
  return {};
}

Result<void> launch_overlap_gemm(const Driver& driver, CUfunction function, int resident_clusters, const OverlapGemm& problem,
                                 const OverlapPlan& plan, const OverlapGemmTensors& tensors, const OverlapExchange& exchange,
                                 CUstream stream) {
  Params params{};
  Filler filler{driver, problem, plan, tensors, exchange, overlap_buffers(problem, plan), params};
  if (auto ok = filler.fill(); !ok) return ok;
  const int clusters = std::max(1, std::min({plan.workers, resident_clusters, device::tile_count(params.tiles)}));
  const Grid grid{static_cast<unsigned>(clusters * plan.cluster)};
  const int bytes = device::layout_of(device_config(plan)).bytes;
  constexpr const char* kWhat = "launch of ordo_overlap";
  // Between the launches of several ranks lie copies and waits, which end what a kernel may start ahead of.
  if (plan.ranks > 1) return launch_kernel(driver, function, kWhat, grid, device::kThreads, bytes, params, stream, {});
  CUlaunchAttribute early_start{};  // the kernel waits itself (griddepcontrol.wait) before it reads what the one before wrote
  early_start.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  early_start.value.programmaticStreamSerializationAllowed = 1;
  return launch_kernel(driver, function, kWhat, grid, device::kThreads, bytes, params, stream, {early_start});
}

OverlapGemmKernel::OverlapGemmKernel(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
const OverlapPlan& OverlapGemmKernel::plan() const { return impl_->plan; }
const KernelReport& OverlapGemmKernel::report() const { return impl_->report; }

Result<void> OverlapGemmKernel::load() const {
  const auto loaded = impl_->kernels.load(nullptr);
  return loaded ? Result<void>() : Result<void>(loaded.error());
}

Result<void> OverlapGemmKernel::launch(const OverlapGemm& problem, const OverlapGemmTensors& tensors,
                                       const OverlapExchange& exchange, CUstream_st* stream) const {
  const OverlapPlan& plan = impl_->plan;
  if (auto fits = check_fit(problem, plan); !fits) return fits;
  if (auto ok = check_overlap_arguments(problem, plan, tensors, exchange); !ok) return ok;
  const auto loaded = impl_->kernels.load(stream);
  if (!loaded) return loaded.error();
  const LoadedKernel& kernel = (*loaded)->kernels.front();
  return launch_overlap_gemm(*(*loaded)->driver, kernel.function, kernel.resident_clusters, problem, plan, tensors, exchange,
                             stream);
}

}  // namespace ordo
