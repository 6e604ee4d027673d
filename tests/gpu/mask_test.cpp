// Masks by expression on the GPU: gradients against fp64 over a cover, and the lowering to CUDA text against the interpreter.
#include <fmt/format.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "codegen/expression/cuda.hpp"
#include "codegen/expression/parse.hpp"
#include "codegen/generate/expand.hpp"
#include "runtime/compiler.hpp"
#include "tests/gpu/cover.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/gpu/masks.hpp"
#include "tests/gpu/plans.hpp"

namespace ordo::test {
namespace {

constexpr std::array<std::int64_t, 6> kLengths{1, 100, 129, 512, 1000, 2048};

struct MaskCell {
  AttentionBackward problem;
  Plan plan;
};

/// Every pair of mask, schedule, accumulation, head_dim and cluster, dtype, heads, lengths and static shape.
std::vector<MaskCell> mask_cells(const Target& target, std::vector<std::string>& errors) {
  enum Factor { mask, schedule, accumulate, form, dtype, heads, seqlen_q, seqlen_k, static_shape, few_workers };
  const int lengths = static_cast<int>(kLengths.size());
  CoverRequest request{{static_cast<int>(kMaskTexts.size()), 2, 3, 3, 2, 3, lengths, lengths, 2, 2}, {}};
  request.add_all_pairs();
  request.interactions.push_back({mask, schedule, form});
  std::vector<MaskCell> cells;
  for (const Levels& level : cover(request)) {
    constexpr std::array<std::array<std::int64_t, 3>, 3> kHeads{{{2, 2, 2}, {1, 4, 2}, {2, 3, 1}}};  // batch, heads, kv
    const auto [batch, query_heads, kv_heads] = kHeads[static_cast<std::size_t>(level[heads])];
    AttentionBackward p{.batch = batch,
                        .seqlen_q = kLengths[static_cast<std::size_t>(level[seqlen_q])],
                        .seqlen_k = kLengths[static_cast<std::size_t>(level[seqlen_k])],
                        .heads = query_heads,
                        .kv_heads = kv_heads,
                        .head_dim = level[form] == 0 ? 64 : 128,
                        .mask = *parse_mask(kMaskTexts[static_cast<std::size_t>(level[mask])]),
                        .dtype = level[dtype] == 0 ? DType::bf16 : DType::fp16};
    Target where = target;
    if (level[few_workers] == 1) where.sm_count = 6;
    const Schedule how = level[schedule] == 0 ? Schedule::descending : Schedule::ascending;
    auto plan =
        plan_with(p, where, how, static_cast<Accumulate>(level[accumulate]), level[form] == 2 ? 2 : 1, level[static_shape] == 1);
    if (plan)
      cells.push_back({p, *std::move(plan)});
    else
      errors.push_back(fmt::format("no plan for {}: {}", to_text(p), plan.error().message));
  }
  return cells;
}

std::string check_cell(Gpu& device, const MaskCell& cell, const AttentionBackwardKernel& kernel, std::uint64_t seed) {
  auto problem = GpuProblem::create(device.reference, cell.problem, seed, true);
  if (!problem) return problem.error().message;
  auto run = Run::create(device, *problem, kernel);
  if (!run) return run.error().message;
  if (auto ran = (*run)(*problem, 0); !ran) return ran.error().message;
  auto deviations = problem->compare();
  if (!deviations) return deviations.error().message;
  std::string failure;
  constexpr std::array kOutputs{"dq", "dk", "dv"};
  for (std::size_t i = 0; i < kOutputs.size(); ++i) {
    const Deviation& d = (*deviations)[i];
    if (!d.within())
      failure +=
          fmt::format("{}: error {:.2e}, allowed {:.2e}, {:g} not finite; ", kOutputs[i], d.relative, d.allowed, d.non_finite);
  }
  if (!failure.empty() || cell.plan.accumulate == Accumulate::atomic) return failure;
  if (auto kept = problem->keep_bits(); !kept) return kept.error().message;
  if (auto ran = (*run)(*problem, seed + 1); !ran) return ran.error().message;
  const auto differing = problem->differing_words();
  if (!differing) return differing.error().message;
  return *differing == 0 ? "" : fmt::format("a repeat differs in {} words", *differing);
}

}  // namespace

TEST_CASE("masks by expression: gradients match fp64 and repeat their bits") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  std::vector<std::string> errors;
  const std::vector<MaskCell> cells = mask_cells(device->target(), errors);
  for (const std::string& error : errors) fmt::print("{}\n", error);
  CHECK(errors.empty());
  std::vector<Plan> plans;
  for (const MaskCell& cell : cells) plans.push_back(cell.plan);
  int failures = 0;
  Kernels kernels;
  {
    const Deadline deadline("compiling the masks", 300);
    kernels = prepare_all(device->engine, plans, failures);
  }
  Stopwatch time;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const auto kernel = kernels.find(to_text(cells[i].plan));
    if (kernel == kernels.end()) continue;  // counted by prepare_all
    const std::string text = describe(cells[i].problem, cells[i].plan);
    const Deadline deadline(text);
    const std::string failure = check_cell(*device, cells[i], kernel->second, i);
    if (failure.empty()) continue;
    if (++failures <= 25) fmt::print("FAILED {}\n  {}\n", text, failure);
    check_context(*device, text);
  }
  fmt::print("masks: {} cells, {} failed, {:.1f} s\n", cells.size(), failures, time.seconds());
  CHECK(failures == 0);
}

TEST_CASE("precompile the masks" * doctest::skip()) {
  std::vector<std::string> errors;
  std::vector<Plan> plans;
  const Target target = must(parse_target("h200"));
  for (const MaskCell& cell : mask_cells(target, errors)) plans.push_back(cell.plan);
  CHECK(errors.empty());
  precompile(target, plans);
}

TEST_CASE("masks by expression: the expression of causal gives causal's bits") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  for (const std::int64_t head_dim : {64, 128}) {
    AttentionBackward causal{
        .batch = 2, .seqlen_q = 700, .seqlen_k = 900, .heads = 4, .kv_heads = 2, .head_dim = head_dim, .mask = Mask::causal};
    AttentionBackward same = causal;
    same.mask = *parse_mask("expr:k<=q+(seqlen_k-seqlen_q)");
    auto problem = must(GpuProblem::create(device->reference, causal, 5, false));
    const auto run = [&](const AttentionBackward& p) {
      const Plan plan = must(plan_with(p, device->target(), Schedule::descending, Accumulate::ordered, 1));
      const AttentionBackwardKernel kernel = must(device->engine.prepare(plan));
      auto workspace = must(DeviceBuffer::allocate(must(kernel.workspace_bytes(p))));
      must(problem.poison());
      must(kernel.launch(p, problem.tensors(), workspace.data(), workspace.bytes(), nullptr));
      return must(hash_outputs(problem));
    };
    CHECK(run(causal) == run(same));
  }
}

TEST_CASE("expressions: CUDA text on the GPU gives the interpreter's values") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  constexpr std::array kTexts{
      "k<=q&&q-k<1024",
      "w=4;s=1024;k<w||k<=q&&q-k<s",
      "abs(q-k)%7==min(q,k)/3||max(q-500,-k)<-2",
      "-7/(1+abs(q%5))+(k-q)%9<=-1?head==1:batch!=2",
      "float(q)*0.3-float(k)/7.0<1e1&&!(float(q-k)/float(k)==0.0/0.0)",
      "min(float(q)/float(k-40),-abs(0.1*float(k)))>-3.3e0==(q*k%11<5)",
      "x=float(q)*0.1;y=x*x-float(k);y*y<x||max(y,x)<2.5",
  };
  std::string text = expand_template("expression/functions.cuh", "", "");
  std::vector<expression::Expression> expressions;
  for (const char* source : kTexts) {
    expressions.push_back(must(expression::parse(source, expression::Scope::mask, expression::Type::boolean)));
    text += fmt::format("__device__ bool f{}(int q, int k, int head, int batch, int seqlen_q, int seqlen_k) {{ return {}; }}\n",
                        expressions.size() - 1, expression::to_cuda(expressions.back()));
  }
  text +=
      "extern \"C\" __global__ void evaluate(const int* v, unsigned char* out, int count) {\n"
      "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i >= count) return;\n  v += 6 * i;\n";
  for (std::size_t f = 0; f < expressions.size(); ++f)
    text += fmt::format("  out[{} * count + i] = f{}(v[0], v[1], v[2], v[3], v[4], v[5]);\n", f, f);
  text += "}\n";
  const Compiler compiler = must(Compiler::open());
  const Cubin cubin = must(compiler.compile({"evaluate", "evaluate", text, device->target().arch, 128, 0}));

  constexpr int kCount = 20000;
  std::mt19937 random(4);
  std::vector<int> values(std::size_t{6} * kCount);
  const std::array<int, 6> limits{1024, 2048, 8, 4, 1, 1};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(random() % static_cast<unsigned>(limits[i % 6]));
  auto in = must(DeviceBuffer::allocate(values.size() * 4)), out = must(DeviceBuffer::allocate(kTexts.size() * kCount));
  must(in.copy_from_host(values.data(), in.bytes()));
  const Driver& driver = *device->driver;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  must(driver.check(driver.libraryLoadData(&library, cubin.bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "load"));
  must(driver.check(driver.libraryGetKernel(&kernel, library, "evaluate"), "evaluate"));
  CUfunction function = nullptr;
  must(driver.check(driver.kernelGetFunction(&function, kernel), "evaluate"));
  void *v = in.data(), *o = out.data();
  int count = kCount;
  std::array<void*, 3> arguments{&v, &o, &count};
  CUlaunchConfig config{};
  config.gridDimX = (kCount + 127) / 128;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 128;
  must(driver.check(driver.launchKernelEx(&config, function, arguments.data(), nullptr), "launch"));
  std::vector<unsigned char> got(out.bytes());
  must(out.copy_to_host(got.data(), got.size()));
  for (std::size_t f = 0; f < expressions.size(); ++f) {
    int wrong = 0, ones = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      expression::Values x{};
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(6 * i), 6, x.begin());
      const int expected = expression::evaluate(expressions[f], x);
      ones += expected;
      wrong += got[f * kCount + i] != expected ? 1 : 0;
    }
    CHECK_MESSAGE(wrong == 0, kTexts[f]);
    CHECK_MESSAGE(ones > 0, kTexts[f]);
    CHECK_MESSAGE(ones < kCount, kTexts[f]);
  }
}

}  // namespace ordo::test
