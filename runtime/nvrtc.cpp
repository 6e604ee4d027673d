#include "runtime/nvrtc.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>

namespace ordo {
namespace {

namespace fs = std::filesystem;

constexpr int minimum_major = 12, minimum_minor = 8;
constexpr int newest_soname = 15;  // of those asked for by bare name; a folder is searched for any number

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

/// 13 for "libnvrtc.so.13"; also for "libnvrtc.so.13.0.88". nullopt for other names ("libnvrtc.alt.so.13",
/// "libnvrtc-builtins...").
std::optional<int> soname_major(std::string_view file) {
  constexpr std::string_view prefix = "libnvrtc.so.";
  if (!file.starts_with(prefix)) return std::nullopt;
  file.remove_prefix(prefix.size());
  int major = 0;
  const auto [end, error] = std::from_chars(file.data(), file.data() + file.size(), major);
  if (error != std::errc{} || (end != file.data() + file.size() && *end != '.')) return std::nullopt;
  return major;
}

}  // namespace

std::optional<std::string> newest_nvrtc_in(const std::string& folder) {
  std::optional<std::pair<int, std::string>> newest;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const std::optional<int> major = soname_major(name);
    // Of libnvrtc.so.13 and libnvrtc.so.13.0.88 take the shorter, the one that links normally name.
    if (major && (!newest || *major > newest->first || (*major == newest->first && name.size() < newest->second.size()))) {
      newest = {*major, name};
    }
  }
  if (!newest) return std::nullopt;
  return (fs::path(folder) / newest->second).string();
}

std::vector<std::string> nvrtc_sonames() {
  std::vector<std::string> names;
  for (int major = newest_soname; major >= minimum_major; --major) names.push_back(fmt::format("libnvrtc.so.{}", major));
  return names;
}

std::vector<std::string> toolkit_folders(const NvrtcPlaces& places) {
  std::vector<std::string> folders;
  for (const std::optional<std::string>& root :
       {places.cuda_home, places.cuda_path, std::optional<std::string>("/usr/local/cuda")}) {
    for (const char* folder : {"lib64", "lib", "targets/x86_64-linux/lib"}) {
      if (root) folders.push_back((fs::path(*root) / folder).string());
    }
  }
  return folders;
}

namespace {

/// Tries libraries one after another and remembers why each was no good.
class Search {
 public:
  /// A library by path or bare name.
  bool try_library(const std::string& name);
  /// The newest library of a folder.
  bool try_folder(const fs::path& folder) {
    const std::optional<std::string> library = newest_nvrtc_in(folder.string());
    if (!library) return reject(folder.string(), "holds no libnvrtc.so.*");
    return try_library(*library);
  }
  [[nodiscard]] std::shared_ptr<const Nvrtc> found() const { return found_; }
  [[nodiscard]] Error error() const;

 private:
  bool reject(const std::string& name, const std::string& why) {
    const std::string line = fmt::format("  {}: {}", name, why);
    if (std::find(tried_.begin(), tried_.end(), line) == tried_.end()) tried_.push_back(line);
    return false;
  }
  bool check(void* handle, const std::string& name);

  std::shared_ptr<const Nvrtc> found_;
  std::vector<std::string> tried_;
  std::string too_old_;           ///< the first library that is, with its version
  std::string without_builtins_;  ///< the first library that lacks them
};

template <class Function>
bool load(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

bool load_functions(void* library, Nvrtc& n) {
  (void)load(library, "nvrtcSetFlowCallback", n.set_flow_callback);
  return load(library, "nvrtcVersion", n.version_of) && load(library, "nvrtcGetErrorString", n.error_string) &&
         load(library, "nvrtcGetNumSupportedArchs", n.arch_count) && load(library, "nvrtcGetSupportedArchs", n.archs_of) &&
         load(library, "nvrtcCreateProgram", n.create) && load(library, "nvrtcDestroyProgram", n.destroy) &&
         load(library, "nvrtcCompileProgram", n.compile) && load(library, "nvrtcGetProgramLogSize", n.log_size) &&
         load(library, "nvrtcGetProgramLog", n.log) && load(library, "nvrtcGetCUBINSize", n.cubin_size) &&
         load(library, "nvrtcGetCUBIN", n.cubin) && load(library, "nvrtcGetPTXSize", n.ptx_size) &&
         load(library, "nvrtcGetPTX", n.ptx);
}

/// The file an address comes from, with links resolved.
std::string file_of(const void* address, const std::string& otherwise) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return otherwise;
  std::error_code error;
  const fs::path real = fs::canonical(info.dli_fname, error);
  return error ? info.dli_fname : real.string();
}

/// NVRTC opens libnvrtc-builtins by bare name, which finds it only where the loader happens to look (a toolkit's libnvrtc has no
/// RUNPATH). Opening it first, by path, makes the loader find it already there. Returns its path, or its bare name when it is not
/// beside the library. The handle is kept: closing it would undo this.
std::string preload_builtins(const ToolchainVersion& version) {
  const std::string name = fmt::format("libnvrtc-builtins.so.{}.{}", version.major, version.minor);
  const std::string beside = (fs::path(version.library).parent_path() / name).string();
  return dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr ? beside : name;
}

/// __CUDACC_VER_BUILD__, which nvrtcVersion does not tell, as part of a kernel's name in the PTX. Compiling also proves that the
/// builtins are there. Returns the log's first lines on failure.
std::string probe(Nvrtc& nvrtc) {
  const NvrtcOutput output = run_nvrtc(nvrtc,
                                       "#define JOIN_(a, b) a##b\n#define JOIN(a, b) JOIN_(a, b)\n"
                                       "extern \"C\" __global__ void JOIN(ordo_build_, __CUDACC_VER_BUILD__)() {}\n",
                                       {"--gpu-architecture=compute_90", "--modify-stack-limit=false"});
  if (output.result != NVRTC_SUCCESS) return fmt::format("{}: {}", nvrtc.error_string(output.result), output.log);
  constexpr std::string_view marker = "ordo_build_";
  const std::size_t at = output.ptx.find(marker);
  const char* const end = output.ptx.data() + output.ptx.size();
  if (at == std::string::npos ||
      std::from_chars(output.ptx.data() + at + marker.size(), end, nvrtc.version.build).ec != std::errc{}) {
    return "its build number cannot be read from the PTX it makes";
  }
  return {};
}

bool Search::try_library(const std::string& name) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    std::string_view text = reason == nullptr ? "cannot be opened" : reason;
    if (text.starts_with(name + ": ")) text.remove_prefix(name.size() + 2);
    return reject(name, std::string(text));
  }
  if (check(handle, name)) return true;  // and never closed: NVRTC keeps threads and thread-local state
  dlclose(handle);
  return false;
}

bool Search::check(void* handle, const std::string& name) {
  Nvrtc nvrtc;
  if (!load_functions(handle, nvrtc)) return reject(name, "lacks a function of NVRTC");
  nvrtc.version.library = file_of(reinterpret_cast<const void*>(nvrtc.version_of), name);

  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Nvrtc>> probed;  // by path: several engines of a process share one probe
  const std::scoped_lock lock(mutex);
  if (const auto it = probed.find(nvrtc.version.library); it != probed.end()) {
    found_ = it->second;
    return true;
  }
  if (nvrtc.version_of(&nvrtc.version.major, &nvrtc.version.minor) != NVRTC_SUCCESS)
    return reject(name, "does not tell its version");
  if (!nvrtc.at_least(minimum_major, minimum_minor)) {
    const std::string version = fmt::format("NVRTC {}.{}", nvrtc.version.major, nvrtc.version.minor);
    if (too_old_.empty()) too_old_ = fmt::format("{} is {}", nvrtc.version.library, version);
    return reject(name, fmt::format("{}, too old", version));
  }
  nvrtc.version.builtins = preload_builtins(nvrtc.version);
  if (const std::string failure = probe(nvrtc); !failure.empty()) {
    // Closing a library that has compiled is not safe: one more reference keeps it.
    dlopen(nvrtc.version.library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (failure.find("builtins") != std::string::npos || failure.find("BUILTIN") != std::string::npos) {
      if (without_builtins_.empty()) without_builtins_ = nvrtc.version.library;
    }
    return reject(name, failure);
  }
  int count = 0;
  if (nvrtc.arch_count(&count) == NVRTC_SUCCESS && count > 0) {
    nvrtc.archs.resize(static_cast<std::size_t>(count));
    if (nvrtc.archs_of(nvrtc.archs.data()) != NVRTC_SUCCESS) nvrtc.archs.clear();
  }
  found_ = std::make_shared<const Nvrtc>(std::move(nvrtc));
  probed.emplace(found_->version.library, found_);
  return true;
}

Error Search::error() const {
  const std::string tried = fmt::format("Tried:\n{}", fmt::join(tried_, "\n"));
  constexpr std::string_view advice =
      "Install CUDA 12.8 or later, or NVIDIA's wheel nvidia-cuda-nvrtc, and set ORDO_NVRTC to libnvrtc or its folder if it is in "
      "none of "
      "the usual places.";
  if (!without_builtins_.empty()) {
    return {ErrorCode::toolchain,
            fmt::format("NVRTC's builtins library is missing: it must lie beside {}. Reinstall NVRTC whole.\n{}",
                        without_builtins_, tried)};
  }
  if (!too_old_.empty()) {
    return {ErrorCode::toolchain, fmt::format("NVRTC is too old: {}; ordo needs {}.{} or later. {}\n{}", too_old_, minimum_major,
                                              minimum_minor, advice, tried)};
  }
  return {ErrorCode::toolchain,
          fmt::format("NVRTC (libnvrtc) was not found, and it is needed to compile kernels. {}\n{}", advice, tried)};
}

/// NVRTC's flow callback. Once it has said stop it must keep to it, and an exception must not pass through NVRTC.
struct Stop {
  const std::function<bool()>& stop;
  std::atomic<bool> said{false};

  static int callback(void* self, void*) {
    auto& asked = *static_cast<Stop*>(self);
    try {
      if (asked.stop && !asked.said && asked.stop()) asked.said = true;
    } catch (...) {
      asked.said = true;
    }
    return asked.said ? 1 : 0;
  }
};

}  // namespace

NvrtcOutput run_nvrtc(const Nvrtc& nvrtc, const std::string& source, const std::vector<std::string>& flags,
                      const std::function<bool()>& stop) {
  NvrtcOutput output;
  Stop asked{stop};
  if (Stop::callback(&asked, nullptr) != 0) {
    output.cancelled = true;
    output.result = NVRTC_ERROR_COMPILATION;
    return output;
  }
  nvrtcProgram program = nullptr;
  // The name is constant, so that it cannot reach the cubin through __FILE__.
  output.result = nvrtc.create(&program, source.c_str(), "kernel.cu", 0, nullptr, nullptr);
  if (output.result != NVRTC_SUCCESS) return output;

  std::vector<const char*> arguments;
  arguments.reserve(flags.size());
  for (const std::string& flag : flags) arguments.push_back(flag.c_str());
  if (stop && nvrtc.set_flow_callback != nullptr) (void)nvrtc.set_flow_callback(program, &Stop::callback, &asked);
  output.result = nvrtc.compile(program, static_cast<int>(arguments.size()), arguments.data());

  output.cancelled = asked.said;
  if (output.cancelled) output.result = NVRTC_ERROR_COMPILATION;

  std::size_t size = 0;
  if (nvrtc.log_size(program, &size) == NVRTC_SUCCESS && size > 1) {
    output.log.resize(size);
    if (nvrtc.log(program, output.log.data()) != NVRTC_SUCCESS) output.log.clear();
    while (!output.log.empty() && (output.log.back() == '\0' || output.log.back() == '\n')) output.log.pop_back();
  }
  if (output.result == NVRTC_SUCCESS && nvrtc.cubin_size(program, &size) == NVRTC_SUCCESS && size > 0) {
    output.cubin.resize(size);
    output.result = nvrtc.cubin(program, reinterpret_cast<char*>(output.cubin.data()));
  } else if (output.result == NVRTC_SUCCESS && nvrtc.ptx_size(program, &size) == NVRTC_SUCCESS && size > 0) {
    output.ptx.resize(size);
    output.result = nvrtc.ptx(program, output.ptx.data());
  }
  nvrtc.destroy(&program);
  return output;
}

NvrtcPlaces NvrtcPlaces::from_environment() {
  NvrtcPlaces places;
  places.forced = environment("ORDO_NVRTC");
#ifdef ORDO_NVRTC_DIR
  places.built_with = ORDO_NVRTC_DIR;
#endif
  places.cuda_home = environment("CUDA_HOME");
  places.cuda_path = environment("CUDA_PATH");
  return places;
}

Result<std::shared_ptr<const Nvrtc>> open_nvrtc(const NvrtcPlaces& places) {
  Search search;
  if (places.forced) {
    std::error_code error;
    const bool ok =
        fs::is_directory(*places.forced, error) ? search.try_folder(*places.forced) : search.try_library(*places.forced);
    if (ok) return search.found();
    Error failure = search.error();
    failure.message = fmt::format("ORDO_NVRTC={} names no usable NVRTC. {}", *places.forced, failure.message);
    return failure;
  }
  if (!places.built_with.empty() && search.try_folder(places.built_with)) return search.found();
  for (const std::string& soname : nvrtc_sonames()) {
    if (search.try_library(soname)) return search.found();
  }
  for (const std::string& folder : toolkit_folders(places)) {
    if (search.try_folder(folder)) return search.found();
  }
  return search.error();
}

}  // namespace ordo
