// What a launch hands the copy engine: tensor maps and origins of every tile, held against the rules of the driver and of PTX.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <set>

#include "codegen/generate/overlap.hpp"
#include "runtime/overlap_launch.hpp"
#include "templates/overlap/params.cuh"
#include "templates/overlap/shared_memory.cuh"

namespace ordo {
namespace {

using Params = overlap::Params<overlap::kMostRanks>;

/// What the fake driver writes into a tensor map.
struct Map {
  std::uint64_t base, stride;
  std::uint64_t inner, outer;
  std::uint32_t element, columns, lines;
};
static_assert(sizeof(Map) <= sizeof(TensorMap));

Map read(const TensorMap& map) {
  Map out{};
  std::memcpy(&out, &map, sizeof out);
  return out;
}

/// The requirements of cuTensorMapEncodeTiled for maps that are not interleaved.
CUresult CUDAAPI encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* sizes,
                        const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave,
                        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const std::uint32_t element = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
  const Map out{.base = reinterpret_cast<std::uintptr_t>(data),
                .stride = rank == 2 ? strides[0] : 0,
                .inner = sizes[0],
                .outer = rank == 2 ? sizes[1] : 1,
                .element = element,
                .columns = box[0],
                .lines = rank == 2 ? box[1] : 1};
  bool legal = rank <= 2 && out.base % 16 == 0 && out.stride % 16 == 0 && out.stride < (std::uint64_t{1} << 40);
  for (const std::uint64_t size : {out.inner, out.outer}) legal = legal && size >= 1 && size <= (std::uint64_t{1} << 32);
  for (const std::uint32_t side : {out.columns, out.lines}) legal = legal && side >= 1 && side <= 256;
  const std::uint32_t row = out.columns * element;
  legal = legal && row % 16 == 0 && steps[0] == 1;
  if (swizzle == CU_TENSOR_MAP_SWIZZLE_128B) legal = legal && row <= 128;
  if (swizzle == CU_TENSOR_MAP_SWIZZLE_64B) legal = legal && row <= 64;
  void* const bytes = map;  // aligned to 64 bytes, as the driver asks; the type of CUDA 13 says 128
  std::memset(bytes, 0, sizeof *map);
  std::memcpy(bytes, &out, sizeof out);
  return legal ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

Params launched;

CUresult CUDAAPI launch(const CUlaunchConfig*, CUfunction, void** arguments, void**) {
  std::memcpy(&launched, arguments[0], sizeof launched);
  return CUDA_SUCCESS;
}

/// Every copy that the kernel makes for one tile, as templates/overlap/producer.cuh asks for it.
class Copies {
 public:
  Copies(const OverlapPlan& plan, const Params& params) : c_(device_config(plan)), params_(params) {}

  /// Copies that begin at an address that is no multiple of 16 bytes, or use a map that was never made.
  int misaligned() {
    for (int number = 0; number < overlap::tile_count(params_.tiles); ++number) {
      const overlap::Tile tile = overlap::tile_at(params_.tiles, number);
      const overlap::Slice& slice = params_.slice[tile.slice];
      const int first = tile.unit * c_.tile_m * c_.cluster;
      if (first >= slice.rows) continue;
      for (int cta = 0; cta < c_.cluster; ++cta) add_tile(tile, slice, first + cta * c_.tile_m, cta);
    }
    return misaligned_;
  }

 private:
  void add_tile(const overlap::Tile& tile, const overlap::Slice& slice, int row, int cta) {
    const int column = tile.column * c_.tile_n, me = params_.tiles.rank;
    const bool leaves = overlap::reduces(c_) && tile.slice != me;
    const int share = column + cta * (c_.tile_n / c_.cluster);
    if (c_.op == overlap::Op::all_to_all_gemm) {
      for (int source = 0; source < c_.ranks; ++source) {
        const overlap::Slice& from = params_.slice[source];
        if (from.k_blocks > 0) add_block(from, row, share, 0, from.k_origin);
      }
    } else {
      add_block(slice, slice.a_origin + row, slice.b_origin + share, 0, 0);
    }
    if (c_.bias && !leaves) add(params_.bias, slice.b_origin + column, 0);
    add(slice.d, column, row);
    if (overlap::reduces(c_) && !leaves)
      for (int source = 0; source < c_.ranks; ++source)
        if (source != me) add(params_.slice[source].partial, column, row);
  }

  void add_block(const overlap::Slice& slice, int row, int column, int a_k, int b_k) {
    c_.a_column ? add(slice.a, row, a_k) : add(slice.a, a_k, row);
    c_.b_column ? add(slice.b, b_k, column) : add(slice.b, column, b_k);
  }

  void add(const TensorMap& tensor, std::int64_t x, std::int64_t y) {
    const Map map = read(tensor);
    const std::uint64_t address =
        map.base + static_cast<std::uint64_t>(x) * map.element + static_cast<std::uint64_t>(y) * map.stride;
    if (map.base == 0 || address % 16 != 0) ++misaligned_;
  }

  overlap::Config c_;
  const Params& params_;
  int misaligned_ = 0;
};

void* at(std::uintptr_t address) { return reinterpret_cast<void*>(address); }
std::int64_t padded(std::int64_t line) { return (line + 7) / 8 * 8 + 8; }

/// A launch of `rank` with addresses that nobody reads.
Result<void> fill(const OverlapGemm& p, const OverlapPlan& plan, int rank) {
  Driver driver{};
  driver.tensorMapEncodeTiled = encode;
  driver.launchKernelEx = launch;
  const OverlapGemmTensors tensors{{at(1u << 28), padded(p.a == Storage::row ? p.k : p.m)},
                                   {at(2u << 28), padded(p.b == Storage::row ? p.n : p.k)},
                                   {at(3u << 28), padded(p.n)},
                                   at(4u << 28)};
  OverlapExchange x;
  x.rank = rank;
  x.received = at(5u << 28);
  x.sent = at(6u << 28);
  const auto words = static_cast<std::uint32_t*>(at(7u << 28));
  x.ready = x.done = words;
  x.abort = words;
  x.failure = static_cast<OverlapFailure*>(at(8ull << 28));
  const std::vector<void*> slots(static_cast<std::size_t>(p.ranks), at(9ull << 28));
  const std::vector<std::uint32_t*> ready(static_cast<std::size_t>(p.ranks), words);
  x.peer_slot = slots;
  x.peer_ready = ready;
  x.peer_pitch = padded(p.n);
  if (auto ok = check_overlap_arguments(p, plan, tensors, x); !ok) return ok;
  return launch_overlap_gemm(driver, nullptr, 132, p, plan, tensors, x, nullptr);
}

OverlapPlan plan_for(const OverlapGemm& p, int width, OutputType partial, Transport transport) {
  OverlapPlan plan{.op = p.op,
                   .ranks = static_cast<int>(p.ranks),
                   .dtype = p.dtype,
                   .a = p.a,
                   .b = p.b,
                   .out = p.out,
                   .bias = p.bias,
                   .tile_n = width,
                   .stages = 3,
                   .cluster = p.b == Storage::row && width % 128 != 0 ? 1 : 2,
                   .sub_slices = p.op == OverlapOp::gemm ? 1 : 3,
                   .partial = partial,
                   .transport = transport};
  return plan;
}

constexpr std::array kOps{OverlapOp::gemm,
                          OverlapOp::all_gather_gemm,
                          OverlapOp::gemm_reduce_scatter,
                          OverlapOp::gemm_all_reduce,
                          OverlapOp::gemm_all_to_all,
                          OverlapOp::all_to_all_gemm};

}  // namespace

TEST_CASE("overlap launch: copies begin at multiples of 16 bytes for every problem that is accepted, and for no other") {
  struct Shape {
    std::int64_t m, n, k;
  };
  int accepted = 0, refused = 0;
  std::set<OverlapOp> refusing;
  for (const Shape& shape : {Shape{1304, 776, 130}, Shape{384, 384, 384}, Shape{383, 383, 383}, Shape{3, 2, 5}, Shape{1, 1, 1},
                             Shape{1001, 1000, 77}, Shape{640, 515, 451}})
    for (const OverlapOp op : kOps)
      for (const int ranks : {1, 2, 3, 4, 7})
        for (int bits = 0; bits < 64; ++bits) {
          const OverlapGemm p{.op = op,
                              .m = shape.m,
                              .n = shape.n,
                              .k = shape.k,
                              .ranks = ranks,
                              .a = (bits & 1) != 0 ? Storage::column : Storage::row,
                              .b = (bits & 2) != 0 ? Storage::column : Storage::row,
                              .out = (bits & 4) != 0 ? OutputType::fp32 : OutputType::same,
                              .bias = (bits & 8) != 0};
          const OverlapPlan plan =
              plan_for(p, 64 * (1 + (bits ^ ranks) % 4), (bits & 16) != 0 ? OutputType::fp32 : OutputType::same,
                       (bits & 32) != 0 ? Transport::direct : Transport::copy_engine);
          const auto valid = p.validate();
          if (!plan.validate() || (!valid && valid.error().message.find("16 bytes") == std::string::npos)) continue;
          INFO(to_text(p) << " | " << to_text(plan));
          int misaligned = 0;
          for (int rank = 0; rank < ranks; ++rank) {
            const auto filled = fill(p, plan, rank);
            REQUIRE_MESSAGE(filled.ok(), filled.error().message);
            misaligned += Copies(plan, launched).misaligned();
          }
          CHECK(valid.ok() == (misaligned == 0));
          ++(valid.ok() ? accepted : refused);
          if (!valid) refusing.insert(op);
        }
  CHECK(accepted > 1000);
  CHECK(refused > 100);
  CHECK(refusing.size() == 4);
}

TEST_CASE("overlap launch: shared memory that copies and wgmma touch is aligned, and a partial tile fits its stages") {
  for (const int width : {64, 128, 192, 256})
    for (int bits = 0; bits < 32; ++bits)
      for (const int buffers : {1, 2, 3, 4, 8}) {
        OverlapPlan plan{.op = OverlapOp::gemm_reduce_scatter, .ranks = 2, .tile_n = width, .store_buffers = buffers};
        plan.out = (bits & 1) != 0 ? OutputType::fp32 : OutputType::same;
        plan.partial = (bits & 2) != 0 ? OutputType::fp32 : OutputType::same;
        plan.bias = (bits & 4) != 0;
        plan.stages = 2 + bits / 8;
        if (!plan.validate()) continue;
        const overlap::Config c = device_config(plan);
        const overlap::Layout l = overlap::layout_of(c);
        CHECK(l.stages % 1024 == 0);
        CHECK(overlap::stage_bytes(c) % 1024 == 0);
        CHECK(overlap::a_bytes(c) % 1024 == 0);
        CHECK(l.staging % 1024 == 0);
        CHECK(overlap::store_bytes(c) % 1024 == 0);
        CHECK(l.bias % 128 == 0);
        CHECK(width * 2 % 128 == 0);  // of the second bias
        CHECK(l.barriers % 8 == 0);
        const int chunk = c.tile_m * overlap::chunk_row_bytes(c, c.partial_fp32), chunks = overlap::partial_chunks(c);
        CHECK(chunk / 2 % 1024 == 0);
        CHECK(chunks * chunk <= overlap::stage_bytes(c));
        CHECK(width % (chunks * overlap::chunk_columns(c, c.partial_fp32)) == 0);
      }
}

TEST_CASE("overlap launch: an exchange with an address that no copy can begin at is refused") {
  const OverlapGemm p{.op = OverlapOp::gemm_reduce_scatter, .m = 64, .n = 64, .k = 64, .ranks = 2};
  const OverlapPlan plan = plan_for(p, 64, OutputType::same, Transport::direct);
  const OverlapGemmTensors tensors{{at(4096), 64}, {at(4096), 64}, {at(4096), 64}};
  std::uint32_t word = 0;
  OverlapFailure failure;
  std::array<void*, 2> slots{at(4096), at(4096)};
  const std::array<std::uint32_t*, 2> ready{&word, &word};
  OverlapExchange x;
  x.received = at(4096);
  x.ready = x.abort = &word;
  x.failure = &failure;
  x.peer_slot = slots;
  x.peer_ready = ready;
  CHECK(check_overlap_arguments(p, plan, tensors, x).ok());
  const auto refused = [&](std::string_view part) {
    const auto result = check_overlap_arguments(p, plan, tensors, x);
    REQUIRE(!result.ok());
    CHECK_MESSAGE(result.error().message.find(part) != std::string::npos, result.error().message);
  };
  slots[1] = at(4104);
  refused("peer_slot 0x1008 is not 16-byte aligned");
  slots[1] = at(4096);
  x.received = at(4100);
  refused("received 0x1004");
}

}  // namespace ordo
