// Sources to cubins, through the cache: what is there is taken, what is not is compiled, once on a host, and stored.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ordo/error.hpp"
#include "ordo/kernel_source.hpp"
#include "ordo/ordo.hpp"
#include "ordo/prepare.hpp"

namespace ordo {

struct KernelBuilderOptions {
  std::string cache_path;  ///< empty: cache::default_path()
  bool memory_cache_only = false;
  std::function<void(const std::string&)> warn;  ///< as EngineOptions::warn; may be empty
  std::vector<std::string> cache_layers = {};    ///< read-only files
  std::optional<std::int64_t> cache_limit_bytes = {};
  int compile_jobs = 0;                             ///< see cache::SingleFlightOptions
  std::optional<std::string> lease_folder = {};     ///< likewise; for tests
  std::chrono::milliseconds lease_timeout{30'000};  ///< likewise
  bool allow_spills = false;                        ///< as EngineOptions::allow_spills
};

struct BuiltKernel {
  KernelReport report;
  std::vector<std::byte> cubin;
};

/// Thread-safe. The cache files and NVRTC are opened when they are first needed, not before: where every kernel is in the cache
/// and a layer knows the installed NVRTC by its library's identity, NVRTC is never opened.
///
/// Where NVRTC cannot be opened, a kernel is still served when the cache holds it by any toolchain (the newest of them): a
/// program that is shipped with a full cache needs no NVRTC. Where NVRTC is there, only an entry by that very version and build
/// counts.
///
/// A cache that fails never fails a build: the kernels are compiled and kept in memory, and `warn` hears of it once a cause.
class ORDO_API KernelBuilder {
 public:
  explicit KernelBuilder(KernelBuilderOptions options);

  /// One result a source, in their order. `plan` is stored with the entries, for people. Missing kernels are compiled in
  /// parallel, as the host's turns allow, and stored in one transaction. Errors: toolchain (NVRTC is needed and not usable),
  /// compile, bad_cubin, cancelled
  /// (`cancelled` said so, see PrepareOptions); the first source's when several fail: then those that compiled are stored.
  [[nodiscard]] Result<std::vector<BuiltKernel>> build(const std::vector<KernelSource>& sources, const std::string& plan,
                                                       const std::function<bool()>& cancelled = {});

  [[nodiscard]] CacheCounters counters() const;
  /// Compiles that may run at once on this host.
  [[nodiscard]] int jobs() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace ordo
