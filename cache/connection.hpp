// One open cache file: its schema, its statements, and rows checked as they are read.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "cache/codec.hpp"
#include "cache/sqlite.hpp"
#include "cache/store.hpp"

namespace ordo::cache {

/// A row as it lies in the file, not checked yet.
struct Row {
  Entry entry;  ///< without bytes
  std::string digest;
  std::int64_t codec = 0;
  std::vector<std::byte> data;
};

/// The entry with its bytes; nullopt when metadata or bytes are not what was stored. Needs no connection: done with its lock
/// released.
std::optional<Entry> entry_of(Row row);

/// The metadata of a row of `list`; nullopt when it is damaged.
std::optional<Entry> metadata_of(const Statement& row);

/// Used by one thread at a time (hold `mutex`), and only in the process that opened it.
struct Connection {
  const pid_t process = getpid();
  std::mutex mutex;
  Database db;
  bool writable = true;
  std::int64_t schema = 0;
  dev_t device = 0;  ///< of the file that was opened: its name may be another's later
  ino_t inode = 0;
  Statement get, list, newest, insert_blob, insert_kernel, erase_blob, erase_kernel, touch;

  static Result<std::unique_ptr<Connection>> open(const std::string& path, Access access = Access::read_write);

  /// The row of `key`; nullopt when there is none.
  Result<std::optional<Row>> read(const std::string& key);
  /// Whether the row of `key` is there and intact.
  Result<bool> holds(const std::string& key);
  /// Inserts; inside a Transaction. The entry's own bytes are not looked at.
  Result<void> write(const Entry& entry, const Encoded& encoded);
  /// Deletes the row and its bytes; inside a Transaction.
  Result<void> remove(const std::string& key);

 private:
  Result<void> prepare_schema();
  Result<void> prepare_statements();
};

}  // namespace ordo::cache
