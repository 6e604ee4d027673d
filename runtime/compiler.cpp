#include "runtime/compiler.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>

#include "codegen/hash/sha256.hpp"
#include "runtime/arch.hpp"
#include "runtime/compile_log.hpp"
#include "runtime/nvrtc.hpp"

namespace ordo {
namespace {

Result<void> check_arch(const Nvrtc& nvrtc, const std::string& arch) {
  const std::optional<int> number = arch_number(arch);
  if (number && std::find(nvrtc.archs.begin(), nvrtc.archs.end(), *number) != nvrtc.archs.end()) return {};
  return Error{ErrorCode::toolchain,
               fmt::format("{} ({}) does not know the architecture '{}'. It knows sm_{}.", nvrtc.version.text(),
                           nvrtc.version.library, arch, fmt::join(nvrtc.archs, ", sm_"))};
}

/// What no kernel may say. An empty string is a clean log.
std::string violations(const CompileLog& log) {
  std::string text;
  if (log.spill_store_bytes != 0 || log.spill_load_bytes != 0) {
    text = fmt::format("  registers spill: {} bytes of stores, {} bytes of loads", log.spill_store_bytes, log.spill_load_bytes);
  }
  for (const std::string& line : broken_rules(log)) text.append(text.empty() ? "  " : "\n  ").append(line);
  return text;
}

}  // namespace

struct Compiler::Impl {
  std::shared_ptr<const Nvrtc> nvrtc;
};

Compiler::Compiler(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

std::string ToolchainVersion::text() const { return fmt::format("NVRTC {}.{}.{}", major, minor, build); }

Result<Compiler> Compiler::open() {
  Result<std::shared_ptr<const Nvrtc>> nvrtc = open_nvrtc(NvrtcPlaces::from_environment());
  if (!nvrtc) return nvrtc.error();
  return Compiler(std::make_shared<const Impl>(Impl{*std::move(nvrtc)}));
}

const ToolchainVersion& Compiler::version() const { return impl_->nvrtc->version; }

std::vector<std::string> Compiler::flags(const std::string& arch) {
  return {
      "--gpu-architecture=" + arch,
      "--std=c++20",
      "--device-as-default-execution-space",  // the templates' constexpr functions (layouts, barriers) bear no __device__
      "--fmad=false",                // contraction is spelled out in the source, so that another NVRTC gives the same bits
      "--modify-stack-limit=false",  // by default NVRTC raises the stack limit of the whole process
      "--ptxas-options=-v",          // registers and spills in the log; changes the cubin's bytes, so it is always on
  };
}

Result<Cubin> Compiler::compile(const KernelSource& source, bool allow_spills, const std::function<bool()>& stop) const {
  const Nvrtc& nvrtc = *impl_->nvrtc;
  if (Result<void> known = check_arch(nvrtc, source.arch); !known) return known.error();
  const std::string what = fmt::format("kernel '{}' ({}, {}, {})", source.name, source.entry, source.arch, nvrtc.version.text());

  std::vector<std::string> all_flags = flags(source.arch);
  // NVRTC's own cache came with 12.9; a hit there leaves ptxas' output out of the log. Not in the key: it does not change the
  // cubin.
  if (nvrtc.at_least(12, 9)) all_flags.emplace_back("--no-cache");

  const auto start = std::chrono::steady_clock::now();
  NvrtcOutput output = run_nvrtc(nvrtc, source.text, all_flags, stop);
  Cubin cubin;
  cubin.compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  if (output.cancelled) return Error{ErrorCode::cancelled, fmt::format("The compile of {} was cancelled by the caller.", what)};
  if (output.result == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE) {
    return Error{ErrorCode::toolchain,
                 fmt::format("{} cannot be compiled: NVRTC's builtins library {} is missing or damaged.\n{}", what,
                             nvrtc.version.builtins, first_errors(output.log))};
  }
  if (output.result != NVRTC_SUCCESS) {
    return Error{ErrorCode::compile,
                 fmt::format("NVRTC refused {} with {}:\n{}", what, nvrtc.error_string(output.result), first_errors(output.log))};
  }

  const CompileLog log = parse_log(output.log);
  if (log.registers == 0) {
    return Error{ErrorCode::compile, fmt::format("The log of {} states no registers, so spills cannot be excluded:\n{}", what,
                                                 first_errors(output.log))};
  }
  if (const std::string broken = violations(log); !broken.empty() && !allow_spills) {
    return Error{ErrorCode::compile, fmt::format("The compiled {} breaks a rule for kernels:\n{}", what, broken)};
  }
  Result<CubinInfo> info = read_cubin(output.cubin);
  if (!info) return Error{info.error().code, fmt::format("NVRTC's output for {}: {}", what, info.error().message)};
  const auto kernel =
      std::find_if(info->kernels.begin(), info->kernels.end(), [&](const CubinKernel& k) { return k.symbol == source.entry; });
  if (kernel == info->kernels.end()) {
    return Error{ErrorCode::compile, fmt::format("The source of {} defines no kernel of that name (it defines '{}').", what,
                                                 info->kernels[0].symbol)};
  }

  cubin.bytes = std::move(output.cubin);
  cubin.sha256 = sha256_hex(cubin.bytes);
  cubin.arch = source.arch;
  cubin.kernel = *kernel;
  cubin.spill_store_bytes = log.spill_store_bytes;
  cubin.spill_load_bytes = log.spill_load_bytes;
  cubin.warnings = log.warnings;
  cubin.log = std::move(output.log);
  return cubin;
}

}  // namespace ordo
