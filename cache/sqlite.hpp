// SQLite's C interface as far as the cache needs it, with errors as values and nothing left open.
#pragma once

#include <sqlite3.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ordo/error.hpp"

namespace ordo::cache {

/// ErrorCode::cache with the file, what was being done, and SQLite's code and text.
Error sqlite_error(sqlite3* db, int code, std::string_view what);

/// A prepared statement, used again and again. Not thread-safe.
class Statement {
 public:
  Statement() = default;
  static Result<Statement> prepare(sqlite3* db, std::string_view sql);

  /// Parameters count from 1. What is bound must live until reset().
  Statement& bind(int index, std::string_view text);
  Statement& bind(int index, std::span<const std::byte> blob);
  Statement& bind(int index, std::int64_t value);
  Statement& bind(int index, double value);

  /// True: a row is there to read. False: done.
  Result<bool> step();
  /// Runs to the end and resets, calling `visit()` at each row.
  template <class Visit>
  Result<void> each(const Visit& visit);
  /// The same of a statement that gives no rows to read.
  Result<void> run();
  /// Ends the statement, and with it the lock it holds.
  void reset();

  /// Columns count from 0. Another type than the one asked for is converted as SQLite does.
  [[nodiscard]] std::string text(int column) const;
  [[nodiscard]] std::int64_t integer(int column) const;
  [[nodiscard]] double real(int column) const;
  [[nodiscard]] std::vector<std::byte> blob(int column) const;

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

/// Resets a statement when the scope ends, however it ends.
class ResetAtEnd {
 public:
  explicit ResetAtEnd(Statement& statement) : statement_(statement) {}
  ResetAtEnd(const ResetAtEnd&) = delete;
  ResetAtEnd& operator=(const ResetAtEnd&) = delete;
  ~ResetAtEnd() { statement_.reset(); }

 private:
  Statement& statement_;
};

template <class Visit>
Result<void> Statement::each(const Visit& visit) {
  const ResetAtEnd reset_at_end(*this);
  for (;;) {
    const Result<bool> row = step();
    if (!row) return row.error();
    if (!*row) return {};
    visit();
  }
}

struct CloseDatabase {
  void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

/// Runs SQL that gives no rows to read.
Result<void> execute(sqlite3* db, const char* sql);
/// The first column of the first row of `sql`, as an integer; 0 when there is no row.
Result<std::int64_t> query_integer(sqlite3* db, const char* sql);

/// A write transaction: taken at once (a deferred one can fail half-way, whatever the busy timeout), rolled back unless
/// committed.
class Transaction {
 public:
  /// For writing: takes the write lock at once.
  static Result<Transaction> begin(sqlite3* db);
  /// For reads that must see one state of the file: none of it changes between the first read and the end.
  static Result<Transaction> begin_read(sqlite3* db);
  Transaction(Transaction&& other) noexcept : db_(std::exchange(other.db_, nullptr)) {}
  Transaction& operator=(Transaction&&) = delete;
  ~Transaction();
  Result<void> commit();

 private:
  explicit Transaction(sqlite3* db) : db_(db) {}
  sqlite3* db_;
};

}  // namespace ordo::cache
