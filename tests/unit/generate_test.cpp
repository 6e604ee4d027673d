// Every kind of kernel that exists: its text, and for a cover of the kinds what NVRTC makes of it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "ordo/kernel_source.hpp"
#include "runtime/compile_log.hpp"
#include "runtime/compiler.hpp"
#include "templates/attention_backward/params.cuh"
#include "tests/gpu/cover.hpp"
#include "tests/gpu/plans.hpp"

namespace ordo {
namespace {

constexpr int kMostSharedBytes = 232448;  // a block on sm_90 may opt in to

/// A kind of kernel, by levels of {dtype, head_dim and cluster, mask, group, schedule, accumulation}.
const std::vector<int> kKinds{2, 3, 2, 2, test::kScheduleLevels, 3};

Plan plan_of(const test::Levels& level, bool static_shape = false) {
  AttentionBackward problem{.batch = 2, .seqlen_q = 1000, .seqlen_k = 2000};
  problem.dtype = level[0] == 0 ? DType::bf16 : DType::fp16;
  problem.head_dim = level[1] == 0 ? 64 : 128;
  const int cluster = level[1] == 2 ? 2 : 1;
  problem.mask = level[2] == 0 ? Mask::full : Mask::causal;
  problem.heads = 8;
  problem.kv_heads = level[3] == 0 ? 8 : 2;
  const Schedule schedule = test::schedule_of(problem.mask, level[4]);
  const auto target = parse_target("h200");
  REQUIRE(target);
  const auto plan = test::plan_with(problem, *target, schedule, static_cast<Accumulate>(level[5]), cluster, static_shape);
  REQUIRE_MESSAGE(plan.ok(), (plan ? "" : plan.error().message));
  return *plan;
}

std::vector<Plan> every_plan() {
  std::vector<Plan> plans;
  test::Levels level(kKinds.size(), 0);
  while (true) {
    plans.push_back(plan_of(level));
    std::size_t i = 0;
    while (i < level.size() && ++level[i] == kKinds[i]) level[i++] = 0;
    if (i == level.size()) return plans;
  }
}

std::vector<KernelSource> sources_of(const Plan& plan) {
  const auto target = parse_target("h200");
  REQUIRE(target);
  auto sources = generate(plan, *target);
  REQUIRE_MESSAGE(sources.ok(), (sources ? "" : sources.error().message));
  return *std::move(sources);
}

struct ParameterSize {
  std::size_t bytes, alignment;
};
template <class Params>
constexpr ParameterSize size_of() {
  return {sizeof(Params), alignof(Params)};
}
ParameterSize parameters_of(const std::string& kernel) {
  namespace device = attention_backward;
  if (kernel == "main") return size_of<device::MainParams>();
  if (kernel == "preprocess") return size_of<device::PreprocessParams>();
  if (kernel == "convert") return size_of<device::ConvertParams>();
  return size_of<device::ScalesParams>();
}

struct Compiled {
  Plan plan;
  KernelSource source;
  Result<Cubin> cubin = Error{ErrorCode::internal, "not compiled"};
};

/// The main and preprocess kernels of a pairwise cover of the kinds, every fourth with a static shape, and one of each other
/// kernel and flavour.
std::vector<Compiled> wanted_kernels() {
  test::CoverRequest request{kKinds, {}};
  request.add_all_pairs();
  std::vector<Compiled> out;
  std::set<std::string> others;
  int number = 0;
  for (const test::Levels& level : test::cover(request)) {
    const Plan plan = plan_of(level, ++number % 4 == 0);
    for (KernelSource& source : sources_of(plan)) {
      const bool every = source.name == "main" || source.name == "preprocess";
      if (every || others.insert(source.name).second) out.push_back({plan, std::move(source)});
    }
  }
  const auto target = parse_target("h200");
  REQUIRE(target);
  const Plan plan = out.front().plan;
  auto measuring = generate(plan, *target, Flavour::stalls);
  REQUIRE(measuring);
  out.push_back({plan, std::move(measuring->front())});
  return out;
}

void compile_all(const Compiler& nvrtc, std::vector<Compiled>& kernels) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < kernels.size(); i = next++) kernels[i].cubin = nvrtc.compile(kernels[i].source, true);
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < 2; ++i) threads.emplace_back(work);
}

void check_cubin(const Compiled& compiled) {
  const std::string what = fmt::format("{} of {}", compiled.source.name, to_text(compiled.plan));
  CHECK_MESSAGE(compiled.cubin.ok(), what, ": ", (compiled.cubin ? "" : compiled.cubin.error().message));
  if (!compiled.cubin) return;
  const Cubin& cubin = *compiled.cubin;
  const int spilled = cubin.spill_store_bytes + cubin.spill_load_bytes;
  CHECK_MESSAGE(spilled == 0, what, " spills ", spilled, " bytes");
  for (const std::string& line : broken_rules(parse_log(cubin.log))) FAIL_CHECK(what, ": ", line);
  // The cubin's figure includes the padding in front of the parameter, whose bank does not start on a multiple of 64.
  const ParameterSize host = parameters_of(compiled.source.name);
  const auto device_bytes = static_cast<std::size_t>(cubin.kernel.parameter_bytes);
  CHECK_MESSAGE((device_bytes >= host.bytes && device_bytes - host.bytes < host.alignment), what, ": ", device_bytes,
                " bytes of parameters, the host has ", host.bytes);
  CHECK_MESSAGE(cubin.kernel.static_shared_bytes + compiled.source.shared_bytes <= kMostSharedBytes, what);
  CHECK_MESSAGE(cubin.kernel.max_threads == compiled.source.threads, what);
  CHECK_MESSAGE(cubin.kernel.registers * compiled.source.threads <= 65536, what);
}

}  // namespace

TEST_CASE("every kind of plan generates text, twice the same, that shared memory holds") {
  std::set<std::string> texts, plans;
  for (const Plan& plan : every_plan()) {
    plans.insert(to_text(plan));
    const std::vector<KernelSource> sources = sources_of(plan), again = sources_of(plan);
    REQUIRE(again.size() == sources.size());
    REQUIRE(sources.size() >= 2);
    CHECK(sources[0].name == "main");
    std::set<std::string> names;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      CHECK_MESSAGE(names.insert(sources[i].name).second, "two kernels named ", sources[i].name);
      CHECK_MESSAGE(sources[i].text == again[i].text, to_text(plan));
      CHECK_MESSAGE(sources[i].shared_bytes <= kMostSharedBytes, to_text(plan));
      CHECK(sources[i].text.find("#include") == std::string::npos);
      CHECK(sources[i].text.find(fmt::format(" {}(", sources[i].entry)) != std::string::npos);
    }
    texts.insert(sources[0].text);
  }
  CHECK(texts.size() == plans.size());  // no two kinds share a main kernel
}

TEST_CASE("plans that differ in run-time fields alone share their kernels") {
  const Plan plan = every_plan().front();
  Plan other = plan;
  other.workers = plan.workers / 2 + 1;
  other.head_group = plan.head_group + 1;
  other.shift_stride = plan.shift_stride + 1;
  const std::vector<KernelSource> sources = sources_of(plan), others = sources_of(other);
  REQUIRE(others.size() == sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i) CHECK(others[i].text == sources[i].text);
}

TEST_CASE("generate, report 59: a turn is passed on when the adds themselves have landed, not when their source was read") {
  const auto plans = every_plan();
  const auto ordered =
      std::find_if(plans.begin(), plans.end(), [](const Plan& p) { return p.accumulate == Accumulate::ordered; });
  REQUIRE(ordered != plans.end());
  const std::string text = sources_of(*ordered).front().text;
  // The warp that adds tells the one that announces: the last wait before that is for complete copies.
  const std::size_t told = text.find("barrier_arrive(shared.barrier(barriers.added_full");
  REQUIRE(told != std::string::npos);
  const std::size_t waited = text.rfind("wait_copies", told);
  REQUIRE(waited != std::string::npos);
  CHECK(text.compare(waited, 14, "wait_copies<0>") == 0);
  CHECK(text.find("cp.async.bulk.wait_group %0;") != std::string::npos);
  // The announcement is a release at the scope of the GPU, after the announcing warp has been told.
  const std::size_t announced = text.find("add_release(semaphore(");
  REQUIRE(announced != std::string::npos);
  const std::size_t heard = text.rfind("barrier_wait(shared.barrier(barriers.added_full", announced);
  REQUIRE(heard != std::string::npos);
  CHECK(text.find('}', heard) > announced);
  CHECK(text.find("red.release.gpu.global.add.u32") != std::string::npos);
}

TEST_CASE("the flavour that measures stalls has a main kernel of its own, and changes nothing else") {
  const auto target = parse_target("h200");
  REQUIRE(target);
  for (const Plan& plan : {every_plan().front(), every_plan().back()}) {
    const std::vector<KernelSource> normal = sources_of(plan);
    const auto measuring = generate(plan, *target, Flavour::stalls);
    REQUIRE(measuring);
    REQUIRE(measuring->size() == normal.size());
    CHECK((*measuring)[0].text != normal[0].text);
    CHECK(normal[0].text.find(".measure_stalls = true") == std::string::npos);
    for (std::size_t i = 1; i < normal.size(); ++i) CHECK((*measuring)[i].text == normal[i].text);
  }
}

TEST_CASE("kernels of a cover of the kinds compile without spills, and take the parameters the host passes") {
  const Result<Compiler> nvrtc = Compiler::open();
  if (!nvrtc) {
    MESSAGE("skipped, no NVRTC: ", nvrtc.error().message);
    return;
  }
  std::vector<Compiled> kernels = wanted_kernels();
#ifdef ORDO_SANITIZER  // what takes the time is NVRTC, which is not instrumented: one in seven of the two that every plan has
  int number = 0;
  std::erase_if(kernels, [&](const Compiled& c) {
    return (c.source.name == "main" || c.source.name == "preprocess") && number++ % 7 != 0;
  });
#endif
  compile_all(*nvrtc, kernels);
  double main_ms = 0, slowest_ms = 0;
  int mains = 0;
  std::set<std::string> names;
  for (const Compiled& compiled : kernels) {
    check_cubin(compiled);
    names.insert(compiled.source.name);
    if (compiled.source.name != "main" || !compiled.cubin) continue;
    ++mains;
    main_ms += compiled.cubin->compile_ms;
    slowest_ms = std::max(slowest_ms, compiled.cubin->compile_ms);
  }
  CHECK(names == std::set<std::string>{"main", "preprocess", "convert", "scales"});
  MESSAGE(kernels.size(), " kernels; a main kernel took ",
          fmt::format("{:.0f} ms on average, {:.0f} ms at most", main_ms / std::max(mains, 1), slowest_ms), ", two at a time");
}

TEST_CASE("a cover holds every combination that it was asked for") {
  test::CoverRequest request{{2, 3, 4, 3}, {}};
  request.add_all_pairs();
  request.interactions.push_back({0, 1, 2});
  const std::vector<test::Levels> cells = test::cover(request);
  CHECK(cells == test::cover(request));
  CHECK(cells.size() >= 24);
  CHECK(cells.size() < 2 * 3 * 4 * 3);
  for (const std::vector<int>& factors : request.interactions) {
    std::set<test::Levels> seen;
    std::size_t wanted = 1;
    for (const int factor : factors) wanted *= static_cast<std::size_t>(request.levels[static_cast<std::size_t>(factor)]);
    for (const test::Levels& cell : cells) {
      test::Levels combination;
      for (const int factor : factors) combination.push_back(cell[static_cast<std::size_t>(factor)]);
      seen.insert(combination);
    }
    CHECK(seen.size() == wanted);
  }
}

}  // namespace ordo
