#include "cache/layers.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>
#include <utility>

namespace ordo::cache {

namespace fs = std::filesystem;

Layers::Layers(LayersOptions options) : options_(std::move(options)) {
  if (options_.memory_only) return;
  for (const std::vector<std::string>& list : {options_.files, default_layers()}) {
    shipped_.reserve(shipped_.size() + list.size());
    for (const std::string& path : list) shipped_.push_back({path, Access::immutable, std::nullopt, false});
  }
  const std::optional<std::string> path = options_.path.empty() ? default_path() : options_.path;
  if (path) local_ = File{*path, Access::read_write, std::nullopt, false};
}

void Layers::warn(const std::string& cause, const std::string& message) const {
  if (options_.warn) options_.warn(cause, message);
}

std::string Layers::path() const { return local_ ? local_->path : ":memory:"; }

std::vector<std::string> Layers::paths() const {
  std::vector<std::string> all;
  all.reserve(shipped_.size() + 1);
  for (const File& file : shipped_) all.push_back(file.path);
  if (local_) all.push_back(local_->path);
  return all;
}

std::optional<Store> Layers::open(File& file, bool make) {
  {
    const std::scoped_lock lock(mutex_);
    if (file.store || file.tried) return file.store;
  }
  std::error_code ignored;
  const bool own = file.access == Access::read_write;
  if (!make && own && !fs::exists(file.path, ignored)) return std::nullopt;
  StoreOptions options;
  options.access = file.access;
  options.limit_bytes = options_.limit_bytes.value_or(default_limit_bytes());
  if (own) {
    options.quarantined = [warn = options_.warn](const std::string& message) {
      if (warn) warn("cache damaged", message);
    };
  }
  Result<Store> store = Store::open(file.path, std::move(options));
  if (!store)
    warn("cache open " + file.path,
         store.error().message + (own ? " Compiled kernels are kept in memory only." : " It is passed over."));
  const std::scoped_lock lock(mutex_);
  file.tried = true;
  if (store && !file.store) file.store = *std::move(store);  // another thread may have been first
  return file.store;
}

std::optional<Store> Layers::writable(bool make) {
  if (local_) return open(*local_, make);
  if (make && !options_.memory_only) {
    warn("cache open",
         "No place for the kernel cache: none of ORDO_CACHE, XDG_CACHE_HOME and HOME is set. Compiled kernels are kept in memory "
         "only.");
  }
  return std::nullopt;
}

std::optional<Store> Layers::memory(bool make) {
  const std::scoped_lock lock(mutex_);
  if (!memory_ && make) {
    if (Result<Store> store = Store::in_memory()) memory_ = *std::move(store);
  }
  return memory_;
}

std::vector<Layers::Open> Layers::open_for_reading() {
  std::vector<Open> all;
  if (std::optional<Store> store = memory(false)) all.push_back({*std::move(store), "memory"});
  for (File& file : shipped_) {
    if (std::optional<Store> store = open(file, false)) all.push_back({*std::move(store), "shipped"});
  }
  if (std::optional<Store> store = writable(false)) all.push_back({*std::move(store), "local"});
  return all;
}

template <class Look>
std::optional<Layers::Found> Layers::look(const Look& look_in, const Check& check) {
  for (Open& open : open_for_reading()) {
    Result<std::optional<Entry>> entry = look_in(open.store);
    if (!entry) {
      warn("cache read " + open.store.path(), entry.error().message + " The kernel is looked for elsewhere, or compiled.");
      continue;
    }
    if (!*entry) continue;
    const Result<void> usable = check(**entry);
    if (usable) return Found{**std::move(entry), open.layer};
    // Intact, yet of no use: somebody stored what he should not have.
    warn("cache entry", fmt::format("Cache {}: entry {} of kernel '{}' is unusable ({}) and is compiled again.",
                                    open.store.path(), (*entry)->key, (*entry)->name, usable.error().message));
    if (open.layer == std::string_view("shipped")) continue;
    if (const Result<void> erased = open.store.erase((*entry)->key); !erased) warn("cache write", erased.error().message);
  }
  return std::nullopt;
}

std::optional<Layers::Found> Layers::find(const std::string& key, const Check& check) {
  return look([&](const Store& store) { return store.get(key); }, check);
}

std::optional<Layers::Found> Layers::newest(const std::string& source_key, const Check& check) {
  return look([&](const Store& store) { return store.newest(source_key); }, check);
}

std::optional<std::string> Layers::toolchain_of(const std::string& library) {
  for (const Open& open : open_for_reading()) {
    if (Result<std::optional<std::string>> known = open.store.toolchain_of(library); known && *known) return *known;
  }
  return std::nullopt;
}

bool Layers::shares() {
  const std::optional<Store> store = writable(true);
  return store && store->writable() && !failed_;
}

void Layers::apply(const Changes& changes) {
  const bool entries = !changes.entries.empty();
  std::optional<Store> store = writable(entries);
  if (store) {
    const Result<void> stored = store->apply(changes);
    if (stored) return;
    failed_ = failed_ || entries;
    if (entries) warn("cache write", stored.error().message + " Compiled kernels are kept in memory only.");
  }
  if (!entries) return;  // a stamp that cannot be set is nobody's trouble
  if (std::optional<Store> kept = memory(true)) {
    if (const Result<void> stored = kept->apply({.entries = changes.entries}); !stored)
      warn("cache memory", stored.error().message);
  }
}

}  // namespace ordo::cache
