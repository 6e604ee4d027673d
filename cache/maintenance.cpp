// Size, eviction, clean-up and verification of a store.
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cache/sqlite.hpp"
#include "cache/store.hpp"
#include "cache/store_impl.hpp"

namespace ordo::cache {
namespace {

constexpr std::int64_t seconds_a_day = 86400;
constexpr double kept_share = 0.9;  // of the limit, so that not every put evicts

Result<std::int64_t> used_bytes(sqlite3* db) {
  const Result<std::int64_t> pages = query_integer(db, "PRAGMA page_count"), free = query_integer(db, "PRAGMA freelist_count"),
                             size = query_integer(db, "PRAGMA page_size");
  for (const auto* value : {&pages, &free, &size}) {
    if (!*value) return value->error();
  }
  return (*pages - *free) * *size;
}

Result<std::vector<std::string>> keys_of(sqlite3* db, const std::string& sql) {
  Result<Statement> rows = Statement::prepare(db, sql);
  if (!rows) return rows.error();
  std::vector<std::string> keys;
  const Result<void> read = rows->each([&] { keys.push_back(rows->text(0)); });
  if (!read) return read.error();
  return keys;
}

/// Removes entries, in the order of `sql`'s keys, while `more()` asks for it.
template <class More>
Result<std::int64_t> remove_while(Connection& c, const std::string& sql, const More& more) {
  const Result<std::vector<std::string>> keys = keys_of(c.db.get(), sql);
  if (!keys) return keys.error();
  std::int64_t removed = 0;
  for (const std::string& key : *keys) {
    const Result<bool> go_on = more();
    if (!go_on) return go_on.error();
    if (!*go_on) break;
    if (auto ok = c.remove(key); !ok) return ok.error();
    ++removed;
  }
  return removed;
}

Result<std::int64_t> evict_to(Connection& c, std::int64_t bytes) {
  return remove_while(c, "SELECT key FROM kernels ORDER BY used, id", [&]() -> Result<bool> {
    const Result<std::int64_t> used = used_bytes(c.db.get());
    if (!used) return used.error();
    return *used > bytes;
  });
}

/// Keys whose row is not what was stored.
Result<std::vector<std::string>> damaged_keys(Connection& c) {
  Result<std::vector<std::string>> keys = keys_of(c.db.get(), "SELECT key FROM kernels ORDER BY key");
  if (!keys) return keys;
  std::vector<std::string> damaged;
  for (std::string& key : *keys) {
    const Result<bool> intact = c.holds(key);
    if (!intact) return intact.error();
    if (!*intact) damaged.push_back(std::move(key));
  }
  return damaged;
}

Result<Sizes> sizes_of(Connection& c, const std::string& path) {
  Sizes sizes;
  const Result<std::int64_t> entries = query_integer(c.db.get(), "SELECT count(*) FROM kernels");
  if (!entries) return entries.error();
  sizes.entries = *entries;
  const Result<std::int64_t> stored = c.schema >= 2
                                          ? query_integer(c.db.get(), "SELECT coalesce(sum(stored_bytes), 0) FROM kernels")
                                          : query_integer(c.db.get(), "SELECT coalesce(sum(length(data)), 0) FROM blobs");
  if (!stored) return stored.error();
  sizes.stored_bytes = *stored;
  const Result<std::int64_t> used = used_bytes(c.db.get());
  if (!used) return used.error();
  sizes.used_bytes = *used;
  std::error_code absent;  // in memory
  const std::uintmax_t size = std::filesystem::file_size(path, absent);
  sizes.file_bytes = absent ? *used : static_cast<std::int64_t>(size);
  return sizes;
}

/// `damaged` are keys that were found so before the write lock was taken.
Result<void> collect(Connection& c, const GcRequest& request, const std::vector<std::string>& damaged, GcReport& report) {
  for (const std::string& key : damaged) {
    const Result<bool> replaced = c.holds(key);  // by a process that stored it again meanwhile
    if (replaced && *replaced) continue;
    if (auto ok = c.remove(key); !ok) return ok;
    ++report.damaged;
  }
  if (auto ok = execute(c.db.get(), "DELETE FROM blobs WHERE id NOT IN (SELECT blob FROM kernels)"); !ok) return ok;

  const auto always = []() -> Result<bool> { return true; };
  std::vector<std::string> conditions;
  if (request.unused_days > 0)
    conditions.push_back(fmt::format("used < {}", now_seconds() - request.unused_days * seconds_a_day));
  if (!request.keep_toolchain.empty()) {
    std::string quoted;
    for (const char letter : request.keep_toolchain) quoted.append(letter == '\'' ? "''" : std::string(1, letter));
    conditions.push_back(fmt::format("toolchain <> '{}'", quoted));
  }
  for (const std::string& condition : conditions) {
    const Result<std::int64_t> removed = remove_while(c, "SELECT key FROM kernels WHERE " + condition, always);
    if (!removed) return removed.error();
    report.removed += *removed;
  }
  if (request.limit_bytes > 0) {
    const Result<std::int64_t> removed = evict_to(c, request.limit_bytes);
    if (!removed) return removed.error();
    report.removed += *removed;
  }
  return {};
}

/// VACUUM writes the whole file anew, so only where something comes of it.
Result<void> give_back_free_pages(sqlite3* db) {
  const Result<std::int64_t> free = query_integer(db, "PRAGMA freelist_count");
  if (!free) return free.error();
  return *free > 0 ? execute(db, "VACUUM") : Result<void>();
}

}  // namespace

Result<void> evict(Connection& c, std::int64_t limit_bytes) {
  if (limit_bytes <= 0) return {};
  const Result<std::int64_t> used = used_bytes(c.db.get());
  if (!used) return used.error();
  if (*used <= limit_bytes) return {};
  const Result<std::int64_t> removed = evict_to(c, static_cast<std::int64_t>(kept_share * static_cast<double>(limit_bytes)));
  if (!removed) return removed.error();
  return {};
}

Result<Sizes> Store::sizes() const {
  return impl_->run([&](Connection& c) { return sizes_of(c, path()); });
}

Result<std::vector<std::string>> Store::damaged() const {
  return impl_->run([](Connection& c) { return damaged_keys(c); });
}

Result<VerifyReport> Store::verify() const {
  return impl_->run([](Connection& c) -> Result<VerifyReport> {
    VerifyReport report;
    Result<std::vector<std::string>> damaged = damaged_keys(c);
    if (!damaged) return damaged.error();
    report.damaged = *std::move(damaged);
    const Result<std::int64_t> entries = query_integer(c.db.get(), "SELECT count(*) FROM kernels");
    if (!entries) return entries.error();
    report.entries = *entries - static_cast<std::int64_t>(report.damaged.size());
    const Result<std::vector<std::string>> lines = keys_of(c.db.get(), "PRAGMA integrity_check(10)");
    if (!lines) return lines.error();
    for (const std::string& line : *lines) report.structure += (report.structure.empty() ? "" : "; ") + line;
    return report;
  });
}

Result<GcReport> Store::gc(const GcRequest& request) {
  GcReport report;
  Result<Sizes> before = sizes();
  if (!before) return before.error();
  report.before = *before;
  // Reading every row takes seconds where there are many; nobody waits for the write lock meanwhile.
  const Result<std::vector<std::string>> unreadable = damaged();
  if (!unreadable) return unreadable.error();
  if (auto ok = impl_->change([&](Connection& c) { return collect(c, request, *unreadable, report); }); !ok) return ok.error();
  if (auto ok = impl_->run([](Connection& c) { return give_back_free_pages(c.db.get()); }); !ok) return ok.error();
  Result<Sizes> after = sizes();
  if (!after) return after.error();
  report.after = *after;
  return report;
}

}  // namespace ordo::cache
