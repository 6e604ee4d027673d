// What changes a kernel's key and what does not, from Plan and compiler down to the folder it is called in.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <clocale>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cache/store.hpp"
#include "codegen/embedded.hpp"
#include "codegen/generate/template_hash.hpp"
#include "runtime/compiler.hpp"
#include "runtime/kernel_builder.hpp"
#include "tests/unit/scratch.hpp"

namespace ordo {
namespace {

using test::Environment;
using test::Folder;

std::vector<KernelSource> sources_of(const Plan& plan) {
  Result<std::vector<KernelSource>> sources = generate(plan, Target{});
  REQUIRE_MESSAGE(sources, sources.error().message);
  return *std::move(sources);
}

/// name -> key
std::map<std::string, std::string> keys_of(const Plan& plan) {
  std::map<std::string, std::string> keys;
  for (const KernelSource& source : sources_of(plan))
    keys[source.name] = cache::kernel_key(source.text, Compiler::flags(source.arch), "NVRTC 13.0.88", source.arch);
  return keys;
}

struct Change {
  const char* field;
  std::function<void(Plan&)> apply;
};

Plan base() {
  Plan plan;
  plan.mask = Mask::causal;
  plan.schedule = Schedule::descending;
  return plan;
}

KernelSource small_source() {
  return {"main",   "k_main", "extern \"C\" __global__ void __launch_bounds__(64) k_main(float* x) { x[threadIdx.x] += 1; }\n",
          "sm_90a", 64,       0};
}

/// The key and cubin's hash of a kernel compiled in a child process that `prepare` has changed.
std::string built_in_child(const std::string& result, const std::function<void()>& prepare) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    prepare();
    KernelBuilder builder({.cache_path = {}, .memory_cache_only = true, .warn = {}});
    const auto built = builder.build({small_source()}, "plan");
    std::ofstream(result) << (built ? (*built)[0].report.key + " " + (*built)[0].report.cubin_sha256 : built.error().message);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::ifstream in(result);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace

TEST_CASE("key, report 22: every field of a plan that the kernel is compiled with changes the main kernel's key") {
  const std::string key = keys_of(base()).at("main");
  std::set<std::string> keys{key};
  const std::vector<Change> changes{
      {"dtype", [](Plan& p) { p.dtype = DType::fp16; }},
      {"head_dim",
       [](Plan& p) {
         p.head_dim = 64;
         p.tile_kv = 256;
       }},
      {"mask", [](Plan& p) { p.mask = Mask::full; }},
      {"group", [](Plan& p) { p.group = 4; }},
      {"schedule", [](Plan& p) { p.schedule = Schedule::ascending; }},
      {"accumulate", [](Plan& p) { p.accumulate = Accumulate::atomic; }},
      {"cluster", [](Plan& p) { p.cluster = 2; }},
      {"dq_buffers", [](Plan& p) { p.dq_buffers = 2; }},
      {"static_shape", [](Plan& p) { p.static_shape = StaticShape{1, 4096, 4096, 1}; }},
      {"static batch", [](Plan& p) { p.static_shape = StaticShape{2, 4096, 4096, 1}; }},
      {"static seqlen_q", [](Plan& p) { p.static_shape = StaticShape{1, 4095, 4096, 1}; }},
      {"static seqlen_k", [](Plan& p) { p.static_shape = StaticShape{1, 4096, 4095, 1}; }},
  };
  for (const Change& change : changes) {
    CAPTURE(change.field);
    Plan plan = base();
    change.apply(plan);
    REQUIRE_MESSAGE(plan.validate(), plan.validate().error().message);
    CHECK(keys.insert(keys_of(plan).at("main")).second);
  }
}

TEST_CASE("key: what a launch passes does not, so that plans share kernels") {
  for (const Change& change :
       std::vector<Change>{{"workers", [](Plan& p) { p.workers = 78; }}, {"head_group", [](Plan& p) { p.head_group = 3; }}}) {
    CAPTURE(change.field);
    Plan plan = base();
    change.apply(plan);
    CHECK(keys_of(plan) == keys_of(base()));
  }
}

TEST_CASE(
    "key, reports 20 and 26: the text of every template, every flag, the architecture and the compiler's full version change "
    "it") {
  const KernelSource source = sources_of(base())[0];
  const std::vector<std::string> flags = Compiler::flags(source.arch);
  const std::string toolchain = "NVRTC 13.0.88";
  std::set<std::string> keys{cache::kernel_key(source.text, flags, toolchain, source.arch)};
  const auto differs = [&](const std::string& text, const std::vector<std::string>& with, const std::string& by,
                           const std::string& arch) { return keys.insert(cache::kernel_key(text, with, by, arch)).second; };
  for (std::size_t i = 0; i < flags.size(); ++i) {
    CAPTURE(flags[i]);
    std::vector<std::string> changed = flags, shorter = flags;
    changed[i] += "x";
    shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(i));
    CHECK(differs(source.text, changed, toolchain, source.arch));
    CHECK(differs(source.text, shorter, toolchain, source.arch));
  }
  for (const char* by : {"NVRTC 13.0.48", "NVRTC 13.1.88", "NVRTC 12.0.88", ""})
    CHECK(differs(source.text, flags, by, source.arch));
  for (const char* arch : {"sm_90", "sm_100a", ""}) CHECK(differs(source.text, flags, toolchain, arch));
  // The source holds what it is compiled from whole: no header can change behind its back.
  CHECK(source.text.find("#include") == std::string::npos);
  std::size_t parts = 0;
  for (const EmbeddedFile& file : template_files()) {
    const std::size_t at = source.text.find("// ---- " + std::string(file.path) + " ----\n");
    if (at == std::string::npos) continue;
    ++parts;
    CAPTURE(file.path);
    std::string changed = source.text;
    changed.insert(changed.find('\n', at) + 1, " ");
    CHECK(differs(changed, flags, toolchain, source.arch));
  }
  CHECK(parts > 5);
}

TEST_CASE("key: the templates' hash tells versions of them apart, and not plans") {
  const KernelSource one = sources_of(base())[0];
  Plan other_plan = base();
  other_plan.mask = Mask::full;
  other_plan.tile_kv = 128;
  other_plan.group = 4;
  const KernelSource other = sources_of(other_plan)[0];
  CHECK(one.text != other.text);
  CHECK(template_hash(one) == template_hash(other));
  KernelSource changed = one;
  changed.text += "\n";
  CHECK(template_hash(changed) != template_hash(one));
  CHECK(template_hash(sources_of(base())[1]) != template_hash(one));
  CHECK(template_hash(small_source()).size() == 64);
}

TEST_CASE("key, report 19: paths, locale, folder, environment and time change neither the key nor the cubin") {
  const Result<Compiler> compiler = Compiler::open();
  if (!compiler) {
    MESSAGE("skipped, no NVRTC: ", compiler.error().message);
    return;
  }
  const Folder folder;
  const std::string here = built_in_child(folder.file("here"), [] {});
  REQUIRE_MESSAGE(here.size() == 129, here);
  const std::string there = built_in_child(folder.file("there"), [&] {
    if (chdir(folder.path().c_str()) != 0) _exit(1);
    setenv("HOME", folder.path().c_str(), 1);
    setenv("TMPDIR", folder.path().c_str(), 1);
    setenv("TZ", "Asia/Tokyo", 1);
    setenv("SOURCE_DATE_EPOCH", "86400", 1);
    setenv("USER", "somebody", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    (void)std::setlocale(LC_ALL, "");
    usleep(1'100'000);  // another second
  });
  CHECK(there == here);
}

TEST_CASE("key: a cache file that is copied elsewhere still hits") {
  const Result<Compiler> compiler = Compiler::open();
  if (!compiler) {
    MESSAGE("skipped, no NVRTC: ", compiler.error().message);
    return;
  }
  const Folder folder;
  KernelBuilder first({.cache_path = folder.file("a/cache.db"), .memory_cache_only = false, .warn = {}});
  REQUIRE(first.build({small_source()}, "plan"));
  std::filesystem::create_directories(folder.file("b/c"));
  std::filesystem::copy(folder.file("a/cache.db"), folder.file("b/c/other.db"));
  std::filesystem::remove_all(folder.file("a"));
  KernelBuilder second({.cache_path = folder.file("b/c/other.db"), .memory_cache_only = false, .warn = {}});
  const auto built = second.build({small_source()}, "plan");
  REQUIRE(built);
  CHECK((*built)[0].report.cache_hit);
  CHECK((*built)[0].report.cache_layer == "local");
}

}  // namespace ordo
