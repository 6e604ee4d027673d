// OverlapGemm and OverlapPlan: texts and rules; the order of tiles; the text of the kernel.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <tuple>

#include "ordo/overlap.hpp"
#include "ordo/overlap_kernel.hpp"
#include "runtime/compiler.hpp"
#include "runtime/overlap_slices.hpp"

namespace ordo {
namespace {

void refused(const Result<void>& result, std::string_view part) {
  REQUIRE(!result.ok());
  CHECK_MESSAGE(result.error().message.find(part) != std::string::npos, result.error().message);
}

}  // namespace

TEST_CASE("overlap: canonical texts read back") {
  const OverlapGemm problem{.op = OverlapOp::gemm_reduce_scatter,
                            .m = 4096,
                            .n = 512,
                            .k = 100,
                            .ranks = 4,
                            .dtype = DType::fp16,
                            .a = Storage::column,
                            .b = Storage::row,
                            .out = OutputType::fp32,
                            .bias = true,
                            .activation = Activation::gelu};
  CHECK(to_text(problem) ==
        "overlap-gemm op=gemm-reduce-scatter m=4096 n=512 k=100 ranks=4 dtype=fp16 a=column b=row out=fp32 bias=yes "
        "activation=gelu");
  CHECK(*parse_overlap_gemm(to_text(problem)) == problem);
  const OverlapPlan plan{.op = OverlapOp::gemm_reduce_scatter,
                         .ranks = 4,
                         .tile_n = 192,
                         .group_m = 3,
                         .sub_slices = 5,
                         .partial = OutputType::fp32,
                         .transport = Transport::direct};
  CHECK(*parse_overlap_plan(to_text(plan)) == plan);
  const OverlapPlan ring{.op = OverlapOp::all_gather_gemm, .ranks = 4, .route = OverlapRoute::ring};
  CHECK(to_text(ring).ends_with(" partial=same transport=copy-engine route=ring"));
  CHECK(*parse_overlap_plan(to_text(ring)) == ring);
  // Texts from before there was a route.
  CHECK(*parse_overlap_plan("overlap-plan op=all-gather-gemm ranks=4 sub_slices=1 partial=same transport=copy-engine") ==
        OverlapPlan{.op = OverlapOp::all_gather_gemm, .ranks = 4});
  CHECK(!parse_overlap_plan("overlap-plan op=all-gather-gemm ranks=4 route=circle").ok());
  CHECK(*parse_overlap_plan("overlap-plan") == OverlapPlan{});
  CHECK(!parse_overlap_plan("overlap-plan bias=true").ok());
  CHECK(!parse_overlap_gemm("overlap-gemm m=1 n=1 k=1 m=2").ok());
  CHECK(!parse_overlap_gemm("overlap-gemm m=0 n=1 k=1").ok());
}

TEST_CASE("overlap: rules name what was found") {
  OverlapGemm problem{.m = 1, .n = 1, .k = 1};
  CHECK(problem.validate().ok());
  problem.ranks = 2;
  refused(problem.validate(), "ranks is 2; op gemm");
  problem.op = OverlapOp::all_gather_gemm;
  CHECK(problem.validate().ok());
  problem.a = Storage::column;
  refused(problem.validate(), "use a=row");
  problem = {.m = 1, .n = 1, .k = std::int64_t{1} << 25};
  refused(problem.validate(), "k is 33554432");

  // Where an operand is contiguous along what is cut, slices begin at multiples of 16 bytes.
  problem = {.op = OverlapOp::gemm_reduce_scatter, .m = 1304, .n = 776, .k = 130, .ranks = 2, .a = Storage::column};
  refused(problem.validate(), "m is 1304, of which slice 1 begins at 652; a, stored by columns,");
  refused(problem.validate(), "Make m a multiple of 16 (8 x ranks), or use a=row");
  problem.m = 1247;  // 624 and 623 rows
  CHECK(problem.validate().ok());
  problem.op = OverlapOp::gemm_all_to_all;
  problem.m = 1305;  // all of it is everybody's
  problem.n = 1001;
  CHECK(problem.validate().ok());
  problem.bias = true;
  refused(problem.validate(), "slice 1 begins at 501; the bias");
  problem.bias = false;
  problem.b = Storage::row;
  refused(problem.validate(), "slice 1 begins at 501; b, stored by rows,");
  problem = {.op = OverlapOp::all_to_all_gemm, .m = 3, .n = 2, .k = 3, .ranks = 4, .b = Storage::row};
  CHECK(problem.validate().ok());
  problem.b = Storage::column;
  refused(problem.validate(), "k is 3, of which slice 1 begins at 1; b, stored by columns,");
  problem.k = 1;  // slices of nothing begin nowhere
  CHECK(problem.validate().ok());

  OverlapPlan plan;
  plan.stages = 5;
  refused(plan.validate(), "shared memory");
  plan = {.tile_n = 96};
  refused(plan.validate(), "tile_n 96");
  plan = {.cluster = 4};
  refused(plan.validate(), "cluster is 4; it must be within 1 .. 2");
  plan = {.b = Storage::row, .tile_n = 192};
  refused(plan.validate(), "use cluster 1");
  plan = {.transport = Transport::direct};
  refused(plan.validate(), "transport direct");
  plan = {.partial = OutputType::fp32};
  refused(plan.validate(), "partial fp32");
  plan = {.route = OverlapRoute::ring};
  refused(plan.validate(), "op gemm exchanges nothing");
  plan = {.op = OverlapOp::gemm_all_reduce, .ranks = 2, .route = OverlapRoute::ring};
  refused(plan.validate(), "plan: gemm-all-reduce adds what the owner computed");
  plan = {.op = OverlapOp::gemm_all_to_all, .ranks = 2, .route = OverlapRoute::ring};
  refused(plan.validate(), "a ring would carry it past the others");
  refused(check_fit({.m = 1, .n = 1, .k = 1, .bias = true}, OverlapPlan{}), "bias is true and the plan's false");
}

TEST_CASE("overlap: plans that differ in what the kernel does not know share its text") {
  const OverlapPlan plan{.op = OverlapOp::all_gather_gemm, .ranks = 4};
  OverlapPlan other = plan;
  other.group_m = 2;
  other.workers = 3;
  other.sub_slices = 4;
  other.route = OverlapRoute::ring;
  CHECK(generate(plan, Target{})->text == generate(other, Target{})->text);
  CHECK(to_text(plan) != to_text(other));
}

TEST_CASE("overlap: every tile of every slice once, own slice where its op wants it") {
  for (const OverlapOp op : {OverlapOp::all_gather_gemm, OverlapOp::gemm_reduce_scatter, OverlapOp::gemm_all_to_all})
    for (const int ranks : {1, 2, 3, 8})
      for (const auto& [m, n] : {std::pair(4096, 1000), std::pair(1, 1), std::pair(1029, 513), std::pair(700, 3)})
        for (const int group : {1, 3, 100})
          for (int rank = 0; rank < ranks; ++rank) {
            const OverlapGemm problem{.op = op, .m = m, .n = n, .k = 64, .ranks = ranks};
            const OverlapPlan plan{.op = op, .ranks = ranks, .group_m = group, .sub_slices = 3};
            const overlap::Tiles tiles = tiles_of(problem, plan, rank);
            std::set<std::tuple<int, int, int>> seen;
            std::map<std::pair<int, int>, std::uint32_t> arrivals;
            for (int i = 0; i < overlap::tile_count(tiles); ++i) {
              const overlap::Tile tile = overlap::tile_at(tiles, i);
              REQUIRE((tile.slice >= 0 && tile.slice < ranks && tile.column >= 0 && tile.column < tiles.columns));
              CHECK(seen.emplace(tile.slice, tile.unit, tile.column).second);
              const int unit_rows = plan.tile_m * plan.cluster;
              const int units = overlap::ceil_div(static_cast<int>(slice_rows(problem, tile.slice)), unit_rows);
              if (tile.unit >= units) continue;
              arrivals[{tile.slice, overlap::chunk_of(units, plan.sub_slices, tile.unit)}] +=
                  static_cast<std::uint32_t>(plan.cluster * overlap::kStoreWarps);
            }
            CHECK(static_cast<int>(seen.size()) == overlap::tile_count(tiles));
            for (int slice = 0; slice < ranks; ++slice)
              for (int chunk = 0; chunk < plan.sub_slices; ++chunk)
                CHECK(overlap_chunk_arrivals(problem, plan, slice, chunk) == arrivals[{slice, chunk}]);
            const int own_step = op == OverlapOp::all_gather_gemm ? 0 : ranks - 1;
            CHECK(overlap::tile_at(tiles, own_step * tiles.units * tiles.columns).slice == rank);
          }
}

TEST_CASE("overlap: chunks are cut as slices.cuh cuts them") {
  for (const int units : {1, 2, 5, 16, 33})
    for (const int chunks : {1, 2, 3, 7, 40})
      for (int unit = 0; unit < units; ++unit) {
        const int chunk = overlap::chunk_of(units, chunks, unit);
        CHECK(overlap::part_begin(units, chunks, 1, chunk) <= unit);
        CHECK(overlap::part_begin(units, chunks, 1, chunk + 1) > unit);
      }
}

TEST_CASE("overlap: kernels of every op compile without spills") {
  const auto compiler = Compiler::open();
  REQUIRE(compiler.ok());
#ifdef ORDO_SANITIZER  // what takes the time is NVRTC, which is not instrumented
  constexpr int kStride = 5;
#else
  constexpr int kStride = 1;
#endif
  int number = 0;
  for (const char* text : {
           "overlap-plan dtype=fp16 a=column b=row bias=yes activation=silu",
           "overlap-plan tile_n=192 cluster=1 stages=4 store_buffers=4 out=fp32 bias=yes activation=gelu",
           "overlap-plan op=all-gather-gemm ranks=8 sub_slices=4 bias=yes activation=gelu",
           "overlap-plan op=gemm-reduce-scatter ranks=8 bias=yes activation=silu",
           "overlap-plan op=gemm-reduce-scatter ranks=2 a=column b=row out=fp32 partial=fp32 transport=direct",
           "overlap-plan op=gemm-all-reduce ranks=3 tile_n=128 partial=fp32 bias=yes",
           "overlap-plan op=gemm-reduce-scatter ranks=4 tile_n=192 stages=4 store_buffers=4 bias=yes activation=gelu",
           // The sum and what follows it take the most registers with two ranks, whose one partial sum needs no loop.
           "overlap-plan op=gemm-reduce-scatter ranks=2 dtype=fp16 bias=yes activation=gelu partial=fp32",
           "overlap-plan op=gemm-all-reduce ranks=2 a=column b=row bias=yes activation=silu out=fp32 partial=fp32",
           "overlap-plan op=gemm-all-reduce ranks=4 a=column b=row activation=silu partial=fp32",
           "overlap-plan op=gemm-reduce-scatter ranks=2 b=row cluster=1 tile_n=192 bias=yes activation=gelu partial=fp32",
           // An activation without the loads of a bias, which hold the compiler to the order of the chunks.
           "overlap-plan op=all-gather-gemm ranks=3 cluster=1 activation=gelu stages=3 store_buffers=4",
           "overlap-plan op=gemm-reduce-scatter ranks=1 dtype=fp16 activation=silu stages=3 store_buffers=3",
           "overlap-plan op=gemm-all-to-all ranks=4 bias=yes activation=relu",
           "overlap-plan op=all-to-all-gemm ranks=32 bias=yes activation=gelu dtype=fp16",
       }) {
    if (number++ % kStride != 0) continue;
    const auto plan = parse_overlap_plan(text);
    REQUIRE_MESSAGE(plan.ok(), text);
    const auto source = generate(*plan, Target{});
    REQUIRE(source.ok());
    const auto cubin = compiler->compile(*source);
    CHECK_MESSAGE(cubin.ok(), text << "\n" << (cubin.ok() ? "" : cubin.error().message));
  }
}

}  // namespace ordo
