// One open cache file: its schema, its statements, and rows checked as they are read.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "cache/sqlite.hpp"
#include "cache/store.hpp"

namespace ordo::cache {

/// Used by one thread at a time (hold `mutex`), and only in the process that opened it.
struct Connection {
  const pid_t process = getpid();
  std::mutex mutex;
  Database db;
  bool writable = true;
  Statement get, list, newest, insert_blob, insert_kernel, erase_blob, erase_kernel;

  static Result<std::unique_ptr<Connection>> open(const std::string& path);

  /// The row of `key` if it is intact.
  Result<std::optional<Entry>> read(const std::string& key);
  /// Inserts; inside a Transaction.
  Result<void> write(const Entry& entry);
  /// Deletes the row and its bytes; inside a Transaction.
  Result<void> remove(const std::string& key);

 private:
  Result<void> prepare_schema();
  Result<void> prepare_statements();
};

/// A row of `list`, without bytes; nullopt when it is damaged.
std::optional<Entry> entry_of(const Statement& row);

}  // namespace ordo::cache
