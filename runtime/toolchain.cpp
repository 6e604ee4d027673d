#include "runtime/toolchain.hpp"

#include <utility>

#include "runtime/nvrtc_identity.hpp"

namespace ordo {

std::string Toolchain::text() {
  const std::scoped_lock lock(mutex_);
  if (compiler_) return compiler_->version().text();
  if (!known_.empty()) return known_;
  if (const std::optional<std::string> path = locate_nvrtc(NvrtcPlaces::from_environment())) {
    if (const std::optional<std::string> identity = library_identity(*path)) {
      if (const std::optional<std::string> known = layers_.toolchain_of(*identity)) return known_ = *known;
    }
  }
  const Result<Compiler> opened = open();
  return opened ? opened->version().text() : std::string();
}

Result<Compiler> Toolchain::compiler() {
  const std::scoped_lock lock(mutex_);
  return open();
}

Result<Compiler> Toolchain::open() {
  if (compiler_) return *compiler_;
  Result<Compiler> opened = Compiler::open();
  if (!opened) return opened;
  compiler_ = *opened;
  if (const std::optional<std::string> identity = library_identity(opened->version().library))
    news_[*identity] = opened->version().text();
  return opened;
}

std::map<std::string, std::string> Toolchain::take() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(news_, {});
}

}  // namespace ordo
