// The device copies of an arrival table, with a driver of the imagination.
#include "runtime/arrival_tables.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "codegen/schedule/arrival.hpp"
#include "codegen/schedule/visit_table.hpp"

namespace ordo {
namespace {

struct FakeDriver {
  unsigned long long context = 1;    ///< current; contexts are named by their ids
  unsigned long long destroyed = 0;  ///< a context that is gone
  bool capturing = false;
  CUresult alloc_result = CUDA_SUCCESS, copy_result = CUDA_SUCCESS;
  int allocations = 0, waits = 0;
  std::map<CUdeviceptr, std::vector<std::uint32_t>> memory;
  std::map<CUdeviceptr, unsigned long long> freed_in;  ///< the context that was current
};
FakeDriver* fake = nullptr;

CUresult error_text(CUresult, const char** text) {
  *text = "fake";
  return CUDA_SUCCESS;
}
CUresult ctx_get_current(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(fake->context);
  return CUDA_SUCCESS;
}
CUresult ctx_set_current(CUcontext context) {
  fake->context = reinterpret_cast<std::uintptr_t>(context);
  return CUDA_SUCCESS;
}
CUresult ctx_get_id(CUcontext context, unsigned long long* id) {
  *id = reinterpret_cast<std::uintptr_t>(context);
  return *id == fake->destroyed ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
CUresult stream_is_capturing(CUstream, CUstreamCaptureStatus* status) {
  *status = fake->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult mem_alloc(CUdeviceptr* data, std::size_t bytes) {
  if (fake->alloc_result != CUDA_SUCCESS) return fake->alloc_result;
  *data = static_cast<CUdeviceptr>(256 * ++fake->allocations);
  fake->memory[*data].resize(bytes / 4);
  return CUDA_SUCCESS;
}
CUresult mem_free(CUdeviceptr data) {
  fake->freed_in[data] = fake->context;
  return CUDA_SUCCESS;
}
CUresult copy(CUdeviceptr to, const void* from, std::size_t bytes, CUstream) {
  if (fake->copy_result != CUDA_SUCCESS) return fake->copy_result;
  std::memcpy(fake->memory[to].data(), from, bytes);
  return CUDA_SUCCESS;
}
CUresult synchronize(CUstream) {
  ++fake->waits;
  return CUDA_SUCCESS;
}

Driver driver_table() {
  Driver d;
  d.getErrorName = d.getErrorString = error_text;
  d.ctxGetCurrent = ctx_get_current;
  d.ctxSetCurrent = ctx_set_current;
  d.ctxGetId = ctx_get_id;
  d.streamIsCapturing = stream_is_capturing;
  d.memAlloc = mem_alloc;
  d.memFree = mem_free;
  d.memcpyHtoDAsync = copy;
  d.streamSynchronize = synchronize;
  return d;
}

struct Fixture {
  FakeDriver state;
  Driver driver = driver_table();
  LoadedKernels here, there;  ///< of contexts 1 and 2
  AttentionBackward problem{.seqlen_q = 1000, .seqlen_k = 2000, .heads = 4, .kv_heads = 4};
  Plan plan;

  Fixture() {
    fake = &state;
    here.driver = there.driver = &driver;
    const auto choice =
        make_plan(problem, *parse_target("h200"), {.schedule = Schedule::arrival, .accumulate = {}, .static_shape = false});
    REQUIRE(choice);
    plan = choice->plan;
  }
};

}  // namespace

TEST_CASE("arrival tables: one upload a context, found again, freed where it belongs") {
  Fixture f;
  {
    ArrivalTables tables;
    const auto first = tables.get(f.here, f.problem, f.plan, nullptr);
    REQUIRE(first);
    const auto table = arrival_of(f.problem, f.plan);
    REQUIRE(table);
    CHECK(f.state.memory[reinterpret_cast<CUdeviceptr>(*first)] == table->words);
    CHECK(f.state.waits == 1);
    f.state.capturing = true;  // no matter once it is there
    CHECK(*tables.get(f.here, f.problem, f.plan, nullptr) == *first);
    f.state.capturing = false;
    f.state.context = 2;
    const auto second = tables.get(f.there, f.problem, f.plan, nullptr);
    REQUIRE(second);
    CHECK(*second != *first);
    CHECK(f.state.allocations == 2);
    f.state.context = 3;
  }
  CHECK(f.state.freed_in == std::map<CUdeviceptr, unsigned long long>{{256, 1}, {512, 2}});
  CHECK(f.state.context == 3);  // as it was
}

TEST_CASE("arrival tables: what is refused, and that nothing is left behind") {
  Fixture f;
  ArrivalTables tables;
  const auto refused = [&](const std::string& expected) {
    const auto got = tables.get(f.here, f.problem, f.plan, nullptr);
    REQUIRE_FALSE(got);
    CAPTURE(got.error().message);
    CHECK(got.error().message.find(expected) != std::string::npos);
  };
  f.state.capturing = true;
  refused("outside of the capture");
  CHECK(f.state.allocations == 0);
  f.state.capturing = false;
  f.state.alloc_result = CUDA_ERROR_OUT_OF_MEMORY;
  refused("for the orders of adds");
  f.state.alloc_result = CUDA_SUCCESS;
  f.state.copy_result = CUDA_ERROR_INVALID_VALUE;
  refused("cuMemcpyHtoDAsync");
  CHECK(f.state.freed_in.size() == 1);
  f.state.copy_result = CUDA_SUCCESS;
  CHECK(tables.get(f.here, f.problem, f.plan, nullptr));
}

TEST_CASE("arrival tables: threads that ask at once share one upload a problem") {
  Fixture f;
  std::vector<std::pair<AttentionBackward, Plan>> asked;
  for (const std::int64_t seqlen : {500, 1000, 2000}) {
    AttentionBackward problem = f.problem;
    problem.seqlen_q = seqlen;
    const auto choice =
        make_plan(problem, *parse_target("h200"), {.schedule = Schedule::arrival, .accumulate = {}, .static_shape = false});
    REQUIRE(choice);
    asked.emplace_back(problem, choice->plan);
  }
  ArrivalTables tables;
  constexpr int kThreads = 8;
  std::vector<std::vector<const unsigned int*>> got(kThreads);
  {
    std::vector<std::jthread> threads;
    for (auto& mine : got)
      threads.emplace_back([&] {
        for (int round = 0; round < 20; ++round)
          for (const auto& [problem, plan] : asked) {
            const auto table = tables.get(f.here, problem, plan, nullptr);
            mine.push_back(table ? *table : nullptr);
          }
      });
  }
  CHECK(f.state.allocations == 3);
  for (std::size_t i = 0; i < got.front().size(); ++i)
    for (const auto& mine : got) CHECK(mine[i] == got.front()[i % asked.size()]);
  for (std::size_t i = 0; i < asked.size(); ++i)
    CHECK(f.state.memory[reinterpret_cast<CUdeviceptr>(got.front()[i])] == table_of(asked[i].first, asked[i].second)->words);
}

TEST_CASE("arrival tables: a context that is gone took its copy along") {
  Fixture f;
  {
    ArrivalTables tables;
    REQUIRE(tables.get(f.here, f.problem, f.plan, nullptr));
    f.state.destroyed = 1;
    f.state.context = 3;
  }
  CHECK(f.state.freed_in.empty());
}

}  // namespace ordo
