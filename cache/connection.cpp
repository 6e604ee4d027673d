#include "cache/connection.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <bit>
#include <cstdint>
#include <string_view>

#include "cache/codec.hpp"
#include "cache/damage.hpp"
#include "cache/schema.hpp"
#include "codegen/hash/sha256.hpp"

namespace ordo::cache {
namespace {

constexpr int minimum_sqlite = 3040000;
constexpr int busy_timeout_ms = 5000;
constexpr int largest_value_bytes = 128 << 20;  // of any column: a hostile file must not ask for gigabytes
constexpr std::int64_t sizes_schema = 2;        // the first with templates, flags and stored_bytes

// The columns of an Entry in the order of columns_of().
constexpr std::string_view first_columns =
    "k.key, k.source_key, k.name, k.plan, k.toolchain, k.arch, k.entry, k.registers, k.stack_bytes, k.shared_bytes, k.barriers, "
    "k.spill_bytes, k.compile_ms, k.sha256, k.created, k.used, k.digest, ";

constexpr int column_digest = 16, column_codec = 20, column_data = 21;

/// Covers the metadata, and the bytes through their sha256. Not `used`, which changes, nor what follows from the data.
std::string row_digest(const Entry& e) {
  std::string text;
  for (const std::string* part : {&e.key, &e.source_key, &e.name, &e.plan, &e.toolchain, &e.arch, &e.entry, &e.sha256}) {
    text += fmt::format("{}:{}", part->size(), *part);
  }
  text += fmt::format("{},{},{},{},{},{},{}", e.registers, e.stack_bytes, e.shared_bytes, e.barriers, e.spill_bytes,
                      std::bit_cast<std::uint64_t>(e.compile_ms), e.created);
  // Rows of schema 1 have neither.
  if (!e.templates.empty() || !e.flags.empty())
    text += fmt::format("{}:{}{}:{}", e.templates.size(), e.templates, e.flags.size(), e.flags);
  return sha256_hex(text);
}

/// Of a row of `get` or `list`, unchecked.
Entry columns_of(const Statement& row) {
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
  e.created = row.integer(14);
  e.used = row.integer(15);
  e.templates = row.text(17);
  e.flags = row.text(18);
  e.file_bytes = row.integer(19);
  return e;
}

/// A name that SQLite reads as a URI.
std::string uri_of(const std::string& path, std::string_view query) {
  std::string uri = "file:";
  for (const char c : path) {
    if (c == '%' || c == '?' || c == '#')
      uri += fmt::format("%{:02x}", static_cast<unsigned char>(c));
    else
      uri += c;
  }
  return uri.append(query);
}

Result<Database> open_database(const std::string& path, Access access) {
  sqlite3* raw = nullptr;
  // NOMUTEX: our own mutex is around every use. READWRITE opens a file that cannot be written read-only.
  int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
  std::string name = path;
  if (access == Access::immutable) {
    flags |= SQLITE_OPEN_READONLY | SQLITE_OPEN_URI;
    name = uri_of(path, "?immutable=1");
  } else {
    flags |= SQLITE_OPEN_READWRITE | (access == Access::read_write ? SQLITE_OPEN_CREATE : 0);
  }
  const int code = sqlite3_open_v2(name.c_str(), &raw, flags, nullptr);
  Database db(raw);
  if (code != SQLITE_OK) {
    DamageWatch::note(code);
    return Error{ErrorCode::cache, fmt::format("The cache {} cannot be opened: {} (SQLite {}).", path,
                                               raw == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(raw), code)};
  }
  return db;
}

}  // namespace

std::optional<Entry> metadata_of(const Statement& row) {
  Entry e = columns_of(row);
  if (row.text(column_digest) != row_digest(e)) return std::nullopt;
  return e;
}

std::optional<Entry> entry_of(Row row) {
  if (row.digest != row_digest(row.entry)) return std::nullopt;
  std::optional<std::vector<std::byte>> bytes = decode(row.codec, std::move(row.data));
  if (!bytes || sha256_hex(*bytes) != row.entry.sha256) return std::nullopt;
  row.entry.bytes = *std::move(bytes);
  return std::move(row.entry);
}

Result<std::unique_ptr<Connection>> Connection::open(const std::string& path, Access access) {
  if (sqlite3_libversion_number() < minimum_sqlite) {
    return Error{ErrorCode::cache,
                 fmt::format("SQLite {} is too old for the cache; it needs 3.40 or later.", sqlite3_libversion())};
  }
  auto connection = std::make_unique<Connection>();
  Result<Database> db = open_database(path, access);
  if (!db) return db.error();
  connection->db = *std::move(db);
  sqlite3* raw = connection->db.get();
  sqlite3_busy_timeout(raw, busy_timeout_ms);
  sqlite3_limit(raw, SQLITE_LIMIT_LENGTH, largest_value_bytes);
  connection->writable = access != Access::immutable && sqlite3_db_readonly(raw, "main") == 0;
  // The file may come from anywhere: its schema may not call functions, and every page is checked when read.
  if (auto ok = execute(raw, "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON;"); !ok) return ok.error();
  if (auto ok = connection->prepare_schema(); !ok) return ok.error();
  struct stat file{};
  if (::stat(path.c_str(), &file) == 0) {
    connection->device = file.st_dev;
    connection->inode = file.st_ino;
  }
  // 16 MiB of pages, taken as they are used: the index of 100,000 kernels stays in memory between look-ups (SQLite's own 2 MiB
  // hold a quarter of it). Not before the schema was checked: it reads the file, which might be another program's.
  if (auto ok = execute(raw, "PRAGMA cache_size=-16384"); !ok) return ok.error();
  if (auto ok = connection->prepare_statements(); !ok) return ok.error();
  return connection;
}

Result<void> Connection::prepare_schema() {
  const Result<std::int64_t> version = read_schema(db.get());
  if (!version) return version.error();
  schema = *version;
  if (schema > schema_version()) writable = false;
  if (schema >= schema_version() || !writable) {
    if (schema > 0) return {};  // an older file that cannot be written is read as it is
    return Error{ErrorCode::cache,
                 fmt::format("The cache {} is empty and cannot be written.", sqlite3_db_filename(db.get(), "main"))};
  }
  if (auto ok = migrate(db.get(), schema_version()); !ok) return ok;
  schema = schema_version();
  return {};
}

Result<void> Connection::prepare_statements() {
  struct Wanted {
    Statement* statement;
    std::string sql;
  };
  const std::string columns =
      std::string(first_columns) + (schema >= sizes_schema ? "k.templates, k.flags, k.stored_bytes" : "'', '', 0");
  std::vector<Wanted> all{
      {&get, "SELECT " + columns + ", b.codec, b.data FROM kernels k JOIN blobs b ON b.id = k.blob WHERE k.key = ?1"},
      {&list, "SELECT " + columns + " FROM kernels k ORDER BY k.key"},
      {&newest, "SELECT key, toolchain FROM kernels WHERE source_key = ?1"},
  };
  if (writable) {
    all.push_back({&insert_blob, "INSERT INTO blobs(codec, data) VALUES(?1, ?2)"});
    all.push_back(
        {&insert_kernel,
         "INSERT INTO kernels(key, source_key, name, plan, toolchain, arch, entry, registers, stack_bytes, shared_bytes, "
         "barriers, spill_bytes, compile_ms, sha256, created, used, digest, blob, stored_bytes, templates, flags) "
         "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)"});
    all.push_back({&erase_blob, "DELETE FROM blobs WHERE id IN (SELECT blob FROM kernels WHERE key = ?1)"});
    all.push_back({&erase_kernel, "DELETE FROM kernels WHERE key = ?1"});
    all.push_back({&touch, "UPDATE kernels SET used = ?2 WHERE key = ?1"});
  }
  for (const Wanted& wanted : all) {
    Result<Statement> prepared = Statement::prepare(db.get(), wanted.sql);
    if (!prepared) return prepared.error();
    *wanted.statement = *std::move(prepared);
  }
  return {};
}

Result<std::optional<Row>> Connection::read(const std::string& key) {
  const ResetAtEnd reset_at_end(get);
  const Result<bool> found = get.bind(1, key).step();
  if (!found) return found.error();
  if (!*found) return std::optional<Row>{};
  Row row{columns_of(get), get.text(column_digest), get.integer(column_codec), get.blob(column_data)};
  if (row.entry.key != key) return std::optional<Row>{};
  return std::optional<Row>{std::move(row)};
}

Result<bool> Connection::holds(const std::string& key) {
  Result<std::optional<Row>> row = read(key);
  if (!row) return row.error();
  return *row && entry_of(**std::move(row));
}

Result<void> Connection::remove(const std::string& key) {
  if (auto ok = erase_blob.bind(1, key).run(); !ok) return ok;
  return erase_kernel.bind(1, key).run();
}

Result<void> Connection::write(const Entry& e, const Encoded& encoded) {
  const std::string digest = row_digest(e);
  if (auto ok = insert_blob.bind(1, static_cast<std::int64_t>(encoded.codec)).bind(2, encoded.data).run(); !ok) return ok;
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
      .bind(15, e.created)
      .bind(16, e.used)
      .bind(17, digest)
      .bind(18, std::int64_t{sqlite3_last_insert_rowid(db.get())})
      .bind(19, static_cast<std::int64_t>(encoded.data.size()))
      .bind(20, e.templates)
      .bind(21, e.flags)
      .run();
}

}  // namespace ordo::cache
