#include "cache/sqlite.hpp"

#include <fmt/format.h>

#include <utility>

#include "cache/damage.hpp"

namespace ordo::cache {

Error sqlite_error(sqlite3* db, int code, std::string_view what) {
  DamageWatch::note(code);
  const char* file = db == nullptr ? nullptr : sqlite3_db_filename(db, "main");
  const char* text = db == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(db);
  return {ErrorCode::cache, fmt::format("Cache {}: {} failed: {} (SQLite {}).",
                                        file == nullptr || *file == '\0' ? ":memory:" : file, what, text, code)};
}

Result<Statement> Statement::prepare(sqlite3* db, std::string_view sql) {
  sqlite3_stmt* raw = nullptr;
  const int code = sqlite3_prepare_v3(db, sql.data(), static_cast<int>(sql.size()), SQLITE_PREPARE_PERSISTENT, &raw, nullptr);
  Statement statement;
  statement.statement_.reset(raw);
  if (code != SQLITE_OK) return sqlite_error(db, code, fmt::format("preparing '{}'", sql));
  return statement;
}

// A bind can fail only by a wrong index or a value over SQLite's limit; the step that follows then reports it (NOT NULL).

Statement& Statement::bind(int index, std::string_view text) {
  sqlite3_bind_text64(statement_.get(), index, text.data(), text.size(), SQLITE_STATIC, SQLITE_UTF8);
  return *this;
}

Statement& Statement::bind(int index, std::span<const std::byte> blob) {
  sqlite3_bind_blob64(statement_.get(), index, blob.data(), blob.size(), SQLITE_STATIC);
  return *this;
}

Statement& Statement::bind(int index, std::int64_t value) {
  sqlite3_bind_int64(statement_.get(), index, value);
  return *this;
}

Statement& Statement::bind(int index, double value) {
  sqlite3_bind_double(statement_.get(), index, value);
  return *this;
}

Result<bool> Statement::step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  sqlite3* db = sqlite3_db_handle(statement_.get());
  return sqlite_error(db, code, fmt::format("'{}'", sqlite3_sql(statement_.get())));
}

Result<void> Statement::run() {
  return each([] {});
}

void Statement::reset() {
  sqlite3_reset(statement_.get());
  sqlite3_clear_bindings(statement_.get());
}

std::string Statement::text(int column) const {
  const unsigned char* data = sqlite3_column_text(statement_.get(), column);
  const int size = sqlite3_column_bytes(statement_.get(), column);
  if (data == nullptr || size <= 0) return {};
  return {reinterpret_cast<const char*>(data), static_cast<std::size_t>(size)};
}

std::int64_t Statement::integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }

double Statement::real(int column) const { return sqlite3_column_double(statement_.get(), column); }

std::vector<std::byte> Statement::blob(int column) const {
  const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(statement_.get(), column));
  const int size = sqlite3_column_bytes(statement_.get(), column);
  if (data == nullptr || size <= 0) return {};
  return {data, data + size};
}

Result<void> execute(sqlite3* db, const char* sql) {
  const int code = sqlite3_exec(db, sql, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return sqlite_error(db, code, fmt::format("'{}'", sql));
  return {};
}

Result<std::int64_t> query_integer(sqlite3* db, const char* sql) {
  Result<Statement> statement = Statement::prepare(db, sql);
  if (!statement) return statement.error();
  const Result<bool> row = statement->step();
  if (!row) return row.error();
  return *row ? statement->integer(0) : 0;
}

Result<Transaction> Transaction::begin(sqlite3* db) {
  if (Result<void> ok = execute(db, "BEGIN IMMEDIATE"); !ok) return ok.error();
  return Transaction(db);
}

Result<Transaction> Transaction::begin_read(sqlite3* db) {
  if (Result<void> ok = execute(db, "BEGIN"); !ok) return ok.error();
  return Transaction(db);
}

Transaction::~Transaction() {
  if (db_ != nullptr)
    sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);  // SQLite may have rolled back already: no error to anybody
}

Result<void> Transaction::commit() {
  if (Result<void> ok = execute(db_, "COMMIT"); !ok) return ok;
  db_ = nullptr;
  return {};
}

}  // namespace ordo::cache
