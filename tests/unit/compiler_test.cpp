#include "runtime/compiler.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "codegen/hash/sha256.hpp"
#include "runtime/compile_log.hpp"
#include "runtime/nvrtc.hpp"
#include "tests/unit/scratch.hpp"

namespace ordo {
namespace {

KernelSource source(std::string text, std::string entry = "k") {
  return {"main", std::move(entry), std::move(text), "sm_90a", 128, 0};
}

/// The machine's NVRTC, or nothing, with a message: then the test has nothing to run.
std::optional<Compiler> compiler() {
  Result<Compiler> opened = Compiler::open();
  if (opened) return *opened;
  MESSAGE("skipped, no NVRTC: ", opened.error().message);
  return std::nullopt;
}

void check_error(const Result<Cubin>& result, ErrorCode code, std::initializer_list<std::string_view> parts) {
  REQUIRE_FALSE(result);
  CHECK(to_string(result.error().code) == to_string(code));
  for (const std::string_view part : parts) {
    CHECK_MESSAGE(result.error().message.find(part) != std::string::npos, "no '", part, "' in: ", result.error().message);
  }
}

constexpr const char* plain_kernel = R"(
extern "C" __global__ void __launch_bounds__(128) k(float* x, int n) {
  __shared__ float s[128];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[127 - threadIdx.x] + n;
})";

constexpr const char* spilling_kernel = R"(
extern "C" __global__ void __launch_bounds__(1024, 2) k(float* p, int n) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; i++) a[i] = p[i * n + threadIdx.x];
  for (int k = 0; k < n; k++) {
#pragma unroll
    for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i * 7 + 3) % 64] + p[k];
  }
#pragma unroll
  for (int i = 0; i < 64; i++) p[i * n + threadIdx.x] = a[i];
})";

// No __launch_bounds__: ptxas then ignores setmaxnreg.
constexpr const char* setmaxnreg_kernel = R"(
extern "C" __global__ void k(float* p) {
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    p[0] = 1;
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    p[1] = 2;
  }
})";

constexpr const char* serialized_wgmma_kernel = R"(
__device__ __forceinline__ void mma(float (&d)[4], unsigned long long a, unsigned long long b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
}
extern "C" __global__ void __launch_bounds__(128) k(float* out, unsigned long long a, unsigned long long b, int n) {
  float d[4] = {0, 0, 0, 0};
  asm volatile("wgmma.fence.sync.aligned;");
  for (int i = 0; i < n; ++i) {
    mma(d, a + i, b);
    asm volatile("wgmma.commit_group.sync.aligned;");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;");
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i];
})";

// Logs as NVRTC 13.0.88 wrote them.
constexpr const char* spill_log = R"(ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'spill' for 'sm_90a'
ptxas info    : Function properties for spill
ptxas         .     880 bytes stack frame, 1304 bytes spill stores, 1316 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 880 bytes cumulative stack size
ptxas info    : Compile time = 39.393 ms
)";

constexpr const char* call_log =
    R"(ptxas info    : (C7519) warpgroup.arrive is injected in around line 33 by compiler to allow use of registers in GMMA in function '_Z4stepRA4_fyy'
ptxas info    : (C7517) warpgroup.wait is injected in around line 35 by compiler to allow use of registers defined by GMMA in function '_Z4stepRA4_fyy'
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to wgmma pipeline crossing function boundary at a function call in the function 'wg'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'wg' for 'sm_90a'
ptxas info    : Function properties for wg
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers, 16 bytes cumulative stack size
ptxas info    : Compile time = 4.338 ms
ptxas info    : Function properties for _Z4stepRA4_fyy
ptxas         .     0 bytes stack frame, 16 bytes spill stores, 12 bytes spill loads
)";

constexpr const char* warning_log = R"(kernel.cu(2): warning #177-D: variable "u" was declared but never referenced
  extern "C" __global__ void k(float*p){ int u; p[0]=1; /* Used 99 registers */ }
                                             ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

ptxas info    : 0 bytes gmem
ptxas info    : Used 9 registers, used 0 barriers
)";

constexpr const char* error_log = R"(kernel.cu(1): error: identifier "undefined_thing" is undefined
  extern "C" __global__ void bad(float* p){ int unused; p[0] = undefined_thing; p[1]=another(3); }
                                                               ^

kernel.cu(1): error: identifier "another" is undefined
kernel.cu(1): warning #177-D: variable "unused" was declared but never referenced

2 errors detected in the compilation of "kernel.cu".
)";

}  // namespace

TEST_CASE("compile log: registers, stack and spills") {
  const CompileLog log = parse_log(spill_log);
  CHECK(log.registers == 32);
  CHECK(log.stack_bytes == 880);
  CHECK(log.spill_store_bytes == 1304);
  CHECK(log.spill_load_bytes == 1316);
  CHECK(log.warnings.empty());
}

TEST_CASE("compile log: spills of called functions count too; advisories are warnings") {
  const CompileLog log = parse_log(call_log);
  CHECK(log.registers == 30);
  CHECK(log.stack_bytes == 16);
  CHECK(log.spill_store_bytes == 24);
  CHECK(log.spill_load_bytes == 16);
  CHECK(log.warnings.size() == 3);
  const std::vector<std::string> broken = broken_rules(log);
  REQUIRE(broken.size() == 1);  // the injected waits are not errors
  CHECK(broken[0].find("C7510") != std::string::npos);
}

TEST_CASE("compile log: front-end warnings, and no number from quoted source") {
  const CompileLog log = parse_log(warning_log);
  CHECK(log.registers == 9);
  REQUIRE(log.warnings.size() == 1);
  CHECK(log.warnings[0].find("#177-D") != std::string::npos);
  CHECK(broken_rules(log).empty());
}

TEST_CASE("compile log: every text of a serialised wgmma or an ignored setmaxnreg breaks a rule, whatever its number") {
  for (const char* line : {
           "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at "
           "entry.",
           "ptxas info    : (C7507) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register requirements.",
           "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient "
           "register "
           "resources for the wgmma pipeline in the function 'k'",
           "ptxas info    : (C7515) Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma "
           "instructions "
           "defining accumulator registers of a wgmma between start and end of the pipeline stage in the function 'k'",
           "ptxas warning : (C7599) Potential Performance Loss: wgmma.mma_async instructions are serialized due to a reason of "
           "tomorrow",
       }) {
    CAPTURE(line);
    CHECK(broken_rules(parse_log(std::string(line) + "\n")).size() == 1);
  }
}

TEST_CASE("compile log: nonsense gives zeros") {
  for (const char* text :
       {"", "\n\n", "Used registers", "ptxas info : Used 99999999999999999999 registers", " bytes stack frame"}) {
    CAPTURE(text);
    const CompileLog log = parse_log(text);
    CHECK(log.registers == 0);
    CHECK(log.stack_bytes == 0);
  }
}

TEST_CASE("compile log: the first errors of a failed compile") {
  CHECK(first_errors(error_log) ==
        "  kernel.cu(1): error: identifier \"undefined_thing\" is undefined\n  kernel.cu(1): error: identifier \"another\" is "
        "undefined");
  CHECK(first_errors(error_log, 1) == "  kernel.cu(1): error: identifier \"undefined_thing\" is undefined\n  and 1 more");
  CHECK(first_errors(
            "ptxas application ptx input, line 23; error   : Unknown modifier '.bogus'\nptxas fatal   : Ptx assembly aborted\n")
            .find("Unknown modifier") != std::string::npos);
  CHECK(first_errors("one\ntwo\nthree\n", 2) == "  two\n  three");
  CHECK(first_errors("").empty());
}

TEST_CASE("compiler, report 34: a plain kernel gives a cubin") {
  const std::optional<Compiler> nvrtc = compiler();
  if (!nvrtc) return;
  CHECK(nvrtc->version().major >= 12);
  CHECK(nvrtc->version().build > 0);
  CHECK(std::filesystem::exists(nvrtc->version().library));
  CHECK(nvrtc->version().text().starts_with("NVRTC 1"));

  const Result<Cubin> cubin = nvrtc->compile(source(plain_kernel));
  REQUIRE_MESSAGE(cubin, cubin.error().message);
  CHECK(cubin->arch == "sm_90a");
  CHECK(cubin->kernel.symbol == "k");
  CHECK(cubin->kernel.static_shared_bytes == 512);
  CHECK(cubin->kernel.max_threads == 128);
  CHECK(cubin->kernel.barriers == 1);
  CHECK(cubin->kernel.registers == parse_log(cubin->log).registers);
  CHECK(cubin->spill_store_bytes == 0);
  CHECK(cubin->warnings.empty());
  CHECK(cubin->sha256 == sha256_hex(cubin->bytes));
  CHECK(cubin->compile_ms > 0);
}

TEST_CASE("compiler: the same source gives the same bytes, on several threads at once too") {
  const std::optional<Compiler> nvrtc = compiler();
  if (!nvrtc) return;
  std::vector<std::string> digests(6);
  std::vector<std::thread> threads;
  threads.reserve(digests.size());
  for (std::string& digest : digests) {
    threads.emplace_back([&] {
      if (const Result<Cubin> cubin = nvrtc->compile(source(plain_kernel))) digest = cubin->sha256;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(digests[0].size() == 64);
  for (const std::string& digest : digests) CHECK(digest == digests[0]);
}

TEST_CASE("compiler: a spill is an error, or a figure when allowed") {
  const std::optional<Compiler> nvrtc = compiler();
  if (!nvrtc) return;
  check_error(nvrtc->compile(source(spilling_kernel)), ErrorCode::compile, {"'main'", "registers spill", "bytes of stores"});
  const Result<Cubin> cubin = nvrtc->compile(source(spilling_kernel), true);
  REQUIRE_MESSAGE(cubin, cubin.error().message);
  CHECK(cubin->spill_store_bytes > 0);
  CHECK(cubin->spill_load_bytes > 0);
  CHECK(cubin->kernel.stack_bytes > 0);
}

TEST_CASE("compiler: an ignored setmaxnreg and a serialised wgmma are errors") {
  const std::optional<Compiler> nvrtc = compiler();
  if (!nvrtc) return;
  check_error(nvrtc->compile(source(setmaxnreg_kernel)), ErrorCode::compile, {"C7508", "setmaxnreg"});
  check_error(nvrtc->compile(source(serialized_wgmma_kernel)), ErrorCode::compile, {"wgmma", "serialized"});
  const Result<Cubin> allowed = nvrtc->compile(source(setmaxnreg_kernel), true);
  REQUIRE(allowed);
  CHECK_FALSE(allowed->warnings.empty());
}

TEST_CASE("compiler: wrong source, wrong entry, wrong PTX, too much shared memory") {
  const std::optional<Compiler> nvrtc = compiler();
  if (!nvrtc) return;
  check_error(nvrtc->compile(source("extern \"C\" __global__ void k(float* p) { p[0] = missing; }")), ErrorCode::compile,
              {"NVRTC 1", "'main'", "kernel.cu(1): error", "\"missing\""});
  check_error(nvrtc->compile(source(plain_kernel, "other")), ErrorCode::compile, {"no kernel of that name", "'k'"});
  check_error(nvrtc->compile(source("extern \"C\" __global__ void k() { asm volatile(\"wgmma.bogus;\"); }")), ErrorCode::compile,
              {".bogus"});
  check_error(nvrtc->compile(source("")), ErrorCode::compile, {"'main'"});
  check_error(nvrtc->compile(source("extern \"C\" __global__ void k(float* p) { __shared__ float s[60000]; s[threadIdx.x] = p[0];"
                                    "__syncthreads(); p[1] = s[p[3] > 0]; }")),
              ErrorCode::compile, {"240000 bytes smem"});
}

TEST_CASE("compiler, report 38: an architecture it does not know") {
  const std::optional<Compiler> nvrtc = compiler();
  if (!nvrtc) return;
  for (const char* arch : {"sm_999", "compute_90", "90", "", "sm_90x"}) {
    CAPTURE(arch);
    KernelSource wrong = source(plain_kernel);
    wrong.arch = arch;
    check_error(nvrtc->compile(wrong), ErrorCode::toolchain, {"does not know the architecture", "sm_90"});
  }
}

TEST_CASE(
    "compiler, reports 20, 69 and 70: flags name the exact architecture, and no precompiled header that others might write") {
  const std::vector<std::string> flags = Compiler::flags("sm_90a");
  CHECK(flags.front() == "--gpu-architecture=sm_90a");
  CHECK(Compiler::flags("sm_90").front() != flags.front());
  for (const std::string& flag : flags) CHECK_MESSAGE(flag.find("pch") == std::string::npos, flag);
}

TEST_CASE("nvrtc: nothing usable where ORDO_NVRTC points names that place and tries no other") {
  const test::Folder folder;
  NvrtcPlaces places;
  places.forced = folder.path().string();
  Result<std::shared_ptr<const Nvrtc>> opened = open_nvrtc(places);
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code == ErrorCode::toolchain);
  CHECK(opened.error().message.find("ORDO_NVRTC=" + folder.path().string()) != std::string::npos);
  CHECK(opened.error().message.find("holds no libnvrtc.so.*") != std::string::npos);

  std::ofstream(folder.file("libnvrtc.so.13")) << "not a library";
  opened = open_nvrtc(places);
  REQUIRE_FALSE(opened);
  CHECK(opened.error().message.find(folder.file("libnvrtc.so.13")) != std::string::npos);

  places.forced = folder.file("missing.so");
  opened = open_nvrtc(places);
  REQUIRE_FALSE(opened);
  CHECK(opened.error().message.find("missing.so") != std::string::npos);
}

TEST_CASE("nvrtc, reports 35 and 36: too old, without builtins, without a build number are three different errors") {
  NvrtcPlaces places;
  places.forced = ORDO_FAKE_NVRTC;
  for (const auto& [mode, parts] : {
           std::pair{"old", std::vector<std::string_view>{"NVRTC is too old", "is NVRTC 12.4", "12.8 or later", ORDO_FAKE_NVRTC}},
           {"no_builtins",
            {"builtins library is missing", "must lie beside", "failed to open libnvrtc-builtins.so.13.0", ORDO_FAKE_NVRTC}},
           {"no_build", {"build number", ORDO_FAKE_NVRTC}},
       }) {
    CAPTURE(mode);
    const test::Environment environment("FAKE_NVRTC", mode);
    const Result<std::shared_ptr<const Nvrtc>> opened = open_nvrtc(places);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().code == ErrorCode::toolchain);
    for (const std::string_view part : parts) {
      CHECK_MESSAGE(opened.error().message.find(part) != std::string::npos, "no '", part, "' in: ", opened.error().message);
    }
  }
}

TEST_CASE("nvrtc: a broken one is passed over for the next place") {
  const Result<std::shared_ptr<const Nvrtc>> real = open_nvrtc(NvrtcPlaces::from_environment());
  if (!real) return;
  const test::Folder folder;
  std::filesystem::create_directories(folder.path() / "lib64");
  std::filesystem::create_symlink(ORDO_FAKE_NVRTC, folder.path() / "lib64" / "libnvrtc.so.13");
  std::filesystem::create_directories(folder.path() / "lib");
  std::filesystem::create_symlink((*real)->version.library, folder.path() / "lib" / "libnvrtc.so.13");
  const test::Environment environment("FAKE_NVRTC", "old");
  NvrtcPlaces places;
  places.built_with = folder.file("lib64");
  places.cuda_home = folder.path().string();
  const Result<std::shared_ptr<const Nvrtc>> opened = open_nvrtc(places);
  REQUIRE_MESSAGE(opened, opened.error().message);
  CHECK((*opened)->version.major >= 12);
  CHECK((*opened)->version.library != ORDO_FAKE_NVRTC);
}

TEST_CASE("nvrtc: one library of a process is probed once") {
  const Result<std::shared_ptr<const Nvrtc>> first = open_nvrtc(NvrtcPlaces::from_environment());
  if (!first) return;
  NvrtcPlaces again;
  again.forced = (*first)->version.library;
  const Result<std::shared_ptr<const Nvrtc>> second = open_nvrtc(again);
  REQUIRE_MESSAGE(second, second.error().message);
  CHECK(second->get() == first->get());
}

}  // namespace ordo
