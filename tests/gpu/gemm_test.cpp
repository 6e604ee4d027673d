// The GEMM alone: every form of the kernel over ragged shapes, element by element against fp64.
#include <fmt/format.h>

#include <algorithm>

#include "tests/gpu/cover.hpp"
#include "tests/gpu/gemm_problem.hpp"
#include "tests/gpu/gpu.hpp"

namespace ordo::test {
namespace {

struct Shape {
  std::int64_t m, n, k;
};

/// One tile, less, a little more; rows that end inside 16 bytes; one k block, less, more than the stages hold.
constexpr std::array kShapes{Shape{1, 1, 1},       Shape{7, 9, 3},       Shape{64, 64, 64},   Shape{127, 255, 65},
                             Shape{128, 256, 512}, Shape{129, 257, 130}, Shape{300, 100, 77}, Shape{513, 264, 200},
                             Shape{256, 8, 1000},  Shape{640, 640, 640}, Shape{1, 2000, 64},  Shape{2000, 1, 64},
                             Shape{777, 1111, 99}, Shape{1030, 520, 33}, Shape{2048, 130, 48}};

/// Every pair of levels of what is baked into a kernel.
std::vector<OverlapPlan> cover_plans() {
  constexpr std::array widths{64, 128, 192, 256};
  constexpr std::array buffers{1, 2, 4};
  constexpr std::array groups{1, 3, 8};
  CoverRequest request{.levels = {2, 2, 2, 2, 2, 4, 4, 2, 3, 2, 3}, .interactions = {}};
  request.add_all_pairs();
  std::vector<OverlapPlan> plans;
  for (const Levels& l : cover(std::move(request))) {
    OverlapPlan plan;
    plan.dtype = static_cast<DType>(l[0]);
    plan.a = static_cast<Storage>(l[1]);
    plan.b = static_cast<Storage>(l[2]);
    plan.out = static_cast<OutputType>(l[3]);
    plan.bias = l[4] == 1;
    plan.activation = static_cast<Activation>(l[5]);
    plan.tile_n = widths[static_cast<std::size_t>(l[6])];
    plan.cluster = l[7] + 1;
    plan.store_buffers = buffers[static_cast<std::size_t>(l[8])];
    plan.stages = l[9] == 0 ? 3 : 4;
    plan.group_m = groups[static_cast<std::size_t>(l[10])];
    while (!plan.validate() && plan.stages > 2) --plan.stages;
    if (!plan.validate()) plan.cluster = 1;  // B stored by rows and a tile that a cluster cannot share
    if (!plan.validate()) plan.b = Storage::column;
    plans.push_back(plan);
  }
  return plans;
}

/// Empty: as it should be.
Result<std::string> check_shape(Gpu& device, const HelperKernels& kernels, const OverlapGemmKernel& kernel, const Shape& shape,
                                std::uint64_t seed, double& worst) {
  const OverlapPlan& plan = kernel.plan();
  const OverlapGemm problem{.m = shape.m,
                            .n = shape.n,
                            .k = shape.k,
                            .dtype = plan.dtype,
                            .a = plan.a,
                            .b = plan.b,
                            .out = plan.out,
                            .bias = plan.bias,
                            .activation = plan.activation};
  const auto line = [](Storage storage, std::int64_t rows, std::int64_t columns) {
    return storage == Storage::row ? columns : rows;
  };
  const auto padding = static_cast<std::int64_t>(seed % 3) * 8;
  auto a = DeviceMatrix::create(line(plan.a, shape.m, shape.k), line(plan.a, shape.k, shape.m), 2, padding);
  auto b = DeviceMatrix::create(line(plan.b, shape.k, shape.n), line(plan.b, shape.n, shape.k), 2, padding);
  auto bias = DeviceMatrix::create(shape.n, 1, 2, 0);
  auto d = DeviceMatrix::create(shape.n, shape.m, plan.out == OutputType::fp32 ? 4 : 2, padding);
  for (const auto* made : {&a, &b, &bias, &d})
    if (!*made) return made->error();
  if (auto ok = a->fill_random(kernels, plan.dtype, seed * 3); !ok) return ok.error();
  if (auto ok = b->fill_random(kernels, plan.dtype, seed * 3 + 1); !ok) return ok.error();
  if (auto ok = bias->fill_random(kernels, plan.dtype, seed * 3 + 2); !ok) return ok.error();
  if (auto ok = d->poison(); !ok) return ok.error();
  if (auto ok = device.context.synchronize(); !ok) return ok.error();
  const OverlapGemmTensors tensors{a->view(), b->view(), d->view(), bias->view().data};
  if (auto ok = kernel.launch(problem, tensors, device.stream.get()); !ok) return ok.error();
  if (auto ok = device.stream.synchronize(); !ok) return ok.error();

  auto reference = GemmReference::create(kernels, plan.dtype, shape.m, shape.n);
  if (!reference) return reference.error();
  if (auto ok = reference->add(operand_of(*a, plan.a), operand_of(*b, plan.b), shape.k, 0, shape.m); !ok) return ok.error();
  auto deviation = reference->compare(problem, bias->view().data, d->view(), 0, shape.m);
  if (!deviation) return deviation.error();
  worst = std::max(worst, deviation->worst);
  if (deviation->beyond != 0)
    return fmt::format("{} of {} elements beyond the bound, worst {:.3g} times", deviation->beyond, shape.m * shape.n,
                       deviation->worst);
  auto touched = d->touched_padding(kernels);
  if (!touched) return touched.error();
  if (*touched != 0) return fmt::format("{} bytes outside D were written", *touched);
  return std::string();
}

}  // namespace

TEST_SUITE("gemm") {
  TEST_CASE("gemm: every form over ragged shapes against fp64") {
    Gpu* device = gpu();
    if (device == nullptr) return;
    const Deadline deadline("gemm cover", 240);
    const HelperKernels kernels = must(compile_helpers());
    const std::vector<OverlapPlan> plans = cover_plans();
    int failures = 0;
    const auto prepared = prepare_overlap(device->engine, plans, failures);
    CHECK(failures == 0);
    double worst = 0;
    int cells = 0;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (!prepared[i]) continue;
      for (std::size_t s = 0; s < kShapes.size(); ++s) {
        const std::uint64_t seed = i * kShapes.size() + s + 1;
        const auto failure = check_shape(*device, kernels, *prepared[i], kShapes[s], seed, worst);
        const std::string what = fmt::format("m={} n={} k={} {}", kShapes[s].m, kShapes[s].n, kShapes[s].k, to_text(plans[i]));
        if (!failure) FAIL(what << "\n" << failure.error().message);
        if (!failure->empty()) FAIL_CHECK(what << "\n" << *failure);
        ++cells;
      }
    }
    fmt::print("gemm: {} plans, {} cells, worst error {:.3f} of the bound\n", plans.size(), cells, worst);
    check_context(*device, "gemm cover");
  }

  TEST_CASE("gemm: the same bits from every tile, cluster and worker count") {
    Gpu* device = gpu();
    if (device == nullptr) return;
    const Deadline deadline("gemm bits", 60);
    const HelperKernels kernels = must(compile_helpers());
    const OverlapGemm problem{.m = 1000, .n = 1304, .k = 2056};
    DeviceMatrix a = must(DeviceMatrix::create(problem.k, problem.m, 2, 0)),
                 b = must(DeviceMatrix::create(problem.k, problem.n, 2, 0));
    must(a.fill_random(kernels, problem.dtype, 11));
    must(b.fill_random(kernels, problem.dtype, 12));
    std::vector<OverlapPlan> plans;
    for (const int tile_n : {64, 128, 192, 256})
      for (const int cluster : {1, 2})
        for (const int workers : {1, 7, 66})
          plans.push_back({.tile_n = tile_n, .cluster = cluster, .group_m = workers, .workers = workers});
    std::vector<unsigned char> first;
    int failures = 0;
    for (const auto& kernel : prepare_overlap(device->engine, plans, failures)) {
      if (!kernel) continue;
      DeviceMatrix d = must(DeviceMatrix::create(problem.n, problem.m, 2, 0));
      must(d.poison());
      must(device->context.synchronize());
      must(kernel->launch(problem, {a.view(), b.view(), d.view()}, device->stream.get()));
      must(device->stream.synchronize());
      std::vector<unsigned char> bytes(d.buffer().bytes());
      must(d.buffer().copy_to_host(bytes.data(), bytes.size()));
      if (first.empty()) first = bytes;
      CHECK_MESSAGE(bytes == first, to_text(kernel->plan()));
    }
    CHECK(failures == 0);
  }

  TEST_CASE("gemm: bad arguments are refused before anything runs") {
    Gpu* device = gpu();
    if (device == nullptr) return;
    const OverlapGemm problem{.m = 64, .n = 72, .k = 80, .bias = true};
    const OverlapGemmKernel kernel = must(device->engine.prepare(OverlapPlan{.bias = true}));
    DeviceBuffer memory = must(DeviceBuffer::allocate(1 << 20));
    void* data = memory.data();
    const OverlapGemmTensors good{{data, 80}, {data, 80}, {data, 72}, data};
    const auto refused = [&](const OverlapGemm& asked, const OverlapGemmTensors& tensors, std::string_view part) {
      const auto result = kernel.launch(asked, tensors, device->stream.get());
      REQUIRE(!result);
      CHECK_MESSAGE(result.error().message.find(part) != std::string::npos, result.error().message);
    };
    OverlapGemmTensors bad = good;
    bad.a.stride = 84;
    refused(problem, bad, "matrix a: stride 84");
    bad = good;
    bad.b.data = static_cast<char*>(data) + 8;
    refused(problem, bad, "matrix b: pointer");
    bad = good;
    bad.d.stride = 64;
    refused(problem, bad, "matrix d: stride 64");
    bad = good;
    bad.bias = nullptr;
    refused(problem, bad, "bias");
    OverlapGemm other = problem;
    other.dtype = DType::fp16;
    refused(other, good, "dtype is fp16 and the plan's bf16");
    must(kernel.launch(problem, good, device->stream.get()));
    must(device->stream.synchronize());
  }
}

}  // namespace ordo::test
