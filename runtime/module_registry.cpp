#include "runtime/module_registry.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/kernel_set.hpp"

namespace ordo {

Module::~Module() {
  if (!process_.here()) return;  // the parent's
  // The thread may be capturing: in this mode that goes on.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  const bool exchanged = driver_.threadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
  driver_.libraryUnload(library_);  // fails when the process is ending and the driver is gone: no matter
  if (exchanged) driver_.threadExchangeStreamCaptureMode(&mode);
}

Result<std::shared_ptr<Module>> ModuleRegistry::load(const Driver& driver, const KernelImage& image) {
  // A function's dynamic shared memory is set once: users that want another size need a function, and so a module, of their own.
  const std::string key = fmt::format("{} {} {}", image.sha256, image.shared_bytes, static_cast<const void*>(&driver));
  const std::scoped_lock lock(mutex_);
  std::weak_ptr<Module>* known = image.sha256.empty() ? nullptr : &modules_[key];
  if (known != nullptr) {
    if (std::shared_ptr<Module> module = known->lock()) return module;
  }
  CUlibrary library = nullptr;
  const CUresult result = driver.libraryLoadData(&library, image.cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (auto ok = driver.check(result, fmt::format("cuLibraryLoadData of kernel '{}' ({})", image.name, image.arch)); !ok)
    return ok.error();
  auto module = std::make_shared<Module>(driver, library);
  if (known != nullptr) *known = module;
  std::erase_if(modules_, [](const auto& entry) { return entry.second.expired(); });
  return module;
}

std::size_t ModuleRegistry::size() const {
  const std::scoped_lock lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(modules_.begin(), modules_.end(), [](const auto& entry) { return !entry.second.expired(); }));
}

}  // namespace ordo
