// The kernel cache: one SQLite file of cubins, keyed by everything that can change them. FORMAT.md describes the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
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
  std::string entry;            ///< extern "C" symbol
  std::string sha256;           ///< of bytes
  std::string templates;        ///< hex SHA-256 of the device templates in the source; empty in entries of schema 1
  std::string flags;            ///< NVRTC's, with a space between; empty in entries of schema 1
  std::int64_t created = 0;     ///< seconds since 1970; put() sets it where it is 0
  std::int64_t used = 0;        ///< likewise: when it was last asked for, to the day
  std::int64_t file_bytes = 0;  ///< of the compressed cubin; set by the store
  std::vector<std::byte> bytes;
};

/// The key of a kernel: SHA-256 over schema version, generated source, flags, full NVRTC version with build number, and arch,
/// each with its length, so that no two inputs collide by concatenation. Contains no path, time, locale or host name.
ORDO_API std::string kernel_key(const std::string& source, const std::vector<std::string>& flags, const std::string& toolchain,
                                const std::string& arch);

/// The same without the toolchain: what entries of one kernel by different NVRTC versions have in common.
ORDO_API std::string source_key(const std::string& source, const std::vector<std::string>& flags, const std::string& arch);

/// Where the cache file is by the environment: $ORDO_CACHE, else $XDG_CACHE_HOME/ordo/cache.db, else ~/.cache/ordo/cache.db;
/// nullopt when none of these is set. A file of the last two that would lie on a network filesystem is
/// $TMPDIR (/tmp)/ordo-UID/cache.db instead: locks between hosts are not to be trusted, and every rank of a job would wait for
/// one server.
ORDO_API std::optional<std::string> default_path();

/// The read-only files of $ORDO_CACHE_LAYERS, separated by ':'.
ORDO_API std::vector<std::string> default_layers();
/// "A:B" as a list; empty parts are left out.
std::vector<std::string> split_layers(const std::string& list);

/// $ORDO_CACHE_LIMIT in bytes ("2147483648", "500M", "2G"), else 2 GiB. 0 is no limit. What is no size counts as unset.
ORDO_API std::int64_t default_limit_bytes();

/// The SQLite library in use, e.g. "3.40.1".
ORDO_API std::string sqlite_version();

/// How a file is opened.
enum class Access {
  read_write,  ///< made, with its folder, where there is none; read-only where it cannot be written
  existing,    ///< the same, but a file that is not there is an error and nothing is made
  immutable,   ///< a finished file, on a shared filesystem say: no locks are taken, and nobody may change it meanwhile
};

struct StoreOptions {
  Access access = Access::read_write;
  /// Bytes of the file in use beyond which the entries unused for longest go, down to nine tenths. 0: none.
  std::int64_t limit_bytes = std::int64_t{2} << 30;
  /// Set: a damaged file is put aside as FILE.corrupt-TIME-PID, an empty one is begun, and this hears of it. Unset: damage is an
  /// error. Called with no lock held.
  std::function<void(const std::string&)> quarantined = {};
};

/// What one transaction writes.
struct Changes {
  std::span<const Entry> entries = {};                 ///< an existing row of the same key is replaced only if it is damaged
  std::span<const std::string> used = {};              ///< keys asked for now; unknown ones are passed over
  std::map<std::string, double> counters = {};         ///< added to the file's, see counters()
  std::map<std::string, std::string> toolchains = {};  ///< identity of a compiler's library -> "NVRTC 13.0.88"
};

/// The size of a store.
struct Sizes {
  std::int64_t entries = 0;
  std::int64_t stored_bytes = 0;  ///< of the compressed cubins
  std::int64_t used_bytes = 0;    ///< of the file, without free pages
  std::int64_t file_bytes = 0;
};

/// What clean-up may remove beside damaged rows.
struct GcRequest {
  std::int64_t limit_bytes = 0;     ///< of the file in use; 0: none
  std::int64_t unused_days = 0;     ///< entries not asked for in so many days; 0: none
  std::string keep_toolchain = {};  ///< entries by any other; empty: none
};
struct GcReport {
  std::int64_t removed = 0, damaged = 0;
  Sizes before, after;
};

struct VerifyReport {
  std::int64_t entries = 0;          ///< intact ones
  std::vector<std::string> damaged;  ///< keys of rows whose bytes or metadata are not what was stored
  std::string structure;             ///< what SQLite's integrity check says; "ok"
};

/// Thread-safe, and safe beside other processes on the same file. After a fork the child opens a connection of its own at its
/// first call (an in_memory store is empty there); fork while no other thread is inside a call. Copies share one store.
class ORDO_API Store {
 public:
  /// Opens, makes or brings up to date (see StoreOptions) the file and its folder. Errors: the folder cannot be made, the file is
  /// not a cache of ours, SQLite is older than 3.40.
  static Result<Store> open(const std::string& path, StoreOptions options = {});
  /// A store in this process' memory.
  static Result<Store> in_memory();

  [[nodiscard]] const std::string& path() const;  ///< ":memory:" for in_memory()

  /// False for a file that is read-only, immutable, or of a newer ordo.
  [[nodiscard]] bool writable() const;

  /// The entry, or nullopt. A row whose SHA-256 does not match its bytes is a miss.
  [[nodiscard]] Result<std::optional<Entry>> get(const std::string& key) const;
  /// The intact entry of that source_key by the newest toolchain ("NVRTC 13.0.88" is newer than "NVRTC 12.9.86"), or nullopt. For
  /// machines that have no NVRTC to ask for its version.
  [[nodiscard]] Result<std::optional<Entry>> newest(const std::string& source_key) const;
  /// apply() of one entry. Where it is there already nothing is written, nor is the write lock taken.
  Result<void> put(const Entry& entry);
  /// All of it in one transaction, or nothing. Errors: an entry whose `sha256` is not of its `bytes`, without key or bytes, or
  /// larger than 64 MiB; a store that cannot be written (read-only, disk full, locked by another process for 5 s, made by a newer
  /// ordo).
  Result<void> apply(const Changes& changes);
  /// Removes an entry; one that is not there is no error.
  Result<void> erase(const std::string& key);
  /// Everything but the bytes, ordered by key. Damaged rows are left out.
  [[nodiscard]] Result<std::vector<Entry>> list() const;

  /// The compiler that a library of that identity is, as a process that opened it has stored.
  [[nodiscard]] Result<std::optional<std::string>> toolchain_of(const std::string& library) const;
  [[nodiscard]] Result<std::map<std::string, std::string>> toolchains() const;
  /// What processes have counted: "compiles_total", ... Hits are written when something else is, so theirs is a lower bound.
  [[nodiscard]] Result<std::map<std::string, double>> counters() const;

  [[nodiscard]] Result<Sizes> sizes() const;
  /// The keys of rows that are not what was stored, sorted. Reads every row.
  [[nodiscard]] Result<std::vector<std::string>> damaged() const;
  /// Reads every row and SQLite's structures.
  [[nodiscard]] Result<VerifyReport> verify() const;
  /// Removes damaged rows, those that `request` names, and free pages.
  Result<GcReport> gc(const GcRequest& request);

  struct Impl;

 private:
  explicit Store(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace ordo::cache
