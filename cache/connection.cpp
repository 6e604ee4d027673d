#include "cache/connection.hpp"

#include <fmt/format.h>

#include <bit>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "cache/schema.hpp"
#include "codegen/hash/sha256.hpp"

namespace ordo::cache {
namespace {

constexpr int minimum_sqlite = 3040000;
constexpr int busy_timeout_ms = 5000;
constexpr int largest_value_bytes = 256 << 20;  // of any column: a hostile file must not ask for gigabytes
constexpr std::int64_t codec_plain = 0;

// The columns of an Entry in the order of entry_of().
constexpr std::string_view entry_columns =
    "k.key, k.source_key, k.name, k.plan, k.toolchain, k.arch, k.entry, k.registers, k.stack_bytes, k.shared_bytes, k.barriers, "
    "k.spill_bytes, k.compile_ms, k.sha256, k.created, k.digest";

constexpr int column_created = 14, column_digest = 15, column_codec = 16, column_data = 17;

std::int64_t now_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Covers the metadata, and the bytes through their sha256.
std::string row_digest(const Entry& e, std::int64_t created) {
  std::string text;
  for (const std::string* part : {&e.key, &e.source_key, &e.name, &e.plan, &e.toolchain, &e.arch, &e.entry, &e.sha256}) {
    text += fmt::format("{}:{}", part->size(), *part);
  }
  text += fmt::format("{},{},{},{},{},{},{}", e.registers, e.stack_bytes, e.shared_bytes, e.barriers, e.spill_bytes,
                      std::bit_cast<std::uint64_t>(e.compile_ms), created);
  return sha256_hex(text);
}

}  // namespace

std::optional<Entry> entry_of(const Statement& row) {
  Entry e;
  e.key = row.text(0);
  e.source_key = row.text(1);
  e.name = row.text(2);
  e.plan = row.text(3);
  e.toolchain = row.text(4);
  e.arch = row.text(5);
  e.entry = row.text(6);
  e.registers = static_cast<int>(row.integer(7));
  e.stack_bytes = static_cast<int>(row.integer(8));
  e.shared_bytes = static_cast<int>(row.integer(9));
  e.barriers = static_cast<int>(row.integer(10));
  e.spill_bytes = static_cast<int>(row.integer(11));
  e.compile_ms = row.real(12);
  e.sha256 = row.text(13);
  if (row.text(column_digest) != row_digest(e, row.integer(column_created))) return std::nullopt;
  return e;
}

Result<std::unique_ptr<Connection>> Connection::open(const std::string& path) {
  if (sqlite3_libversion_number() < minimum_sqlite) {
    return Error{ErrorCode::cache,
                 fmt::format("SQLite {} is too old for the cache; it needs 3.40 or later.", sqlite3_libversion())};
  }
  auto connection = std::make_unique<Connection>();
  sqlite3* raw = nullptr;
  // NOMUTEX: our own mutex is around every use. READWRITE opens a file that cannot be written read-only.
  const int code = sqlite3_open_v2(
      path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, nullptr);
  connection->db.reset(raw);
  if (code != SQLITE_OK) {
    return Error{ErrorCode::cache, fmt::format("The cache {} cannot be opened: {} (SQLite {}).", path,
                                               raw == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(raw), code)};
  }
  sqlite3_busy_timeout(raw, busy_timeout_ms);
  sqlite3_limit(raw, SQLITE_LIMIT_LENGTH, largest_value_bytes);
  connection->writable = sqlite3_db_readonly(raw, "main") == 0;
  // The file may come from anywhere: its schema may not call functions, and every page is checked when read.
  if (auto ok = execute(raw, "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON;"); !ok) return ok.error();
  if (auto ok = connection->prepare_schema(); !ok) return ok.error();
  if (auto ok = connection->prepare_statements(); !ok) return ok.error();
  return connection;
}

Result<void> Connection::prepare_schema() {
  const Result<std::int64_t> version = read_schema(db.get());
  if (!version) return version.error();
  if (*version > schema_version()) writable = false;
  if (*version >= schema_version() || (*version > 0 && !writable))
    return {};  // an older file that cannot be written is read as it is
  return migrate(db.get(), schema_version());
}

Result<void> Connection::prepare_statements() {
  struct Wanted {
    Statement* statement;
    std::string sql;
  };
  const std::string columns(entry_columns);
  for (const Wanted& wanted : {
           Wanted{&get, "SELECT " + columns + ", b.codec, b.data FROM kernels k JOIN blobs b ON b.id = k.blob WHERE k.key = ?1"},
           Wanted{&list, "SELECT " + columns + " FROM kernels k ORDER BY k.key"},
           Wanted{&newest, "SELECT key, toolchain FROM kernels WHERE source_key = ?1"},
           Wanted{&insert_blob, "INSERT INTO blobs(codec, data) VALUES(?1, ?2)"},
           Wanted{&insert_kernel,
                  "INSERT INTO kernels(key, source_key, name, plan, toolchain, arch, entry, registers, stack_bytes, "
                  "shared_bytes, barriers, "
                  "spill_bytes, compile_ms, sha256, created, used, digest, blob, stored_bytes) "
                  "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?15, ?16, ?17, ?18)"},
           Wanted{&erase_blob, "DELETE FROM blobs WHERE id IN (SELECT blob FROM kernels WHERE key = ?1)"},
           Wanted{&erase_kernel, "DELETE FROM kernels WHERE key = ?1"},
       }) {
    Result<Statement> prepared = Statement::prepare(db.get(), wanted.sql);
    if (!prepared) return prepared.error();
    *wanted.statement = *std::move(prepared);
  }
  return {};
}

Result<std::optional<Entry>> Connection::read(const std::string& key) {
  const ResetAtEnd reset_at_end(get);
  const Result<bool> row = get.bind(1, key).step();
  if (!row) return row.error();
  if (!*row || get.integer(column_codec) != codec_plain) return std::optional<Entry>{};
  std::optional<Entry> entry = entry_of(get);
  if (entry) entry->bytes = get.blob(column_data);
  if (entry && (entry->key != key || sha256_hex(entry->bytes) != entry->sha256)) entry.reset();
  return entry;
}

Result<void> Connection::remove(const std::string& key) {
  if (auto ok = erase_blob.bind(1, key).run(); !ok) return ok;
  return erase_kernel.bind(1, key).run();
}

Result<void> Connection::write(const Entry& e) {
  const std::int64_t created = now_seconds();
  const std::string digest = row_digest(e, created);
  if (auto ok = insert_blob.bind(1, codec_plain).bind(2, e.bytes).run(); !ok) return ok;
  return insert_kernel.bind(1, e.key)
      .bind(2, e.source_key)
      .bind(3, e.name)
      .bind(4, e.plan)
      .bind(5, e.toolchain)
      .bind(6, e.arch)
      .bind(7, e.entry)
      .bind(8, std::int64_t{e.registers})
      .bind(9, std::int64_t{e.stack_bytes})
      .bind(10, std::int64_t{e.shared_bytes})
      .bind(11, std::int64_t{e.barriers})
      .bind(12, std::int64_t{e.spill_bytes})
      .bind(13, e.compile_ms)
      .bind(14, e.sha256)
      .bind(15, created)
      .bind(16, digest)
      .bind(17, std::int64_t{sqlite3_last_insert_rowid(db.get())})
      .bind(18, static_cast<std::int64_t>(e.bytes.size()))
      .run();
}

}  // namespace ordo::cache
