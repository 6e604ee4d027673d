// NVRTC, opened at run time: generated source to cubin, with the log read for registers, spills and warnings.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ordo/error.hpp"
#include "ordo/kernel_source.hpp"
#include "runtime/cubin.hpp"

namespace ordo {

/// Which NVRTC is in use. `build` comes from a probe compile (__CUDACC_VER_BUILD__): nvrtcVersion lacks it.
struct ToolchainVersion {
  int major = 0, minor = 0, build = 0;
  std::string library;   ///< path of libnvrtc
  std::string builtins;  ///< path of libnvrtc-builtins; its bare name where the loader found it, not beside libnvrtc
  [[nodiscard]] ORDO_API std::string text() const;  ///< "NVRTC 13.0.88"
};

/// Compiled bytes with everything known about them.
struct Cubin {
  std::vector<std::byte> bytes;
  std::string sha256;  ///< of bytes, hex
  std::string arch;
  CubinKernel kernel;
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;
  std::vector<std::string> warnings;  ///< ptxas and front-end warning lines
  std::string log;
  double compile_ms = 0;
};

/// Thread-safe: compile() may run on several threads at once.
class ORDO_API Compiler {
 public:
  /// Finds and opens NVRTC: $ORDO_NVRTC (a file or folder; where it is set nothing else is tried), else the first usable (12.8 or
  /// later, with its builtins) of the folder configured at build time, the loader's path, $CUDA_HOME and $CUDA_PATH,
  /// /usr/local/cuda. Takes about 40 ms the first time in a process. Errors (toolchain) name every path tried and say whether
  /// NVRTC is absent, too old or incomplete.
  static Result<Compiler> open();

  [[nodiscard]] const ToolchainVersion& version() const;

  /// The fixed flags for `arch`; everything here is in the cache key. (compile() adds --no-cache where NVRTC knows it, from 12.9
  /// on: that does not change the cubin.)
  [[nodiscard]] static std::vector<std::string> flags(const std::string& arch);

  /// Compiles. A spill, or a warning of ptxas that setmaxnreg is ignored or wgmma serialised (C7508, C7510, C7511 and their kin)
  /// is an error unless `allow_spills`: then they are reported in the Cubin. Errors: toolchain (an architecture NVRTC does not
  /// know, builtins gone), compile (the log's first errors), bad_cubin, cancelled: `stop`, which is asked again and again (by
  /// NVRTC of CUDA 13.0 and later; before that only at the start), said true.
  [[nodiscard]] Result<Cubin> compile(const KernelSource& source, bool allow_spills = false,
                                      const std::function<bool()>& stop = {}) const;

  struct Impl;

 private:
  explicit Compiler(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

/// What ptxas -v and the front end said, from NVRTC's log.
struct CompileLog {
  int registers = 0;
  int stack_bytes = 0;
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;
  std::vector<std::string> warnings;
};
ORDO_API CompileLog parse_log(const std::string& log);

}  // namespace ordo
