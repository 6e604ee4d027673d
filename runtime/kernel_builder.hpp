// Sources to cubins, through the cache: what is there is taken, what is not is compiled and stored.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ordo/error.hpp"
#include "ordo/kernel_source.hpp"
#include "ordo/ordo.hpp"

namespace ordo {

struct KernelBuilderOptions {
  std::string cache_path;  ///< empty: cache::default_path()
  bool memory_cache_only = false;
  std::function<void(const std::string&)> warn;  ///< as EngineOptions::warn; may be empty
  bool allow_spills = false;                     ///< as EngineOptions::allow_spills
};

struct BuiltKernel {
  KernelReport report;
  std::vector<std::byte> cubin;
};

/// Thread-safe. The cache file and NVRTC are opened when they are first needed, not before.
///
/// Where NVRTC cannot be opened, a kernel is still served when the cache holds it by any toolchain (the newest of them): a
/// program that is shipped with a full cache needs no NVRTC. Where NVRTC is there, only an entry by that very version and build
/// counts.
///
/// A cache that fails never fails a build: the kernels are compiled and kept in memory, and `warn` hears of it once a cause.
class ORDO_API KernelBuilder {
 public:
  explicit KernelBuilder(KernelBuilderOptions options);

  /// One result a source, in their order. `plan` is stored with the entries, for people. Missing kernels are compiled on two
  /// threads. Errors: toolchain (NVRTC is needed and not usable), compile, bad_cubin; the first source's when several fail.
  [[nodiscard]] Result<std::vector<BuiltKernel>> build(const std::vector<KernelSource>& sources, const std::string& plan);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace ordo
