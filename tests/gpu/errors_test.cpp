// What launch() refuses: a typed error before anything is enqueued, and the outputs stay as they were.
#include <fmt/format.h>

#include <functional>
#include <limits>
#include <thread>

#include "tests/gpu/gpu.hpp"
#include "tests/gpu/masks.hpp"
#include "tests/gpu/plans.hpp"

namespace ordo::test {
namespace {

constexpr AttentionBackward kProblem{
    .batch = 2, .seqlen_q = 130, .seqlen_k = 200, .heads = 4, .kv_heads = 2, .head_dim = 128, .mask = Mask::causal};

/// A launch that works, for tests to spoil.
struct Call {
  AttentionBackward problem;
  AttentionBackwardTensors tensors;
  void* workspace;
  std::size_t workspace_bytes;
};

struct Spoiled {
  std::string what;
  ErrorCode code;
  std::string message;  ///< part of it
  std::function<void(Call&)> spoil;
};

void* moved(void* pointer, std::ptrdiff_t bytes) { return static_cast<char*>(pointer) + bytes; }

std::vector<Spoiled> spoiled_calls() {
  constexpr ErrorCode kArgument = ErrorCode::invalid_argument;
  std::vector<Spoiled> calls;
  const auto add_tensor = [&](const char* name, auto member) {
    const auto tensor = fmt::format("tensor {}", name);
    calls.push_back({fmt::format("{} null", name), kArgument, tensor, [=](Call& c) { (c.tensors.*member).data = nullptr; }});
    calls.push_back({fmt::format("{} misaligned", name), kArgument, tensor,
                     [=](Call& c) { (c.tensors.*member).data = moved((c.tensors.*member).data, 2); }});
    calls.push_back({fmt::format("{} seqlen stride no multiple of 8", name), kArgument, tensor,
                     [=](Call& c) { (c.tensors.*member).seqlen_stride += 4; }});
    calls.push_back(
        {fmt::format("{} head stride 0", name), kArgument, tensor, [=](Call& c) { (c.tensors.*member).head_stride = 0; }});
    calls.push_back({fmt::format("{} batch stride negative", name), kArgument, tensor,
                     [=](Call& c) { (c.tensors.*member).batch_stride = -(c.tensors.*member).batch_stride; }});
    calls.push_back({fmt::format("{} batch stride 2^40", name), kArgument, tensor,
                     [=](Call& c) { (c.tensors.*member).batch_stride = std::int64_t{1} << 40; }});
  };
  using T = AttentionBackwardTensors;
  add_tensor("q", &T::q);
  add_tensor("k", &T::k);
  add_tensor("v", &T::v);
  add_tensor("o", &T::o);
  add_tensor("do", &T::d_o);
  add_tensor("dq", &T::dq);
  add_tensor("dk", &T::dk);
  add_tensor("dv", &T::dv);
  const auto add = [&](const char* what, ErrorCode code, const char* message, std::function<void(Call&)> spoil) {
    calls.push_back({what, code, message, std::move(spoil)});
  };
  add("lse null", kArgument, "lse", [](Call& c) { c.tensors.lse = nullptr; });
  add("lse misaligned", kArgument, "lse",
      [](Call& c) { c.tensors.lse = reinterpret_cast<const float*>(reinterpret_cast<const char*>(c.tensors.lse) + 2); });
  add("scale 0", kArgument, "scale", [](Call& c) { c.tensors.scale = 0; });
  add("scale negative", kArgument, "scale", [](Call& c) { c.tensors.scale = -1; });
  add("scale NaN", kArgument, "scale", [](Call& c) { c.tensors.scale = std::numeric_limits<float>::quiet_NaN(); });
  add("scale infinite", kArgument, "scale", [](Call& c) { c.tensors.scale = std::numeric_limits<float>::infinity(); });
  add("workspace null", kArgument, "workspace", [](Call& c) { c.workspace = nullptr; });
  add("workspace misaligned", kArgument, "workspace", [](Call& c) { c.workspace = moved(c.workspace, 64); });
  add("workspace too small", kArgument, "workspace", [](Call& c) { --c.workspace_bytes; });
  add("other dtype", ErrorCode::invalid_plan, "dtype", [](Call& c) { c.problem.dtype = DType::fp16; });
  add("other head_dim", ErrorCode::invalid_plan, "head_dim", [](Call& c) { c.problem.head_dim = 64; });
  add("other mask", ErrorCode::invalid_plan, "mask", [](Call& c) { c.problem.mask = Mask::full; });
  add("other group", ErrorCode::invalid_plan, "heads", [](Call& c) { c.problem.kv_heads = 4; });
  add("seqlen 0", ErrorCode::invalid_problem, "seqlen_q", [](Call& c) { c.problem.seqlen_q = 0; });
  add("batch negative", ErrorCode::invalid_problem, "batch", [](Call& c) { c.problem.batch = -1; });
  add("heads not divisible", ErrorCode::invalid_problem, "heads", [](Call& c) { c.problem.heads = 5; });
  return calls;
}

/// Whether every byte of the outputs is still poison.
bool untouched(const GpuProblem& problem) {
  for (int i = 0; i < 3; ++i) {
    std::vector<unsigned char> bytes(problem.output(i).bytes());
    must(problem.output(i).copy_to_host(bytes.data(), bytes.size()));
    for (const unsigned char byte : bytes)
      if (byte != 0xff) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a bad launch is refused and enqueues nothing") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  const Deadline deadline("refused launches", 60);
  const Plan plan = must(plan_with(kProblem, device->target(), Schedule::descending, Accumulate::ordered, 2));
  const auto kernel = must(device->engine.prepare(plan));
  auto problem = must(GpuProblem::create(device->reference, kProblem, 15, false));
  auto run = must(Run::create(*device, problem, kernel));
  must(run(problem, 0));  // loaded: what follows is refused for its own sake
  must(problem.poison(device->stream.get()));
  for (const Spoiled& spoiled : spoiled_calls()) {
    Call call{kProblem, problem.tensors(), run.workspace().data(), run.workspace().bytes()};
    spoiled.spoil(call);
    const auto result = kernel.launch(call.problem, call.tensors, call.workspace, call.workspace_bytes, device->stream.get());
    CHECK_MESSAGE(!result, spoiled.what, " was accepted");
    if (result) continue;
    CHECK_MESSAGE(result.error().code == spoiled.code, spoiled.what, ": ", to_string(result.error().code), ": ",
                  result.error().message);
    CHECK_MESSAGE(result.error().message.find(spoiled.message) != std::string::npos, spoiled.what, ": ", result.error().message);
  }
  must(device->stream.synchronize());
  CHECK(untouched(problem));
}

TEST_CASE("a static shape is refused for any other") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  const Deadline deadline("static shape", 60);
  const Plan plan = must(plan_with(kProblem, device->target(), Schedule::ascending, Accumulate::ordered, 1, true));
  const auto kernel = must(device->engine.prepare(plan));
  auto problem = must(GpuProblem::create(device->reference, kProblem, 15, false));
  auto run = must(Run::create(*device, problem, kernel));
  for (const auto change :
       {+[](AttentionBackward& p) { p.seqlen_q += 1; }, +[](AttentionBackward& p) { p.seqlen_k -= 1; },
        +[](AttentionBackward& p) { p.batch = 1; }, +[](AttentionBackward& p) { p.heads = p.kv_heads = 2; }}) {
    AttentionBackward other = kProblem;
    change(other);
    const auto result =
        kernel.launch(other, problem.tensors(), run.workspace().data(), run.workspace().bytes(), device->stream.get());
    REQUIRE_FALSE(result);
    CHECK(result.error().code == ErrorCode::invalid_plan);
    CHECK_FALSE(kernel.workspace_bytes(other));
  }
}

TEST_CASE("a thread without a context, and a first launch inside a capture, are refused") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  const Deadline deadline("no context; first launch inside a capture", 60);
  const Plan plan = must(plan_with(kProblem, device->target(), Schedule::ascending, Accumulate::exact, 2));
  // An engine of its own, so that the kernels are not loaded yet.
  Engine engine = must(Engine::create({.cache_path = {}, .memory_cache_only = true, .warn = {}, .target = device->target()}));
  const auto kernel = must(engine.prepare(plan));
  auto problem = must(GpuProblem::create(device->reference, kProblem, 16, false));
  auto run = must(Run::create(*device, problem, kernel));
  must(device->context.synchronize());
  const auto launch = [&] {
    return kernel.launch(kProblem, problem.tensors(), run.workspace().data(), run.workspace().bytes(), device->stream.get());
  };

  Result<void> elsewhere;
  std::jthread([&] { elsewhere = launch(); }).join();
  REQUIRE_FALSE(elsewhere);
  CHECK(elsewhere.error().code == ErrorCode::invalid_argument);

  const Driver& d = *device->driver;
  CUstream stream = device->stream.get();
  CUgraph graph = nullptr;
  must(d.check(d.streamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin capture"));
  const auto captured = launch();
  const auto ended = d.check(d.streamEndCapture(stream, &graph), "end capture");
  REQUIRE_FALSE(captured);
  CHECK(captured.error().code == ErrorCode::not_prepared);
  CHECK(captured.error().message.find(to_text(kProblem)) != std::string::npos);
  CHECK(ended.ok());  // the refusal left the capture whole
  if (graph != nullptr) d.graphDestroy(graph);

  must(run(problem, 0));  // and the kernel works afterwards
}

TEST_CASE("a prepared list is loaded: its first launch may be captured, and a sealed engine launches nothing else") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  const Deadline deadline("prepared, sealed, captured", 60);
  Engine engine = must(Engine::create({.cache_path = {}, .memory_cache_only = true, .warn = {}, .target = device->target()}));
  AttentionBackward masked = kProblem;  // its launches read a table
  masked.mask = must(parse_mask(kMaskTexts[0]));
  ShapeList list;
  for (const AttentionBackward& p : {kProblem, masked}) list.problems.push_back({p, {}});
  const PrepareReport report = must(engine.prepare(list));
  CHECK(report.plans == 2);
  CHECK(report.loaded == 2);
  engine.seal();
  const Driver& d = *device->driver;
  CUstream stream = device->stream.get();
  for (const AttentionBackward& p : {kProblem, masked}) {
    const auto kernel = must(engine.prepare(p));
    auto problem = must(GpuProblem::create(device->reference, p, 17, false));
    auto run = must(Run::create(*device, problem, kernel));
    must(device->context.synchronize());
    CUgraph graph = nullptr;
    must(d.check(d.streamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin capture"));
    const auto captured = kernel.launch(p, problem.tensors(), run.workspace().data(), run.workspace().bytes(), stream);
    must(d.check(d.streamEndCapture(stream, &graph), "end capture"));
    CHECK_MESSAGE(captured, captured.error().message);
    REQUIRE(graph != nullptr);
    d.graphDestroy(graph);
  }

  AttentionBackward other = kProblem;
  other.dtype = kProblem.dtype == DType::bf16 ? DType::fp16 : DType::bf16;
  const auto missing = engine.prepare(other);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == ErrorCode::not_prepared);
}

}  // namespace ordo::test
