#include "cli/stores.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

namespace ordo::cli {

Result<cache::Store> open_cache(const std::string& path) {
  const std::optional<std::string> place = path.empty() ? cache::default_path() : path;
  if (!place)
    return Error{ErrorCode::cache, "there is no cache: none of ORDO_CACHE, XDG_CACHE_HOME and HOME is set, and no --cache"};
  std::error_code ignored;
  if (!std::filesystem::exists(*place, ignored)) {
    return Error{ErrorCode::cache, fmt::format("there is no cache file {} yet; ordo compile makes it", *place)};
  }
  return cache::Store::open(*place, {.access = cache::Access::existing});
}

Result<cache::Store> open_other(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return Error{ErrorCode::cache, fmt::format("there is no cache file {}", path)};
  return cache::Store::open(path, {.access = cache::Access::existing});
}

Result<std::vector<cache::Store>> open_layers(const std::string& path) {
  std::vector<cache::Store> stores;
  std::error_code ignored;
  for (const std::string& layer : cache::default_layers()) {
    if (!std::filesystem::exists(layer, ignored)) continue;
    auto store = cache::Store::open(layer, {.access = cache::Access::immutable});
    if (!store) return store.error();
    stores.push_back(*std::move(store));
  }
  const std::optional<std::string> own = path.empty() ? cache::default_path() : path;
  if (own && std::filesystem::exists(*own, ignored)) {
    auto store = open_cache(*own);
    if (!store) return store.error();
    stores.push_back(*std::move(store));
  }
  return stores;
}

}  // namespace ordo::cli
