// The NVRTC of this process: which it is, known from a cache file where possible, and itself once it must be opened.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "cache/layers.hpp"
#include "runtime/compiler.hpp"

namespace ordo {

/// Thread-safe.
class Toolchain {
 public:
  explicit Toolchain(cache::Layers& layers) : layers_(layers) {}

  /// "NVRTC 13.0.88" of the library that would be opened, if a layer of the cache knows it by its identity; else of the one that
  /// is opened for this; empty when there is none.
  std::string text();

  /// Opens NVRTC. A failure is not remembered: NVRTC may be installed meanwhile.
  Result<Compiler> compiler();

  /// What is to be remembered of the library that was opened: identity -> text. Once.
  std::map<std::string, std::string> take();

 private:
  Result<Compiler> open();  ///< with the lock held

  cache::Layers& layers_;
  std::mutex mutex_;
  std::optional<Compiler> compiler_;
  std::string known_;  ///< by its identity
  std::map<std::string, std::string> news_;
};

}  // namespace ordo
