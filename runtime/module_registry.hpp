// Loaded modules, shared by the plans that launch the same kernel.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "ordo/error.hpp"
#include "runtime/driver.hpp"
#include "runtime/process.hpp"

namespace ordo {

struct KernelImage;

/// A cubin in the driver, for all contexts. Unloaded when the last of its users goes.
class Module {
 public:
  Module(const Driver& driver, CUlibrary library) : driver_(driver), library_(library) {}
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  ~Module();
  [[nodiscard]] CUlibrary get() const { return library_; }

 private:
  const Driver& driver_;
  CUlibrary library_;
  MadeIn process_;
};

/// Thread-safe.
class ModuleRegistry {
 public:
  /// The module of `image`'s cubin: one that is loaded already, or a new one. Images without a sha256 share nothing.
  Result<std::shared_ptr<Module>> load(const Driver& driver, const KernelImage& image);
  /// Modules that are loaded now.
  [[nodiscard]] std::size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::weak_ptr<Module>> modules_;
};

}  // namespace ordo
