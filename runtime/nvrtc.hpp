// Finds and opens NVRTC. Opened rather than linked: a program whose cache is full runs where no NVRTC is installed, one build
// serves every CUDA 12.8+ and 13, and the library that is used can be named in errors and in the cache key.
#pragma once

#include <nvrtc.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ordo/error.hpp"
#include "runtime/compiler.hpp"

namespace ordo {

/// NVRTC's functions, its version, and the architectures it knows (90 for sm_90 and sm_90a).
struct Nvrtc {
  decltype(&::nvrtcVersion) version_of = nullptr;
  decltype(&::nvrtcGetErrorString) error_string = nullptr;
  decltype(&::nvrtcGetNumSupportedArchs) arch_count = nullptr;
  decltype(&::nvrtcGetSupportedArchs) archs_of = nullptr;
  decltype(&::nvrtcCreateProgram) create = nullptr;
  decltype(&::nvrtcDestroyProgram) destroy = nullptr;
  decltype(&::nvrtcCompileProgram) compile = nullptr;
  decltype(&::nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&::nvrtcGetProgramLog) log = nullptr;
  decltype(&::nvrtcGetCUBINSize) cubin_size = nullptr;
  decltype(&::nvrtcGetCUBIN) cubin = nullptr;
  decltype(&::nvrtcGetPTXSize) ptx_size = nullptr;
  decltype(&::nvrtcGetPTX) ptx = nullptr;

  /// nvrtcSetFlowCallback, from CUDA 13.0 on; null before. Spelled out: older headers lack it.
  nvrtcResult (*set_flow_callback)(nvrtcProgram, int (*)(void*, void*), void*) = nullptr;

  ToolchainVersion version;
  std::vector<int> archs;

  [[nodiscard]] bool at_least(int major, int minor) const {
    return version.major > major || (version.major == major && version.minor >= minor);
  }
};

/// What one call of NVRTC's compiler gave.
struct NvrtcOutput {
  bool cancelled = false;  ///< by `stop`
  nvrtcResult result = NVRTC_SUCCESS;
  std::string log;
  std::string ptx;
  std::vector<std::byte> cubin;
};

/// Creates, compiles and destroys one program. Thread-safe. What it made is empty when `result` is not success. `stop`, if there
/// is one, is asked before the compile and, from CUDA 13.0 on, again and again during it; true breaks it off.
NvrtcOutput run_nvrtc(const Nvrtc& nvrtc, const std::string& source, const std::vector<std::string>& flags,
                      const std::function<bool()>& stop = {});

/// Where NVRTC may be. Absent members are unset environment variables.
struct NvrtcPlaces {
  std::optional<std::string> forced;  ///< $ORDO_NVRTC: a file or folder; nothing else is tried
  std::string built_with;             ///< the folder that CMake found
  std::optional<std::string> cuda_home, cuda_path;

  static NvrtcPlaces from_environment();
};

/// The newest libnvrtc in a folder; nullopt when there is none.
std::optional<std::string> newest_nvrtc_in(const std::string& folder);
/// The names that the loader is asked for, newest first.
std::vector<std::string> nvrtc_sonames();
/// The library folders of the toolkits in `places` and in /usr/local/cuda.
std::vector<std::string> toolkit_folders(const NvrtcPlaces& places);

/// Opens the first usable library (at least 12.8, with its builtins) in the order of Compiler::open. A library that was opened
/// stays open for the life of the process, and is probed once. Thread-safe.
Result<std::shared_ptr<const Nvrtc>> open_nvrtc(const NvrtcPlaces& places);

}  // namespace ordo
