#include "cache/schema.hpp"

#include <fmt/format.h>

namespace ordo::cache {
namespace {

constexpr const char* kernels_sql = R"(
CREATE TABLE blobs(
  id INTEGER PRIMARY KEY,
  codec INTEGER NOT NULL,
  data BLOB NOT NULL);
CREATE TABLE kernels(
  id INTEGER PRIMARY KEY,
  key TEXT NOT NULL UNIQUE,
  source_key TEXT NOT NULL,
  name TEXT NOT NULL,
  plan TEXT NOT NULL,
  toolchain TEXT NOT NULL,
  arch TEXT NOT NULL,
  entry TEXT NOT NULL,
  registers INTEGER NOT NULL,
  stack_bytes INTEGER NOT NULL,
  shared_bytes INTEGER NOT NULL,
  barriers INTEGER NOT NULL,
  spill_bytes INTEGER NOT NULL,
  compile_ms REAL NOT NULL,
  sha256 TEXT NOT NULL,
  created INTEGER NOT NULL,
  used INTEGER NOT NULL,
  digest TEXT NOT NULL,
  blob INTEGER NOT NULL REFERENCES blobs(id));
CREATE INDEX kernels_by_source ON kernels(source_key);
)";

// The index serves eviction: oldest first, and the sum of sizes without a look at the rows.
constexpr const char* sizes_sql = R"(
ALTER TABLE kernels ADD COLUMN stored_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE kernels ADD COLUMN templates TEXT NOT NULL DEFAULT '';
ALTER TABLE kernels ADD COLUMN flags TEXT NOT NULL DEFAULT '';
UPDATE kernels SET stored_bytes = coalesce((SELECT length(data) FROM blobs WHERE blobs.id = kernels.blob), 0);
CREATE INDEX kernels_by_use ON kernels(used, id, stored_bytes);
CREATE TABLE toolchains(
  library TEXT PRIMARY KEY,
  toolchain TEXT NOT NULL,
  digest TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE counters(
  name TEXT PRIMARY KEY,
  value REAL NOT NULL) WITHOUT ROWID;
)";

constexpr const char* measurements_sql = R"(
CREATE TABLE measurements(
  id INTEGER PRIMARY KEY,
  problem TEXT NOT NULL,
  plan TEXT NOT NULL,
  kernels TEXT NOT NULL,
  target TEXT NOT NULL,
  device TEXT NOT NULL,
  sm_count INTEGER NOT NULL,
  driver TEXT NOT NULL,
  toolchain TEXT NOT NULL,
  policy TEXT NOT NULL,
  round INTEGER NOT NULL,
  ms_median REAL NOT NULL,
  ms_min REAL NOT NULL,
  launches INTEGER NOT NULL,
  clock_mhz REAL NOT NULL,
  watts REAL NOT NULL,
  created INTEGER NOT NULL,
  digest TEXT NOT NULL,
  UNIQUE(problem, plan, kernels, target, device, sm_count, driver, toolchain, policy, round));
)";

Error foreign(sqlite3* db, std::string_view why) {
  return {ErrorCode::cache, fmt::format("{} is not a kernel cache of ordo ({}). Name another file, or remove it.",
                                        sqlite3_db_filename(db, "main"), why)};
}

/// Inside a transaction.
Result<std::int64_t> read_header(sqlite3* db) {
  const Result<std::int64_t> id = query_integer(db, "PRAGMA application_id");
  if (!id) return id.error();
  Result<std::int64_t> version = query_integer(db, "PRAGMA user_version");
  if (!version) return version.error();
  const Result<std::int64_t> tables = query_integer(db, "SELECT count(*) FROM sqlite_schema");
  if (!tables) return tables.error();
  if (*id == application_id && *version >= 1) return version;
  if (*id == 0 && *version == 0 && *tables == 0) return std::int64_t{0};
  return foreign(db, "another program made it");
}

}  // namespace

const std::vector<Migration>& migrations() {
  static const std::vector<Migration> steps{
      {1, kernels_sql},
      {2, sizes_sql},
      {3, measurements_sql},
  };
  return steps;
}

std::int64_t schema_version() { return migrations().back().version; }

Result<std::int64_t> read_schema(sqlite3* db) {
  // Of one moment: a process that makes the file between two of the reads would make it look like another program's.
  const Result<Transaction> snapshot = Transaction::begin_read(db);
  if (!snapshot) return snapshot.error();
  Result<std::int64_t> found = read_header(db);
  const bool no_database = (sqlite3_extended_errcode(db) & 0xff) == SQLITE_NOTADB;
  if (!found && no_database) return foreign(db, "not an SQLite file");
  return found;
}

Result<void> migrate(sqlite3* db, std::int64_t limit) {
  // Larger pages read cubins of 20 to 400 KB about twice as fast. Takes effect only before the first write.
  if (auto ok = execute(db, "PRAGMA page_size=16384; PRAGMA journal_mode=DELETE;"); !ok) return ok;
  Result<Transaction> transaction = Transaction::begin(db);
  if (!transaction) return transaction.error();
  const Result<std::int64_t> from = read_header(db);  // again: another process may have been faster
  if (!from) return from.error();
  std::int64_t reached = *from;
  for (const Migration& step : migrations()) {
    if (step.version <= *from || step.version > limit) continue;
    if (auto ok = execute(db, step.sql); !ok) return ok;
    reached = step.version;
  }
  if (reached == *from) return {};
  const std::string header = fmt::format("PRAGMA application_id={}; PRAGMA user_version={};", application_id, reached);
  if (auto ok = execute(db, header.c_str()); !ok) return ok;
  return transaction->commit();
}

}  // namespace ordo::cache
