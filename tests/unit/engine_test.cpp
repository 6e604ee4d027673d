#include <doctest/doctest.h>
#include <sqlite3.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <thread>

#include "cache/store.hpp"
#include "codegen/hash/sha256.hpp"
#include "ordo/ordo.hpp"
#include "runtime/compiler.hpp"
#include "runtime/kernel_builder.hpp"
#include "tests/cache/fault_vfs.hpp"
#include "tests/unit/scratch.hpp"

namespace ordo {
namespace {

using test::Environment;
using test::Folder;

bool has_nvrtc() {
  const Result<Compiler> opened = Compiler::open();
  if (!opened) MESSAGE("skipped, no NVRTC: ", opened.error().message);
  return opened.ok();
}

KernelSource source(const std::string& name, int shared_bytes = 0) {
  const std::string entry = "k_" + name;
  return {
      name,     entry, "extern \"C\" __global__ void __launch_bounds__(64) " + entry + "(float* x) { x[threadIdx.x] += 1; }\n",
      "sm_90a", 64,    shared_bytes};
}

/// Collects warnings; threads may call it.
class Warnings {
 public:
  std::function<void(const std::string&)> sink() {
    return [this](const std::string& message) {
      const std::scoped_lock lock(mutex_);
      messages_.push_back(message);
    };
  }
  [[nodiscard]] std::vector<std::string> messages() const { return messages_; }

 private:
  std::mutex mutex_;
  std::vector<std::string> messages_;
};

std::vector<BuiltKernel> build(KernelBuilder& builder, const std::vector<KernelSource>& sources) {
  Result<std::vector<BuiltKernel>> built = builder.build(sources, "plan text");
  REQUIRE_MESSAGE(built, built.error().message);
  return *std::move(built);
}

Plan some_plan() {
  AttentionBackward problem;
  problem.seqlen_q = problem.seqlen_k = 1024;
  const Result<PlanChoice> choice = make_plan(problem, Target{});
  REQUIRE_MESSAGE(choice, choice.error().message);
  return choice->plan;
}

Engine engine(EngineOptions options) {
  options.target = Target{};
  Result<Engine> created = Engine::create(std::move(options));
  REQUIRE_MESSAGE(created, created.error().message);
  return *std::move(created);
}

}  // namespace

TEST_CASE("builder, report 48: compiles, reports, and finds it again in another process' place") {
  if (!has_nvrtc()) return;
  const Folder folder;
  const std::string path = folder.file("sub/cache.db");
  const std::vector<KernelSource> sources{source("main", 4096), source("preprocess"), source("convert")};
  Warnings warnings;
  KernelBuilder first({path, false, warnings.sink()});
  CHECK_FALSE(std::filesystem::exists(path));  // nothing is touched before it is needed
  const std::vector<BuiltKernel> compiled = build(first, sources);
  REQUIRE(compiled.size() == 3);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const KernelReport& report = compiled[i].report;
    CHECK(report.name == sources[i].name);
    CHECK_FALSE(report.cache_hit);
    CHECK(report.arch == "sm_90a");
    CHECK(report.launch_registers > 0);
    CHECK(report.spill_bytes == 0);
    CHECK(report.shared_bytes == sources[i].shared_bytes);
    CHECK(report.compile_ms > 0);
    CHECK(report.cubin_sha256 == sha256_hex(compiled[i].cubin));
    CHECK(report.key.size() == 64);
  }
  CHECK(compiled[0].report.key != compiled[1].report.key);

  KernelBuilder second({path, false, warnings.sink()});
  const std::vector<BuiltKernel> cached = build(second, sources);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    CHECK(cached[i].report.cache_hit);
    CHECK(cached[i].report.key == compiled[i].report.key);
    CHECK(cached[i].report.compile_ms == compiled[i].report.compile_ms);
    CHECK(cached[i].report.launch_registers == compiled[i].report.launch_registers);
    CHECK(cached[i].cubin == compiled[i].cubin);
  }
  const Result<cache::Store> store = cache::Store::open(path);
  REQUIRE(store);
  const Result<std::vector<cache::Entry>> entries = store->list();
  REQUIRE(entries);
  REQUIRE(entries->size() == 3);
  CHECK((*entries)[0].plan == "plan text");
  CHECK(warnings.messages().empty());
}

TEST_CASE("builder: a hit writes nothing") {
  if (!has_nvrtc()) return;
  const Folder folder;
  const std::string path = folder.file("cache.db");
  {
    KernelBuilder builder({path, false, {}});
    build(builder, {source("main")});
  }
  const auto written = std::filesystem::last_write_time(path);
  KernelBuilder builder({path, false, {}});
  CHECK(build(builder, {source("main")})[0].report.cache_hit);
  CHECK(std::filesystem::last_write_time(path) == written);
}

TEST_CASE("builder: only what is missing is compiled") {
  if (!has_nvrtc()) return;
  KernelBuilder builder({"", true, {}});
  build(builder, {source("main"), source("convert")});
  const std::vector<BuiltKernel> mixed = build(builder, {source("main"), source("other"), source("convert")});
  CHECK(mixed[0].report.cache_hit);
  CHECK_FALSE(mixed[1].report.cache_hit);
  CHECK(mixed[2].report.cache_hit);
}

TEST_CASE("builder, reports 2 and 13: a cache that cannot be used costs one warning and nothing else") {
  if (!has_nvrtc()) return;
  const Folder folder;
  std::ofstream(folder.file("text")) << std::string(5000, 'x');
  for (const std::string& path : {folder.file("text"), folder.file("text") + "/cache.db", folder.path().string()}) {
    CAPTURE(path);
    Warnings warnings;
    KernelBuilder builder({path, false, warnings.sink()});
    CHECK_FALSE(build(builder, {source("main")})[0].report.cache_hit);
    CHECK(build(builder, {source("main")})[0].report.cache_hit);  // from memory
    build(builder, {source("other")});
    REQUIRE(warnings.messages().size() == 1);
    CHECK(warnings.messages()[0].find(path) != std::string::npos);
    CHECK(warnings.messages()[0].find("in memory only") != std::string::npos);
  }
}

TEST_CASE("builder, report 13: a full disk, and a lock that nobody gives back, cost one warning and nothing else") {
  if (!has_nvrtc()) return;
  const Folder folder;
  const auto check = [](const std::string& path) {
    Warnings warnings;
    KernelBuilder builder({path, false, warnings.sink()});
    CHECK_FALSE(build(builder, {source("main")})[0].report.cache_hit);
    CHECK(build(builder, {source("main")})[0].report.cache_layer == "memory");
    REQUIRE(warnings.messages().size() == 1);
    CHECK(warnings.messages()[0].find(path) != std::string::npos);
    CHECK(warnings.messages()[0].find("in memory only") != std::string::npos);
  };
  {
    const test::FaultVfs vfs;
    test::FaultVfs::arm(test::Fault::full_disk, 0, 0);
    check(folder.file("full.db"));
  }
  const std::string path = folder.file("locked.db");
  REQUIRE(cache::Store::open(path));
  sqlite3* other = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &other) == SQLITE_OK);
  REQUIRE(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr) == SQLITE_OK);
  check(path);
  sqlite3_close(other);
}

TEST_CASE("builder, report 31: no place for a cache is one warning; asked for, it is none") {
  if (!has_nvrtc()) return;
  const Environment cache("ORDO_CACHE", nullptr), xdg("XDG_CACHE_HOME", nullptr), home("HOME", nullptr);
  Warnings warnings;
  KernelBuilder builder({"", false, warnings.sink()});
  build(builder, {source("main")});
  REQUIRE(warnings.messages().size() == 1);
  CHECK(warnings.messages()[0].find("HOME") != std::string::npos);
  Warnings none;
  KernelBuilder memory({"", true, none.sink()});
  build(memory, {source("main")});
  CHECK(none.messages().empty());
}

TEST_CASE("builder: the environment names the cache") {
  if (!has_nvrtc()) return;
  const Folder folder;
  const std::string path = folder.file("by_environment.db");
  const Environment cache("ORDO_CACHE", path.c_str());
  KernelBuilder builder({"", false, {}});
  build(builder, {source("main")});
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("builder, report 13: a cache that turns read-only or breaks while in use costs one warning") {
  if (!has_nvrtc()) return;
  const Folder folder;
  const std::string path = folder.file("cache.db");
  Warnings warnings;
  KernelBuilder builder({path, false, warnings.sink()});
  build(builder, {source("main")});
  std::filesystem::resize_file(path, 700);
  CHECK_FALSE(build(builder, {source("other")})[0].report.cache_hit);
  build(builder, {source("another")});
  CHECK(warnings.messages().size() >= 1);
  CHECK(warnings.messages().size() <= 2);  // one for reads, one for writes
}

TEST_CASE(
    "builder, reports 3 and 20: an entry that is intact but of another kernel, or no cubin, is compiled again and replaced") {
  if (!has_nvrtc()) return;
  const Folder folder;
  const std::string path = folder.file("cache.db");
  const std::string key = [&] {
    KernelBuilder builder({path, false, {}});
    return build(builder, {source("main")})[0].report.key;
  }();
  Result<cache::Store> store = cache::Store::open(path);
  REQUIRE(store);
  const auto forge = [&](const char* arch, const std::vector<std::byte>& bytes) {
    Result<std::optional<cache::Entry>> entry = store->get(key);
    REQUIRE((entry && *entry));
    cache::Entry forged = **entry;
    if (!bytes.empty()) forged.bytes = bytes;
    forged.arch = arch;
    forged.sha256 = sha256_hex(forged.bytes);
    REQUIRE(store->erase(key));
    REQUIRE(store->put(forged));
  };
  KernelBuilder other({"", true, {}});
  const std::vector<std::byte> other_kernel = build(other, {source("other")})[0].cubin;
  for (const auto& [arch, bytes] : {std::pair{"sm_90a", std::vector<std::byte>(100)}, std::pair{"sm_90a", other_kernel},
                                    std::pair{"sm_80", std::vector<std::byte>{}}}) {
    forge(arch, bytes);
    Warnings warnings;
    KernelBuilder builder({path, false, warnings.sink()});
    CHECK_FALSE(build(builder, {source("main")})[0].report.cache_hit);
    REQUIRE(warnings.messages().size() == 1);
    CHECK(warnings.messages()[0].find("unusable") != std::string::npos);
    KernelBuilder again({path, false, warnings.sink()});
    CHECK(build(again, {source("main")})[0].report.cache_hit);
    CHECK(warnings.messages().size() == 1);
  }
}

TEST_CASE("builder: without NVRTC the cache serves what it has, and names what it lacks") {
  if (!has_nvrtc()) return;
  const Folder folder;
  const std::string path = folder.file("cache.db");
  {
    KernelBuilder builder({path, false, {}});
    build(builder, {source("main")});
  }
  const Environment nowhere("ORDO_NVRTC", folder.path().c_str());
  Warnings warnings;
  KernelBuilder builder({path, false, warnings.sink()});
  CHECK(build(builder, {source("main")})[0].report.cache_hit);
  CHECK(warnings.messages().empty());
  const Result<std::vector<BuiltKernel>> missing = builder.build({source("main"), source("other")}, "plan text");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == ErrorCode::toolchain);
  CHECK(missing.error().message.find("'other'") != std::string::npos);
  CHECK(missing.error().message.find(path) != std::string::npos);
  CHECK(missing.error().message.find("libnvrtc") != std::string::npos);
}

TEST_CASE("builder, report 3: the first source's error is reported, and nothing of it is stored") {
  if (!has_nvrtc()) return;
  KernelBuilder builder({"", true, {}});
  KernelSource broken = source("main");
  broken.text += "syntax error";
  KernelSource also_broken = source("convert");
  also_broken.text = "";
  const Result<std::vector<BuiltKernel>> built = builder.build({source("preprocess"), broken, also_broken}, "plan text");
  REQUIRE_FALSE(built);
  CHECK(built.error().code == ErrorCode::compile);
  CHECK(built.error().message.find("'main'") != std::string::npos);
  CHECK(build(builder, {source("preprocess")})[0].report.cache_hit);  // what compiled is kept
}

TEST_CASE("engine: without a device the target is an h200, a given one is taken") {
  Result<Engine> created = Engine::create({.cache_path = "", .memory_cache_only = true, .warn = {}, .target = {}});
  REQUIRE_MESSAGE(created, created.error().message);
  CHECK(created->target().arch == "sm_90a");
  const Result<Target> h20 = parse_target("h20");
  REQUIRE(h20);
  created = Engine::create({.cache_path = "", .memory_cache_only = true, .warn = {}, .target = *h20});
  REQUIRE(created);
  CHECK(created->target() == *h20);
}

TEST_CASE("engine: plan and prepare, from source to reports, without a GPU") {
  if (!has_nvrtc()) return;
  const Folder folder;
  Engine first = engine({.cache_path = folder.file("cache.db"), .memory_cache_only = false, .warn = {}, .target = {}});
  const Plan plan = some_plan();
  const Result<AttentionBackwardKernel> kernel = first.prepare(plan);
  REQUIRE_MESSAGE(kernel, kernel.error().message);
  CHECK(kernel->plan() == plan);
  REQUIRE(kernel->reports().size() >= 2);
  CHECK(kernel->reports()[0].name == "main");
  for (const KernelReport& report : kernel->reports()) {
    CAPTURE(report.name);
    CHECK_FALSE(report.cache_hit);
    CHECK(report.spill_bytes == 0);
    CHECK(report.launch_registers > 0);
    CHECK(report.shared_bytes <= Target{}.shared_bytes_per_block);
  }
  Engine second = engine({.cache_path = folder.file("cache.db"), .memory_cache_only = false, .warn = {}, .target = {}});
  const Result<AttentionBackwardKernel> again = second.prepare(plan);
  REQUIRE(again);
  for (const KernelReport& report : again->reports()) CHECK(report.cache_hit);
}

TEST_CASE("engine: threads that ask for one plan share one build") {
  if (!has_nvrtc()) return;
  Engine shared = engine({.cache_path = "", .memory_cache_only = true, .warn = {}, .target = {}});
  const Plan plan = some_plan();
  std::vector<const KernelReport*> reports(6, nullptr);
  std::vector<std::thread> threads;
  threads.reserve(reports.size());
  for (const KernelReport*& report : reports) {
    threads.emplace_back([&] {
      const Result<AttentionBackwardKernel> kernel = shared.prepare(plan);
      if (kernel) report = kernel->reports().data();  // alive as long as the engine
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(reports[0] != nullptr);
  CHECK(std::all_of(reports.begin(), reports.end(), [&](const KernelReport* report) { return report == reports[0]; }));
  CHECK_FALSE(reports[0]->cache_hit);
}

TEST_CASE("engine: a failure is not remembered") {
  if (!has_nvrtc()) return;
  const Folder folder;
  Engine tried = engine({.cache_path = "", .memory_cache_only = true, .warn = {}, .target = {}});
  {
    const Environment nowhere("ORDO_NVRTC", folder.path().c_str());
    const Result<AttentionBackwardKernel> kernel = tried.prepare(some_plan());
    REQUIRE_FALSE(kernel);
    CHECK(kernel.error().code == ErrorCode::toolchain);
  }
  CHECK(tried.prepare(some_plan()));
}

TEST_CASE("engine: an invalid plan is refused before anything is compiled") {
  Engine refusing = engine({.cache_path = "", .memory_cache_only = true, .warn = {}, .target = {}});
  Plan plan = some_plan();
  plan.tile_q = -1;
  const Result<AttentionBackwardKernel> kernel = refusing.prepare(plan);
  REQUIRE_FALSE(kernel);
  CHECK(kernel.error().code == ErrorCode::invalid_plan);
}

TEST_CASE("engine: strides of a contiguous tensor") {
  const TensorView view = contiguous(nullptr, 3, 5, 64);
  CHECK(view.head_stride == 64);
  CHECK(view.seqlen_stride == 5 * 64);
  CHECK(view.batch_stride == 3 * 5 * 64);
}

}  // namespace ordo
