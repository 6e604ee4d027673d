#include "cache/store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <string_view>

#include "cache/codec.hpp"
#include "cache/connection.hpp"
#include "cache/sqlite.hpp"
#include "cache/store_impl.hpp"
#include "codegen/hash/sha256.hpp"

namespace ordo::cache {
namespace {

/// {13, 0, 88} for "NVRTC 13.0.88".
std::array<int, 3> version_of(std::string_view toolchain) {
  std::array<int, 3> version{};
  std::size_t at = toolchain.find_first_of("0123456789");
  for (int& part : version) {
    if (at == std::string_view::npos || at >= toolchain.size()) break;
    const auto [end, error] = std::from_chars(toolchain.data() + at, toolchain.data() + toolchain.size(), part);
    if (error != std::errc{}) break;
    at = static_cast<std::size_t>(end - toolchain.data()) + 1;  // past the dot
  }
  return version;
}

std::string toolchain_digest(const std::string& library, const std::string& toolchain) {
  return sha256_hex(fmt::format("{}:{}{}:{}", library.size(), library, toolchain.size(), toolchain));
}

Result<void> check(const Entry& entry) {
  if (entry.key.empty() || entry.bytes.empty()) return Error{ErrorCode::invalid_argument, "A cache entry needs a key and bytes."};
  if (entry.bytes.size() > largest_cubin_bytes) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("Cache entry {} has {} bytes; the most is {}.", entry.key, entry.bytes.size(), largest_cubin_bytes)};
  }
  if (entry.sha256 != sha256_hex(entry.bytes)) {
    return Error{ErrorCode::invalid_argument, fmt::format("The SHA-256 of cache entry {} is not of its bytes.", entry.key)};
  }
  return {};
}

/// An entry ready to be written: compressed before the write lock is taken.
struct Ready {
  Entry entry;  ///< without bytes
  Encoded encoded;
};

Ready make_ready(const Entry& entry, std::int64_t now) {
  Ready ready{entry, encode(entry.bytes)};
  ready.entry.bytes.clear();
  if (ready.entry.created == 0) ready.entry.created = now;
  if (ready.entry.used == 0) ready.entry.used = ready.entry.created;
  return ready;
}

Result<void> add_counters(Connection& c, const std::map<std::string, double>& counters) {
  if (counters.empty()) return {};
  Result<Statement> add = Statement::prepare(
      c.db.get(), "INSERT INTO counters VALUES(?1, ?2) ON CONFLICT(name) DO UPDATE SET value = value + excluded.value");
  if (!add) return add.error();
  for (const auto& [name, value] : counters) {
    if (auto ok = add->bind(1, name).bind(2, value).run(); !ok) return ok;
  }
  return {};
}

Result<void> remember_toolchains(Connection& c, const std::map<std::string, std::string>& toolchains) {
  if (toolchains.empty()) return {};
  Result<Statement> set = Statement::prepare(c.db.get(), "INSERT OR REPLACE INTO toolchains VALUES(?1, ?2, ?3)");
  if (!set) return set.error();
  for (const auto& [library, toolchain] : toolchains) {
    const std::string digest = toolchain_digest(library, toolchain);
    if (auto ok = set->bind(1, library).bind(2, toolchain).bind(3, digest).run(); !ok) return ok;
  }
  return {};
}

}  // namespace

Store::Store(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

const std::string& Store::path() const { return impl_->path; }

Result<Store> Store::open(const std::string& path, StoreOptions options) {
  if (path.empty()) return Error{ErrorCode::cache, "The cache needs the name of a file; an empty one was given."};
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (options.access == Access::read_write && !folder.empty()) {
    std::filesystem::create_directories(folder, error);
    if (error) {
      return Error{ErrorCode::cache, fmt::format("The folder of the cache {} cannot be made: {}.", path, error.message())};
    }
  }
  auto impl = std::make_shared<Impl>(path, std::move(options));
  if (auto opened = impl->run([](Connection&) -> Result<void> { return {}; }); !opened) return opened.error();
  return Store(std::move(impl));
}

Result<Store> Store::in_memory() { return open(":memory:"); }

bool Store::writable() const {
  const Result<bool> answer = impl_->run([](Connection& c) -> Result<bool> { return c.writable; });
  return answer && *answer;
}

Result<std::optional<Entry>> Store::get(const std::string& key) const {
  Result<std::optional<Row>> row = impl_->run([&](Connection& c) { return c.read(key); });
  if (!row) return row.error();
  if (!*row) return std::optional<Entry>{};
  return entry_of(**std::move(row));
}

Result<std::optional<Entry>> Store::newest(const std::string& source_key) const {
  using Found = std::vector<std::pair<std::array<int, 3>, std::string>>;
  Result<Found> found = impl_->run([&](Connection& c) -> Result<Found> {
    Found keys;
    const Result<void> read =
        c.newest.bind(1, source_key).each([&] { keys.emplace_back(version_of(c.newest.text(1)), c.newest.text(0)); });
    if (!read) return read.error();
    return keys;
  });
  if (!found) return found.error();
  std::sort(found->rbegin(), found->rend());
  for (const auto& [version, key] : *found) {
    Result<std::optional<Entry>> entry = get(key);
    if (!entry || (*entry && (*entry)->source_key == source_key)) return entry;
  }
  return std::optional<Entry>{};
}

Result<void> Store::put(const Entry& entry) { return apply({.entries = std::span(&entry, 1)}); }

Result<void> Store::apply(const Changes& changes) {
  const std::int64_t now = now_seconds();
  std::vector<Ready> ready;
  for (const Entry& entry : changes.entries) {
    if (auto ok = check(entry); !ok) return ok;
    // Most often it is there already, stored by another process meanwhile.
    if (const Result<bool> held = impl_->run([&](Connection& c) { return c.holds(entry.key); }); held && *held) continue;
    ready.push_back(make_ready(entry, now));
  }
  if (ready.empty() && changes.used.empty() && changes.counters.empty() && changes.toolchains.empty()) return {};
  return impl_->change([&](Connection& c) -> Result<void> {
    for (const Ready& r : ready) {
      const Result<bool> held = c.holds(r.entry.key);
      if (held && *held) continue;
      if (auto ok = c.remove(r.entry.key); !ok) return ok;
      if (auto ok = c.write(r.entry, r.encoded); !ok) return ok;
    }
    for (const std::string& key : changes.used) {
      if (auto ok = c.touch.bind(1, key).bind(2, now).run(); !ok) return ok;
    }
    if (auto ok = add_counters(c, changes.counters); !ok) return ok;
    if (auto ok = remember_toolchains(c, changes.toolchains); !ok) return ok;
    if (ready.empty()) return {};
    return evict(c, impl_->options.limit_bytes);
  });
}

Result<void> Store::erase(const std::string& key) {
  return impl_->change([&](Connection& c) { return c.remove(key); });
}

Result<std::vector<Entry>> Store::list() const {
  return impl_->run([](Connection& c) -> Result<std::vector<Entry>> {
    std::vector<Entry> entries;
    const Result<void> read = c.list.each([&] {
      if (std::optional<Entry> entry = metadata_of(c.list)) entries.push_back(*std::move(entry));
    });
    if (!read) return read.error();
    return entries;
  });
}

Result<std::map<std::string, std::string>> Store::toolchains() const {
  using Found = std::map<std::string, std::string>;
  return impl_->run([](Connection& c) -> Result<Found> {
    Found found;
    if (c.schema < 2) return found;
    Result<Statement> rows = Statement::prepare(c.db.get(), "SELECT library, toolchain, digest FROM toolchains");
    if (!rows) return rows.error();
    const Result<void> read = rows->each([&] {
      if (rows->text(2) == toolchain_digest(rows->text(0), rows->text(1))) found.emplace(rows->text(0), rows->text(1));
    });
    if (!read) return read.error();
    return found;
  });
}

Result<std::optional<std::string>> Store::toolchain_of(const std::string& library) const {
  Result<std::map<std::string, std::string>> all = toolchains();  // a handful
  if (!all) return all.error();
  const auto it = all->find(library);
  return it == all->end() ? std::nullopt : std::optional(it->second);
}

Result<std::map<std::string, double>> Store::counters() const {
  using Found = std::map<std::string, double>;
  return impl_->run([](Connection& c) -> Result<Found> {
    Found found;
    if (c.schema < 2) return found;
    Result<Statement> rows = Statement::prepare(c.db.get(), "SELECT name, value FROM counters");
    if (!rows) return rows.error();
    const Result<void> read = rows->each([&] { found.emplace(rows->text(0), rows->real(1)); });
    if (!read) return read.error();
    return found;
  });
}

std::string sqlite_version() { return sqlite3_libversion(); }

}  // namespace ordo::cache
