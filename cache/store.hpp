// The kernel cache: one SQLite file of cubins, keyed by everything that can change them.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ordo/error.hpp"

namespace ordo::cache {

/// One cached kernel. `bytes` is the cubin.
struct Entry {
  std::string key;         ///< hex SHA-256, see kernel_key
  std::string source_key;  ///< hex SHA-256, see source_key
  std::string name;        ///< "main", "preprocess", ...
  std::string plan;        ///< canonical text of the Plan
  std::string toolchain;   ///< "NVRTC 13.0.88"
  std::string arch;
  int registers = 0, stack_bytes = 0, shared_bytes = 0, barriers = 0;
  int spill_bytes = 0;
  double compile_ms = 0;
  std::string entry;   ///< extern "C" symbol
  std::string sha256;  ///< of bytes
  std::vector<std::byte> bytes;
};

/// The key of a kernel: SHA-256 over schema version, generated source, flags, full NVRTC version with build number, and arch,
/// each with its length, so that no two inputs collide by concatenation. Contains no path, time, locale or host name.
ORDO_API std::string kernel_key(const std::string& source, const std::vector<std::string>& flags, const std::string& toolchain,
                                const std::string& arch);

/// The same without the toolchain: what entries of one kernel by different NVRTC versions have in common.
ORDO_API std::string source_key(const std::string& source, const std::vector<std::string>& flags, const std::string& arch);

/// Where the cache file is by the environment: $ORDO_CACHE, else $XDG_CACHE_HOME/ordo/cache.db, else ~/.cache/ordo/cache.db;
/// nullopt when none of these is set.
ORDO_API std::optional<std::string> default_path();

/// The SQLite library in use, e.g. "3.40.1".
ORDO_API std::string sqlite_version();

/// Thread-safe, and safe beside other processes on the same file. After a fork the child opens a connection of its own at its
/// first call (an in_memory store is empty there); fork while no other thread is inside a call. Copies share one store.
class ORDO_API Store {
 public:
  /// Opens or creates the file and its folder. Errors: the folder cannot be made, the file is not a cache of ours, SQLite is
  /// older than 3.40.
  static Result<Store> open(const std::string& path);
  /// A store in this process' memory.
  static Result<Store> in_memory();

  [[nodiscard]] const std::string& path() const;  ///< ":memory:" for in_memory()

  /// The entry, or nullopt. A row whose SHA-256 does not match its bytes is a miss.
  [[nodiscard]] Result<std::optional<Entry>> get(const std::string& key) const;
  /// The intact entry of that source_key by the newest toolchain ("NVRTC 13.0.88" is newer than "NVRTC 12.9.86"), or nullopt. For
  /// machines that have no NVRTC to ask for its version.
  [[nodiscard]] Result<std::optional<Entry>> newest(const std::string& source_key) const;
  /// Stores; an existing row of the same key is replaced only if it is damaged. Errors: `sha256` is not of `bytes`, an empty key
  /// or bytes, a store that cannot be written (read-only, disk full, locked by another process for 5 s, made by a newer ordo).
  Result<void> put(const Entry& entry);
  /// Removes an entry; one that is not there is no error.
  Result<void> erase(const std::string& key);
  /// Everything but the bytes, ordered by key.
  [[nodiscard]] Result<std::vector<Entry>> list() const;

  struct Impl;

 private:
  explicit Store(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace ordo::cache
