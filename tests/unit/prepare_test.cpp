// prepare, seal, layers, cancellation and counters of an engine, without a GPU.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <thread>

#include "cache/store.hpp"
#include "codegen/hash/sha256.hpp"
#include "ordo/ordo.hpp"
#include "ordo/overlap_kernel.hpp"
#include "runtime/compiler.hpp"
#include "runtime/kernel_builder.hpp"
#include "runtime/nvrtc_identity.hpp"
#include "runtime/prepared_plans.hpp"
#include "runtime/toolchain.hpp"
#include "tests/unit/scratch.hpp"

namespace ordo {
namespace {

namespace fs = std::filesystem;
using test::Environment;
using test::Folder;

bool has_nvrtc() {
  const Result<Compiler> opened = Compiler::open();
  if (!opened) MESSAGE("skipped, no NVRTC: ", opened.error().message);
  return opened.ok();
}

KernelSource source(const std::string& name) {
  const std::string entry = "k_" + name;
  return {
      name,     entry, "extern \"C\" __global__ void __launch_bounds__(64) " + entry + "(float* x) { x[threadIdx.x] += 1; }\n",
      "sm_90a", 64,    0};
}

/// Takes NVRTC seconds: a long chain of unrolled arithmetic.
KernelSource slow_source() {
  KernelSource slow = source("slow");
  slow.text = "extern \"C\" __global__ void __launch_bounds__(64) k_slow(float* x) {\n  float a = x[0], b = x[1];\n";
  for (int i = 0; i < 3000; ++i) slow.text += "  a = a * b + " + std::to_string(i) + ".5f; b = b * a + x[a > b ? 3 : 4];\n";
  slow.text += "  x[2] = a + b;\n}\n";
  return slow;
}

std::vector<BuiltKernel> build(KernelBuilder& builder, const std::vector<KernelSource>& sources) {
  Result<std::vector<BuiltKernel>> built = builder.build(sources, "plan text");
  REQUIRE_MESSAGE(built, built.error().message);
  return *std::move(built);
}

std::vector<std::string> files_in(const Folder& folder) {
  std::vector<std::string> names;
  for (const auto& file : fs::recursive_directory_iterator(folder.path())) names.push_back(file.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

ShapeList small_list() {
  ShapeList list;
  ListedProblem listed;
  listed.problem = {.batch = 1, .seqlen_q = 256, .seqlen_k = 256, .heads = 1, .kv_heads = 1, .head_dim = 64};
  list.problems.push_back(listed);
  listed.problem.seqlen_q = listed.problem.seqlen_k = 512;  // the same kernels
  list.problems.push_back(listed);
  return list;
}

EngineOptions options(const std::string& cache) {
  EngineOptions result;
  result.cache_path = cache;
  result.target = Target{};
  return result;
}

Engine engine(EngineOptions chosen) {
  Result<Engine> created = Engine::create(std::move(chosen));
  REQUIRE_MESSAGE(created, created.error().message);
  return *std::move(created);
}

}  // namespace

TEST_CASE("layers, report 30: where every kernel is shipped, nothing is made, nothing written, and NVRTC is not opened") {
  if (!has_nvrtc()) return;
  const Folder shipped, local, leases;
  {
    KernelBuilder builder({.cache_path = shipped.file("kernels.db"), .memory_cache_only = false, .warn = {}});
    build(builder, {source("main"), source("convert")});
  }
  std::vector<std::string> warnings;
  KernelBuilder builder({.cache_path = local.file("sub/cache.db"),
                         .memory_cache_only = false,
                         .warn = [&](const std::string& text) { warnings.push_back(text); },
                         .cache_layers = {shipped.file("absent.db"), shipped.file("kernels.db")},
                         .lease_folder = leases.path().string()});
  const std::vector<std::string> before = files_in(shipped);
  // A child that has never opened NVRTC: does it, for a full hit?
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto built = builder.build({source("main"), source("convert")}, "plan text");
    _exit(built && (*built)[0].report.cache_layer == "shipped" && (*built)[1].report.cache_layer == "shipped" ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(build(builder, {source("main")})[0].report.cache_layer == "shipped");
  CHECK(files_in(local).empty());
  CHECK(files_in(leases).empty());
  CHECK(files_in(shipped) == before);
  CHECK(builder.counters().shipped_hits == 1);
  CHECK(builder.counters().misses == 0);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("absent.db") != std::string::npos);

  // What is missing in the shipped file goes into the local one.
  CHECK(build(builder, {source("other")})[0].report.cache_layer.empty());
  CHECK(files_in(local) == std::vector<std::string>{"cache.db", "sub"});
  CHECK(files_in(shipped) == before);
}

TEST_CASE("layers: damage in a shipped file is a miss, compiled into the local file, and served from there") {
  if (!has_nvrtc()) return;
  const Folder folder;
  {
    KernelBuilder builder({.cache_path = folder.file("shipped.db"), .memory_cache_only = false, .warn = {}});
    build(builder, {source("main")});
  }
  std::string text;
  {
    std::ifstream in(folder.file("shipped.db"), std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  const std::string damages[] = {"zeroed pages", "truncated", "a bit of every byte"};
  for (const std::string& damage : damages) {
    CAPTURE(damage);
    std::string bad = text;
    if (damage == "zeroed pages") std::fill(bad.begin() + 16384, bad.end(), '\0');
    if (damage == "truncated") bad.resize(20000);
    if (damage == "a bit of every byte")
      for (auto it = bad.begin() + 16384; it != bad.end(); ++it) *it = static_cast<char>(*it ^ 1);
    std::ofstream(folder.file("bad.db"), std::ios::binary | std::ios::trunc) << bad;
    fs::remove(folder.file("local.db"));
    const auto fresh = [&] {
      return KernelBuilder({.cache_path = folder.file("local.db"),
                            .memory_cache_only = false,
                            .warn = {},
                            .cache_layers = {folder.file("bad.db")}});
    };
    KernelBuilder first = fresh();
    CHECK_FALSE(build(first, {source("main")})[0].report.cache_hit);
    KernelBuilder second = fresh();
    CHECK(build(second, {source("main")})[0].report.cache_layer == "local");
  }
}

TEST_CASE("stamps: a hit in the local file is stamped once a day, and not oftener") {
  if (!has_nvrtc()) return;
  const Folder folder;
  const std::string path = folder.file("cache.db");
  std::string key;
  {
    KernelBuilder builder({.cache_path = path, .memory_cache_only = false, .warn = {}});
    key = build(builder, {source("main")})[0].report.key;
  }
  Result<cache::Store> store = cache::Store::open(path);
  REQUIRE(store);
  const auto set_used = [&](std::int64_t used) {
    cache::Entry entry = **store->get(key);
    entry.used = used;
    REQUIRE(store->erase(key));
    REQUIRE(store->put(entry));
  };
  const std::int64_t now = (*store->get(key))->used;
  KernelBuilder builder({.cache_path = path, .memory_cache_only = false, .warn = {}});
  set_used(now - 80000);
  build(builder, {source("main")});
  CHECK((*store->get(key))->used == now - 80000);
  set_used(now - 90000);
  build(builder, {source("main")});
  CHECK((*store->get(key))->used >= now);
  // With the stamp, what was counted: two hits.
  const auto counters = store->counters();
  REQUIRE(counters);
  CHECK(counters->at("ordo_cache_hits_total{layer=\"local\"}") == 2);
  CHECK(counters->at("ordo_compiles_total") == 1);
}

TEST_CASE("toolchain: known by its library's identity without being opened, and forgotten with another library") {
  if (!has_nvrtc()) return;
  const std::string real = Compiler::open()->version().library, text = Compiler::open()->version().text();
  const std::optional<std::string> path = locate_nvrtc(NvrtcPlaces::from_environment());
  REQUIRE(path);
  CHECK(*path == real);
  const std::optional<std::string> identity = library_identity(real);
  REQUIRE(identity);
  CHECK(library_identity(real) == identity);

  const Folder folder;
  cache::Layers layers({.path = folder.file("cache.db"), .files = {}, .memory_only = false, .limit_bytes = {}, .warn = {}});
  CHECK_FALSE(layers.toolchain_of(*identity));
  REQUIRE(cache::Store::open(folder.file("cache.db"))->apply({.toolchains = {{*identity, "NVRTC 99.1.2"}}}));
  Toolchain known(layers);
  CHECK(known.text() == "NVRTC 99.1.2");  // believed, so not opened
  CHECK(known.take().empty());
  REQUIRE(known.compiler());
  CHECK(known.text() == text);  // opened, so known better
  CHECK(known.take() == std::map<std::string, std::string>{{*identity, text}});

  // A kernel by the believed compiler is not taken where the real one had to be opened for another kernel of the same plan.
  KernelBuilder builder({.cache_path = folder.file("cache.db"), .memory_cache_only = false, .warn = {}});
  CHECK_FALSE(build(builder, {source("main")})[0].report.cache_hit);
  CHECK(*cache::Store::open(folder.file("cache.db"))->toolchain_of(*identity) == text);

  std::ofstream(folder.file("libnvrtc.so.13")) << "not a library";
  const Environment forced("ORDO_NVRTC", folder.path().c_str());
  const std::optional<std::string> other = locate_nvrtc(NvrtcPlaces::from_environment());
  REQUIRE(other);
  const std::optional<std::string> by_file = library_identity(*other);
  REQUIRE(by_file);
  CHECK(by_file->starts_with("file:" + *other + ":13:"));
  std::ofstream(folder.file("libnvrtc.so.13")) << "not a library either";
  CHECK(library_identity(*other) != by_file);
  CHECK_FALSE(library_identity(folder.file("absent")));
}

TEST_CASE("single flight: processes that start cold on the same kernels compile each once, and all finish") {
  if (!has_nvrtc()) return;
  const Folder folder, leases;
  const std::vector<KernelSource> sources{source("a"), source("b"), source("c")};
  std::vector<pid_t> children;
  for (int p = 0; p < 6; ++p) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      KernelBuilder builder({.cache_path = folder.file("cache.db"),
                             .memory_cache_only = false,
                             .warn = {},
                             .lease_folder = leases.path().string(),
                             .lease_timeout = std::chrono::seconds(60)});
      const auto built = builder.build(sources, "plan");
      const CacheCounters counters = builder.counters();
      std::ofstream(folder.file("compiled" + std::to_string(getpid()))) << counters.compiles;
      _exit(built && counters.compiles + counters.shared_compiles + counters.local_hits == 3 ? 0 : 1);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed += status != 0 ? 1 : 0;
  }
  CHECK(failed == 0);
  int compiled = 0;
  for (const auto& file : fs::directory_iterator(folder.path())) {
    if (!file.path().filename().string().starts_with("compiled")) continue;
    int count = 0;
    std::ifstream(file.path()) >> count;
    compiled += count;
  }
  CHECK(compiled == 3);
}

TEST_CASE("cancel: a compile under way ends soon, nothing of it is kept, and the next call compiles") {
  if (!has_nvrtc()) return;
  const Folder folder;
  KernelBuilder builder({.cache_path = folder.file("cache.db"), .memory_cache_only = false, .warn = {}});
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  double asked = 0;
  const auto cancelled = [&] {
    if (asked == 0 && elapsed() > 0.3) asked = elapsed();
    return asked != 0;
  };
  const auto built = builder.build({slow_source()}, "plan", cancelled);
  if (built) {  // an NVRTC without the callback, or a very fast one
    MESSAGE("not cancelled: compiled in ", elapsed(), " s");
    return;
  }
  CHECK(built.error().code == ErrorCode::cancelled);
  MESSAGE("ended ", elapsed() - asked, " s after it was asked to");
  CHECK(builder.counters().compile_failures == 1);
  CHECK(cache::Store::open(folder.file("cache.db"))->list()->empty());
  CHECK(build(builder, {source("main")})[0].report.cache_hit == false);
}

TEST_CASE("prepare: the plans of a list, once each, with progress; a second engine finds them all") {
  if (!has_nvrtc()) return;
  const Folder folder;
  Engine first = engine(options(folder.file("cache.db")));
  std::vector<std::size_t> seen;
  PrepareOptions watch;
  watch.progress = [&](std::size_t done, std::size_t total) {
    seen.push_back(done);
    CHECK(total == 2);
  };
  const Result<PrepareReport> report = first.prepare(small_list(), watch);
  REQUIRE_MESSAGE(report, report.error().message);
  CHECK(report->plans == 2);
  CHECK(report->kernels == report->compiled);
  CHECK(report->kernels >= 2);
  CHECK(report->loaded == 0);  // no CUDA context here
  CHECK(seen == std::vector<std::size_t>{1, 2});
  CHECK(first.counters().compiles == report->compiled);

  Engine second = engine(options(folder.file("cache.db")));
  const Result<PrepareReport> again = second.prepare(small_list());
  REQUIRE(again);
  CHECK(again->compiled == 0);
  CHECK(second.counters().misses == 0);
  CHECK(second.counters().local_hits >= report->kernels);

  PrepareOptions at_once;
  at_once.cancelled = [] { return true; };
  Engine third = engine(options(folder.file("other.db")));
  const Result<PrepareReport> stopped = third.prepare(small_list(), at_once);
  REQUIRE_FALSE(stopped);
  CHECK(stopped.error().code == ErrorCode::cancelled);
}

TEST_CASE(
    "seal, reports 44 and 49: afterwards a miss is a typed error that names the shape, and nothing is compiled or written") {
  if (!has_nvrtc()) return;
  const Folder folder;
  Engine sealed = engine(options(folder.file("cache.db")));
  const ShapeList list = small_list();
  REQUIRE(sealed.prepare(list));
  CHECK_FALSE(sealed.sealed());
  sealed.seal();
  CHECK(sealed.sealed());
  const CacheCounters before = sealed.counters();
  const auto written = fs::last_write_time(folder.file("cache.db"));
  for (const ListedProblem& listed : list.problems) CHECK(sealed.prepare(listed.problem, listed.request));
  AttentionBackward other = list.problems[0].problem;
  other.mask = Mask::causal;
  const Result<AttentionBackwardKernel> missing = sealed.prepare(other);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == ErrorCode::not_prepared);
  CHECK(missing.error().message.find(to_text(other)) != std::string::npos);
  CHECK(missing.error().message.find("sealed") != std::string::npos);
  const Result<PlanChoice> choice = sealed.plan(other);
  REQUIRE(choice);
  const Result<AttentionBackwardKernel> by_plan = sealed.prepare(choice->plan);
  REQUIRE_FALSE(by_plan);
  CHECK(by_plan.error().code == ErrorCode::not_prepared);
  CHECK(by_plan.error().message.find(to_text(choice->plan)) != std::string::npos);
  CHECK(sealed.counters() == before);
  CHECK(fs::last_write_time(folder.file("cache.db")) == written);
}

TEST_CASE("manifest: a run's plans, once each, as a list that prepares the same") {
  if (!has_nvrtc()) return;
  const Folder folder;
  EngineOptions recording = options(folder.file("cache.db"));
  recording.manifest_path = folder.file("run.toml");
  {
    Engine first = engine(recording);
    REQUIRE(first.prepare(small_list()));
    REQUIRE(first.prepare(small_list()));
    REQUIRE(first.prepare(OverlapPlan{}));
    REQUIRE(first.prepare(OverlapPlan{}));
  }
  const Result<ShapeList> list = read_shape_list(folder.file("run.toml"));
  REQUIRE_MESSAGE(list, list.error().message);
  CHECK(list->plans.size() == 2);
  CHECK(list->overlap_plans == std::vector{OverlapPlan{}});
  Engine second = engine(options(folder.file("cache.db")));
  const Result<PrepareReport> again = second.prepare(*list);
  REQUIRE(again);
  CHECK(again->compiled == 0);
  CHECK(again->plans == 3);
  second.seal();
  CHECK(second.prepare(OverlapPlan{}));
  OverlapPlan other;
  other.stages = 3;
  const auto missing = second.prepare(other);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == ErrorCode::not_prepared);

  std::vector<std::string> warnings;
  EngineOptions nowhere = options(folder.file("cache.db"));
  nowhere.manifest_path = folder.file("no/such/folder.toml");
  nowhere.warn = [&](const std::string& text) { warnings.push_back(text); };
  Engine third = engine(nowhere);
  REQUIRE(third.prepare(small_list()));
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("no/such/folder.toml") != std::string::npos);
}

TEST_CASE("prepared plans, report 29: a bounded number, those asked for longest ago go first, those in use stay") {
  PreparedPlans plans(2);
  int builds = 0;
  const auto make = [&]() -> Prepared {
    ++builds;
    return std::make_shared<AttentionBackwardKernel::Impl>(
        AttentionBackwardKernel::Impl{Plan{}, Flavour::normal, {}, KernelSet({}), {}});
  };
  const Prepared held = plans.get("a", make);
  (void)plans.get("b", make);
  (void)plans.get("c", make);
  (void)plans.get("a", make);
  CHECK(builds == 3);
  CHECK(plans.size() == 2);
  CHECK_FALSE(plans.find("b"));  // the oldest that nobody holds
  CHECK(plans.find("a"));
  CHECK(plans.find("c"));
  const Prepared fails = plans.get("d", [] { return Prepared(Error{ErrorCode::compile, "no"}); });
  CHECK_FALSE(fails);
  CHECK_FALSE(plans.find("d"));
  CHECK(plans.get("d", make));
}

TEST_CASE("counters: Prometheus' text has each metric's help and type once, before its series") {
  CacheCounters counters;
  counters.local_hits = 3;
  counters.shipped_hits = 2;
  counters.compile_seconds = 1.5;
  const std::string text = prometheus_text(named(counters));
  CHECK(text.find("# HELP ordo_cache_hits_total Kernels found in the cache, by layer.\n# TYPE ordo_cache_hits_total counter\n"
                  "ordo_cache_hits_total{layer=\"local\"} 3\nordo_cache_hits_total{layer=\"memory\"} 0\n"
                  "ordo_cache_hits_total{layer=\"shipped\"} 2\n") != std::string::npos);
  CHECK(text.find("\nordo_compile_seconds_total 1.5\n") != std::string::npos);
  std::size_t helps = 0;
  for (std::size_t at = text.find("# HELP"); at != std::string::npos; at = text.find("# HELP", at + 1)) ++helps;
  CHECK(helps == 7);
}

}  // namespace ordo
