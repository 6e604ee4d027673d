// The compiled kernels of one plan, and their loaded form in each context that launches them.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ordo/error.hpp"
#include "runtime/driver.hpp"
#include "runtime/module_registry.hpp"

namespace ordo {

/// A compiled kernel before any device is involved.
struct KernelImage {
  std::string name;      ///< "main", "preprocess", ...
  std::string entry;     ///< symbol in the cubin
  std::string arch;      ///< "sm_90a"
  int threads = 0;       ///< a block
  int shared_bytes = 0;  ///< dynamic, a block
  int cluster = 1;       ///< CTAs a cluster
  std::vector<std::byte> cubin;
  std::string sha256 = {};  ///< of cubin: images of one cubin share its module; empty: shares with none
};

/// A kernel in one context, its dynamic shared memory allowed.
struct LoadedKernel {
  std::string name;
  CUfunction function = nullptr;
  int resident_clusters = 0;  ///< clusters (CTAs when cluster == 1) that an idle device holds at once
};

struct LoadedKernels {
  const Driver* driver = nullptr;
  CUdevice device = 0;
  int sm_count = 0;
  std::vector<LoadedKernel> kernels;  ///< in the order of the images

  /// The kernel of that name; null when the plan has none.
  [[nodiscard]] const LoadedKernel* find(std::string_view name) const;
};

/// Thread-safe. Nothing is loaded, and no driver needed, until the first load().
class KernelSet {
 public:
  /// `driver` is for tests; null is the machine's own. `modules` is what other sets share modules through; null: a registry of
  /// its own.
  explicit KernelSet(std::vector<KernelImage> images, const Driver* driver = nullptr,
                     std::shared_ptr<ModuleRegistry> modules = nullptr);
  KernelSet(KernelSet&&) noexcept;
  KernelSet& operator=(KernelSet&&) = delete;
  /// Unloads what no other set uses. No launch may be in flight, and no graph that holds one may be replayed later.
  ~KernelSet();

  [[nodiscard]] const std::vector<KernelImage>& images() const;

  /// The kernels in the current context: loaded at the first call in it, found in well under a microsecond afterwards. They live
  /// as long as the set. `stream` is where they will be launched; loading is refused while it captures, since that would break
  /// the capture. Errors: no_device (no driver), invalid_argument (no current context), not_prepared (capture), unsupported (a
  /// device of another architecture, or with too little shared memory), driver.
  [[nodiscard]] Result<const LoadedKernels*> load(CUstream stream) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ordo
