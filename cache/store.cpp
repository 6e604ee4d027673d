#include "cache/store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <filesystem>
#include <mutex>
#include <string_view>

#include "cache/connection.hpp"
#include "cache/sqlite.hpp"
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

}  // namespace

struct Store::Impl {
  std::string path;
  /// Replaced only in the child of a fork, where the parent's connection is left alone: closing it would drop the parent's locks.
  std::atomic<Connection*> current{nullptr};

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    const Connection* connection = current.load();
    if (connection != nullptr && connection->process == getpid()) delete connection;
  }

  Result<Connection*> connection() {
    Connection* seen = current.load();
    if (seen != nullptr && seen->process == getpid()) return seen;
    Result<std::unique_ptr<Connection>> fresh = Connection::open(path);
    if (!fresh) return fresh.error();
    if (current.compare_exchange_strong(seen, fresh->get())) return fresh->release();
    return seen;  // another thread was first
  }

  /// Runs `body(connection)` inside a write transaction.
  template <class Body>
  Result<void> change(Body body) {
    const Result<Connection*> c = connection();
    if (!c) return c.error();
    const std::scoped_lock lock((*c)->mutex);
    if (!(*c)->writable) {
      return Error{
          ErrorCode::cache,
          fmt::format("The cache {} is read-only: its file or folder cannot be written, or a newer ordo made it.", path)};
    }
    Result<Transaction> transaction = Transaction::begin((*c)->db.get());
    if (!transaction) return transaction.error();
    if (Result<void> ok = body(**c); !ok) return ok;
    return transaction->commit();
  }
};

Store::Store(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

const std::string& Store::path() const { return impl_->path; }

Result<Store> Store::open(const std::string& path) {
  if (path.empty()) return Error{ErrorCode::cache, "The cache needs the name of a file; an empty one was given."};
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
      return Error{ErrorCode::cache, fmt::format("The folder of the cache {} cannot be made: {}.", path, error.message())};
    }
  }
  auto impl = std::make_shared<Impl>();
  impl->path = path;
  if (const Result<Connection*> connection = impl->connection(); !connection) return connection.error();
  return Store(std::move(impl));
}

Result<Store> Store::in_memory() { return open(":memory:"); }

Result<std::optional<Entry>> Store::get(const std::string& key) const {
  const Result<Connection*> c = impl_->connection();
  if (!c) return c.error();
  const std::scoped_lock lock((*c)->mutex);
  return (*c)->read(key);
}

Result<std::optional<Entry>> Store::newest(const std::string& source_key) const {
  std::vector<std::pair<std::array<int, 3>, std::string>> found;
  {
    const Result<Connection*> c = impl_->connection();
    if (!c) return c.error();
    const std::scoped_lock lock((*c)->mutex);
    Statement& rows = (*c)->newest;
    const ResetAtEnd reset_at_end(rows);
    rows.bind(1, source_key);
    for (;;) {
      const Result<bool> row = rows.step();
      if (!row) return row.error();
      if (!*row) break;
      found.emplace_back(version_of(rows.text(1)), rows.text(0));
    }
  }
  std::sort(found.rbegin(), found.rend());
  for (const auto& [version, key] : found) {
    Result<std::optional<Entry>> entry = get(key);
    if (!entry || (*entry && (*entry)->source_key == source_key)) return entry;
  }
  return std::optional<Entry>{};
}

Result<void> Store::put(const Entry& entry) {
  if (entry.key.empty() || entry.bytes.empty()) return Error{ErrorCode::invalid_argument, "A cache entry needs a key and bytes."};
  if (entry.sha256 != sha256_hex(entry.bytes)) {
    return Error{ErrorCode::invalid_argument, fmt::format("The SHA-256 of cache entry {} is not of its bytes.", entry.key)};
  }
  // Most often it is there already, stored by another process meanwhile: then nothing is written, nor is the write lock taken.
  if (const Result<std::optional<Entry>> existing = get(entry.key); existing && *existing) return {};
  return impl_->change([&](Connection& c) -> Result<void> {
    const Result<std::optional<Entry>> existing = c.read(entry.key);
    if (existing && *existing) return {};
    if (auto ok = c.remove(entry.key); !ok) return ok;
    return c.write(entry);
  });
}

Result<void> Store::erase(const std::string& key) {
  return impl_->change([&](Connection& c) { return c.remove(key); });
}

Result<std::vector<Entry>> Store::list() const {
  const Result<Connection*> c = impl_->connection();
  if (!c) return c.error();
  const std::scoped_lock lock((*c)->mutex);
  Statement& rows = (*c)->list;
  const ResetAtEnd reset_at_end(rows);
  std::vector<Entry> entries;
  for (;;) {
    const Result<bool> row = rows.step();
    if (!row) return row.error();
    if (!*row) return entries;
    if (std::optional<Entry> entry = entry_of(rows)) entries.push_back(*std::move(entry));
  }
}

std::string sqlite_version() { return sqlite3_libversion(); }

}  // namespace ordo::cache
