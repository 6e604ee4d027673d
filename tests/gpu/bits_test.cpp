// `ordered` and `exact` give the same bits whatever runs beside them, in every process and from a graph, and never deadlock.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tests/gpu/cover.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/gpu/plans.hpp"

namespace ordo::test {
namespace {

constexpr int kRepeats = 100;

struct Case {
  AttentionBackward problem;
  Plan plan;
};

/// Few heads: then KV tiles of one head run at the same time and races on dQ show.
std::vector<AttentionBackward> few_heads(Mask mask) {
  return {{.batch = 1, .seqlen_q = 2048, .seqlen_k = 2048, .heads = 1, .kv_heads = 1, .head_dim = 128, .mask = mask},
          {.batch = 1,
           .seqlen_q = 1000,
           .seqlen_k = 1111,
           .heads = 4,
           .kv_heads = 1,
           .head_dim = 128,
           .mask = mask,
           .dtype = DType::fp16},
          {.batch = 1, .seqlen_q = 4096, .seqlen_k = 4096, .heads = 2, .kv_heads = 2, .head_dim = 64, .mask = mask}};
}

/// Every schedule of `ordered`, and two of `exact`, in every cluster size.
std::vector<Case> bit_cases(const Target& target) {
  std::vector<Case> cases;
  for (const Mask mask : {Mask::full, Mask::causal})
    for (const AttentionBackward& problem : few_heads(mask))
      for (const Accumulate accumulate : {Accumulate::ordered, Accumulate::exact})
        for (const Plan& plan : must(all_plans(problem, target, accumulate))) {
          const bool usual =
              plan.schedule == Schedule::ascending || plan.schedule == Schedule::shift || plan.schedule == Schedule::alternate;
          if (accumulate == Accumulate::exact && !usual) continue;
          cases.push_back({problem, plan});
        }
  return cases;
}

Kernels prepare_cases(Gpu& device, const std::vector<Case>& cases, const char* name, int& failures) {
  std::vector<Plan> plans;
  for (const Case& c : cases) plans.push_back(c.plan);
  const Stopwatch time;
  const Deadline deadline(fmt::format("compiling the plans of: {}", name), 200);
  Kernels kernels = prepare_all(device.engine, plans, failures);
  fmt::print("{}: {} plans prepared in {:.1f} s\n", name, kernels.size(), time.seconds());
  return kernels;
}

/// Work beside the kernel under test that changes from repeat to repeat: none, on some SMs, or on all of them.
class Disturber {
 public:
  explicit Disturber(Gpu& device) : device_(device) {}

  Result<void> step() {
    constexpr std::array<unsigned, 7> blocks{1, 7, 33, 66, 100, 131, 264};
    constexpr std::array<unsigned, 4> shared{1024, 32 * 1024, 100 * 1024, 200 * 1024};
    for (const Stream& stream : device_.others) {
      if (random(3) == 0) continue;
      const Disturbance work{.blocks = blocks[random(blocks.size())],
                             .threads = 64u << random(3),
                             .shared_bytes = shared[random(shared.size())],
                             .clocks = 5'000 + static_cast<long long>(random(300'000))};
      if (auto ok = device_.disturb(work, stream); !ok) return ok;
    }
    return {};
  }

 private:
  std::size_t random(std::size_t below) {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<std::size_t>(state_ >> 33) % below;
  }
  Gpu& device_;
  std::uint64_t state_ = 1;
};

/// Words that differ from the first run over kRepeats runs beside a disturber.
Result<std::uint64_t> repeat_disturbed(Gpu& device, const Case& c, const AttentionBackwardKernel& kernel) {
  auto problem = GpuProblem::create(device.reference, c.problem, 7, false);
  if (!problem) return problem.error();
  auto run = Run::create(device, *problem, kernel);
  if (!run) return run.error();
  if (auto ran = (*run)(*problem, 0); !ran) return ran.error();
  if (auto kept = problem->keep_bits(); !kept) return kept.error();
  auto counter = DeviceBuffer::allocate(8);
  if (!counter) return counter.error();
  std::uint64_t differing = 0;
  if (auto ok = counter->copy_from_host(&differing, 8); !ok) return ok.error();
  Disturber disturber(device);
  for (std::uint64_t i = 0; i < kRepeats; ++i) {
    if (auto ok = disturber.step(); !ok) return ok.error();
    if (auto ok = run->enqueue(*problem, i % 5, device.stream); !ok) return ok.error();
    if (auto ok = problem->add_differing_words(*counter, device.stream.get()); !ok) return ok.error();
  }
  if (auto ok = device.context.synchronize(); !ok) return ok.error();
  if (auto ok = counter->copy_to_host(&differing, 8); !ok) return ok.error();
  return differing;
}

/// Runs `check` on every case that has a kernel; it returns what went wrong, or nothing. Returns how many failed.
template <class Check>
int for_each_case(Gpu& device, const std::vector<Case>& cases, const Kernels& kernels, Check check) {
  int failures = 0;
  for (const Case& c : cases) {
    const auto kernel = kernels.find(to_text(c.plan));
    if (kernel == kernels.end()) continue;  // counted by prepare_all
    const std::string text = describe(c.problem, c.plan);
    const Deadline deadline(text);
    const std::string failure = check(c, kernel->second);
    if (failure.empty()) continue;
    ++failures;
    fmt::print("FAILED {}\n  {}\n", text, failure);
    check_context(device, text);
  }
  return failures;
}

std::string differing_message(const Result<std::uint64_t>& differing) {
  if (!differing) return differing.error().message;
  return *differing == 0 ? "" : fmt::format("{} words differ", *differing);
}

/// The bits with most SMs taken by long work, against those of an idle device.
Result<std::uint64_t> run_on_few_sms(Gpu& device, const Case& c, const AttentionBackwardKernel& kernel) {
  auto problem = GpuProblem::create(device.reference, c.problem, 8, false);
  if (!problem) return problem.error();
  auto run = Run::create(device, *problem, kernel);
  if (!run) return run.error();
  if (auto ran = (*run)(*problem, 0); !ran) return ran.error();
  if (auto kept = problem->keep_bits(); !kept) return kept.error();
  std::uint64_t differing = 0;
  const auto sms = static_cast<unsigned>(device.target().sm_count);
  for (const unsigned busy : {sms * 10 / 11, sms - 1, sms}) {
    const Disturbance work{.blocks = busy, .threads = 128, .shared_bytes = 200 * 1024, .clocks = 50'000'000};  // ~30 ms
    if (auto ok = device.disturb(work, device.others[0]); !ok) return ok.error();
    if (auto ok = run->enqueue(*problem, busy, device.stream); !ok) return ok.error();
    // And the other way round: work that arrives while the kernel runs.
    if (auto ok =
            device.disturb({.blocks = busy, .threads = 128, .shared_bytes = 200 * 1024, .clocks = 1'000'000}, device.others[1]);
        !ok)
      return ok.error();
    if (auto ok = device.context.synchronize(); !ok) return ok.error();
    auto words = problem->differing_words();
    if (!words) return words;
    differing += *words;
  }
  return differing;
}

}  // namespace

TEST_CASE("reports 55, 56 and 65: same bits over repeats beside other work, whatever the workspace held") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  const std::vector<Case> cases = bit_cases(device->target());
  int failures = 0;
  const Kernels kernels = prepare_cases(*device, cases, "repeats", failures);
  const Stopwatch time;
  failures += for_each_case(*device, cases, kernels, [&](const Case& c, const AttentionBackwardKernel& kernel) {
    return differing_message(repeat_disturbed(*device, c, kernel));
  });
  fmt::print("repeats: {} cases x {} beside other work, {} failed, {:.1f} s\n", cases.size(), kRepeats, failures, time.seconds());
  CHECK(failures == 0);
}

TEST_CASE("no deadlock and the same bits with most SMs taken") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  std::vector<Case> cases = bit_cases(device->target());  // prepared already
  std::erase_if(cases, [](const Case& c) { return c.plan.accumulate != Accumulate::ordered; });
  int failures = 0;
  const Kernels kernels = prepare_cases(*device, cases, "most SMs taken", failures);
  const Stopwatch time;
  failures += for_each_case(*device, cases, kernels, [&](const Case& c, const AttentionBackwardKernel& kernel) {
    return differing_message(run_on_few_sms(*device, c, kernel));
  });
  fmt::print("most SMs taken: {} cases, {} failed, {:.1f} s\n", cases.size(), failures, time.seconds());
  CHECK(failures == 0);
}

namespace {

/// One of each kind, small.
std::vector<Case> one_of_each(const Target& target) {
  std::vector<Case> cases;
  const auto add = [&](Mask mask, int head_dim, Schedule schedule, Accumulate accumulate, int cluster) {
    const AttentionBackward problem{
        .batch = 2, .seqlen_q = 700, .seqlen_k = 901, .heads = 4, .kv_heads = 2, .head_dim = head_dim, .mask = mask};
    cases.push_back({problem, must(plan_with(problem, target, schedule, accumulate, cluster))});
  };
  add(Mask::full, 128, Schedule::ascending, Accumulate::ordered, 2);
  add(Mask::full, 128, Schedule::shift, Accumulate::ordered, 1);
  add(Mask::causal, 128, Schedule::alternate, Accumulate::ordered, 2);
  add(Mask::causal, 128, Schedule::symmetric_shift, Accumulate::ordered, 2);
  add(Mask::causal, 64, Schedule::arrival, Accumulate::ordered, 1);
  add(Mask::full, 128, Schedule::arrival, Accumulate::ordered, 2);
  add(Mask::causal, 64, Schedule::descending, Accumulate::ordered, 1);
  add(Mask::full, 64, Schedule::ascending, Accumulate::exact, 1);
  add(Mask::causal, 128, Schedule::ascending, Accumulate::exact, 2);
  // `alternate` with more query heads a KV head than two: the first walked upwards, the others downwards together; each walk a
  // group, so that both ways occur.
  for (const int head_dim : {128, 64}) {
    for (const int kv_heads : {2, 1}) {
      const AttentionBackward problem{.batch = 2,
                                      .seqlen_q = 700,
                                      .seqlen_k = 901,
                                      .heads = 8,
                                      .kv_heads = kv_heads,
                                      .head_dim = head_dim,
                                      .mask = Mask::causal};
      Plan plan = must(plan_with(problem, target, Schedule::alternate, Accumulate::ordered, head_dim / 64));
      plan.head_group = 1;
      cases.push_back({problem, must(checked(problem, plan))});
    }
  }
  return cases;
}

Result<std::uint64_t> hash_of(Gpu& device, const Case& c, const AttentionBackwardKernel& kernel, std::uint64_t noise) {
  auto problem = GpuProblem::create(device.reference, c.problem, 9, false);
  if (!problem) return problem.error();
  auto run = Run::create(device, *problem, kernel);
  if (!run) return run.error();
  if (auto ran = (*run)(*problem, noise); !ran) return ran.error();
  return hash_outputs(*problem);
}

constexpr const char* kHashes = "hashes:";

/// "hashes: ..." of one_of_each(), on one line.
std::string hash_line(Gpu& device, std::uint64_t noise, int& failures) {
  const std::vector<Case> cases = one_of_each(device.target());
  const Kernels kernels = prepare_cases(device, cases, "processes", failures);
  std::string line = kHashes;
  failures += for_each_case(device, cases, kernels, [&](const Case& c, const AttentionBackwardKernel& kernel) -> std::string {
    auto hash = hash_of(device, c, kernel, noise);
    if (!hash) return hash.error().message;
    line += fmt::format(" {:016x}", *hash);
    return "";
  });
  return line;
}

std::string output_of(const std::string& command) {
  std::string output;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 4096> buffer{};
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) output.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  return status == 0 ? output : fmt::format("{}(status {})\n", output, status);
}

std::string line_from(const std::string& text, std::string_view start) {
  const std::size_t at = text.find(start);
  return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
}

}  // namespace

// What "same bits in other processes" runs, in a process of its own.
TEST_CASE("child of the processes test" * doctest::skip()) {
  Gpu* device = gpu();
  if (device == nullptr) return;
  int failures = 0;
  fmt::print("{}\n", hash_line(*device, static_cast<std::uint64_t>(::getpid()), failures));
  CHECK(failures == 0);
}

TEST_CASE("same bits in other processes") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  int failures = 0;
  const std::string own = hash_line(*device, 1, failures);
  CHECK(failures == 0);
  // The first child compiles its kernels anew, the second takes them from the cache that the first filled.
  const std::filesystem::path cache = std::filesystem::temp_directory_path() / fmt::format("ordo_gpu_tests_{}.db", ::getpid());
  const std::string command = fmt::format("ORDO_CACHE='{}' '{}' --no-skip --test-case='child of the processes test' 2>&1",
                                          cache.string(), std::filesystem::read_symlink("/proc/self/exe").string());
  for (const char* which : {"that compiles", "that takes its kernels from the cache"}) {
    const Deadline deadline(fmt::format("a child process {}", which), 90);
    const std::string output = output_of(command);
    CHECK_MESSAGE(line_from(output, kHashes) == own, "child ", which, ":\n", output);
  }
  for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(cache.string() + suffix);
}

// The state of the schedule in the consumers changes who works out a turn, and nothing else. Its kernels may spill.
TEST_CASE("the same bits with the schedule's state in the consumers") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  EngineOptions options;
  options.memory_cache_only = true;
  options.allow_spills = true;
  options.target = device->target();
  Engine spilling = must(Engine::create(std::move(options)));
  std::vector<Case> cases = one_of_each(device->target());
  int failures = 0;
  const Kernels kernels = prepare_cases(*device, cases, "state in the producer", failures);
  failures += for_each_case(*device, cases, kernels, [&](const Case& c, const AttentionBackwardKernel& kernel) -> std::string {
    Plan other = c.plan;
    other.schedule_state = ScheduleState::consumer;
    const auto prepared = spilling.prepare(other);
    if (!prepared) return prepared.error().message;
    const auto expected = hash_of(*device, c, kernel, 1);
    if (!expected) return expected.error().message;
    for (std::uint64_t noise = 0; noise < 10; ++noise) {
      const auto hash = hash_of(*device, c, *prepared, noise);
      if (!hash) return hash.error().message;
      if (*hash != *expected) return fmt::format("other bits in run {}", noise);
    }
    return "";
  });
  CHECK(failures == 0);
}

namespace {

struct Graph {
  const Driver& driver;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  ~Graph() {
    if (exec != nullptr) driver.graphExecDestroy(exec);
    if (graph != nullptr) driver.graphDestroy(graph);
  }
};

/// Words that differ between a plain launch and 20 replays of a captured one, in a workspace that is soiled in between.
Result<std::uint64_t> replay(Gpu& device, const Case& c, const AttentionBackwardKernel& kernel) {
  auto problem = GpuProblem::create(device.reference, c.problem, 10, false);
  if (!problem) return problem.error();
  auto run = Run::create(device, *problem, kernel);
  if (!run) return run.error();
  if (auto ran = (*run)(*problem, 0); !ran) return ran.error();
  if (auto kept = problem->keep_bits(); !kept) return kept.error();
  const Driver& d = *device.driver;
  CUstream stream = device.stream.get();
  DeviceBuffer& workspace = run->workspace();
  Graph graph{d};
  if (auto ok = d.check(d.streamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin capture"); !ok) return ok.error();
  const auto launched = kernel.launch(c.problem, problem->tensors(), workspace.data(), workspace.bytes(), stream);
  if (auto ok = d.check(d.streamEndCapture(stream, &graph.graph), "end capture"); !ok) return ok.error();
  if (!launched) return launched.error();
  if (auto ok = d.check(d.graphInstantiate(&graph.exec, graph.graph, 0), "instantiate"); !ok) return ok.error();
  std::uint64_t differing = 0;
  for (int i = 0; i < 20; ++i) {
    if (auto ok = problem->poison(stream); !ok) return ok.error();
    if (i % 2 == 0)  // every other replay finds the workspace as the one before left it
      if (auto ok = workspace.fill(static_cast<std::uint8_t>(0xff - i), stream); !ok) return ok.error();
    if (auto ok = d.check(d.graphLaunch(graph.exec, stream), "graph launch"); !ok) return ok.error();
    if (auto ok = device.stream.synchronize(); !ok) return ok.error();
    auto words = problem->differing_words();
    if (!words) return words;
    differing += *words;
  }
  return differing;
}

}  // namespace

TEST_CASE("a first launch inside a capture is refused, and one that was loaded for is captured") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  std::vector<Case> cases = one_of_each(device->target());
  // arrival has a table to upload beside the kernels.
  std::erase_if(cases, [](const Case& c) { return c.plan.schedule != Schedule::arrival || c.plan.cluster != 2; });
  int failures = 0;
  const Kernels kernels = prepare_cases(*device, cases, "capture first", failures);
  failures += for_each_case(*device, cases, kernels, [&](const Case& c, const AttentionBackwardKernel&) -> std::string {
    auto engine = Engine::create({.cache_path = {}, .memory_cache_only = true, .warn = {}, .target = device->target()});
    if (!engine) return engine.error().message;
    auto kernel = engine->prepare(c.plan);  // of its own: nothing is loaded or uploaded yet
    if (!kernel) return kernel.error().message;
    auto problem = GpuProblem::create(device->reference, c.problem, 11, false);
    if (!problem) return problem.error().message;
    auto run = Run::create(*device, *problem, *kernel);
    if (!run) return run.error().message;
    const Driver& d = *device->driver;
    CUstream stream = device->stream.get();
    const auto capture = [&](Result<void>& launched) -> Result<void> {
      Graph graph{d};
      if (auto ok = d.check(d.streamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "begin capture"); !ok) return ok;
      launched = kernel->launch(c.problem, problem->tensors(), run->workspace().data(), run->workspace().bytes(), stream);
      return d.check(d.streamEndCapture(stream, &graph.graph), "end capture");
    };
    Result<void> launched;
    if (auto ok = capture(launched); !ok) return ok.error().message;
    if (launched) return "the launch was not refused";
    if (launched.error().message.find("capture") == std::string::npos) return launched.error().message;
    if (auto loaded = kernel->load(c.problem, stream); !loaded) return loaded.error().message;
    if (auto ok = capture(launched); !ok) return ok.error().message;
    if (!launched) return "after load(problem): " + launched.error().message;
    auto ran = (*run)(*problem, 0);
    return ran ? "" : ran.error().message;
  });
  CHECK(failures == 0);
}

TEST_CASE("a captured launch replays with the same bits") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  const std::vector<Case> cases = one_of_each(device->target());
  int failures = 0;
  const Kernels kernels = prepare_cases(*device, cases, "graphs", failures);
  failures += for_each_case(*device, cases, kernels, [&](const Case& c, const AttentionBackwardKernel& kernel) {
    return differing_message(replay(*device, c, kernel));
  });
  CHECK(failures == 0);
}

namespace {

/// What one of several threads does: launches on a stream of its own.
std::string launch_in_thread(Gpu& device, const Case& c, const AttentionBackwardKernel& kernel, std::uint64_t expected) {
  if (auto ok = device.context.make_current(); !ok) return ok.error().message;
  auto problem = GpuProblem::create(device.reference, c.problem, 9, false);
  if (!problem) return problem.error().message;
  auto run = Run::create(device, *problem, kernel);
  if (!run) return run.error().message;
  auto stream = Stream::create();
  if (!stream) return stream.error().message;
  if (auto ok = device.context.synchronize(); !ok) return ok.error().message;
  for (std::uint64_t i = 0; i < 20; ++i) {
    if (auto ok = run->enqueue(*problem, i % 3, *stream); !ok) return ok.error().message;
    if (auto ok = stream->synchronize(); !ok) return ok.error().message;
    const auto hash = hash_outputs(*problem);
    if (!hash) return hash.error().message;
    if (*hash != expected) return fmt::format("launch {} gave other bits", i);
  }
  return "";
}

}  // namespace

TEST_CASE("threads launch one kernel on streams of their own") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  const std::vector<Case> cases = one_of_each(device->target());
  int failures = 0;
  const Kernels kernels = prepare_cases(*device, cases, "threads", failures);
  failures += for_each_case(*device, cases, kernels, [&](const Case& c, const AttentionBackwardKernel& kernel) -> std::string {
    const auto expected = hash_of(*device, c, kernel, 0);
    if (!expected) return expected.error().message;
    std::array<std::string, 4> outcomes;
    {
      std::vector<std::jthread> threads;
      for (std::string& outcome : outcomes)
        threads.emplace_back([&] { outcome = launch_in_thread(*device, c, kernel, *expected); });
    }
    const auto bad = std::find_if(outcomes.begin(), outcomes.end(), [](const std::string& outcome) { return !outcome.empty(); });
    return bad == outcomes.end() ? "" : *bad;
  });
  CHECK(failures == 0);
}

}  // namespace ordo::test
