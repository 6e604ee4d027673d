// The tables of a cache file and how they came to be: FORMAT.md describes them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cache/sqlite.hpp"

namespace ordo::cache {

inline constexpr std::int64_t application_id = 0x6f72646f;  // "ordo"

/// One step from the schema before it to `version`. A step that files in the field have taken is never edited: the next change is
/// a step of its own.
struct Migration {
  std::int64_t version;
  const char* sql;
};

/// All steps, in order of version, 1 first.
const std::vector<Migration>& migrations();

/// The last step's version: what this build writes.
std::int64_t schema_version();

/// The schema of the open file; 0 for one without anything in it. One state of the file is looked at. Errors: it is no SQLite
/// file, or another program's.
Result<std::int64_t> read_schema(sqlite3* db);

/// Brings the file to schema_version() in one transaction; another process may do the same at once. `limit` is for tests: the
/// version to stop at. Nothing is done to a file of that or a newer schema.
Result<void> migrate(sqlite3* db, std::int64_t limit);

}  // namespace ordo::cache
