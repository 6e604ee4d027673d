// Entries between stores: merge, import, export to a finished file, and the difference of two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cache/store.hpp"

namespace ordo::cache {

struct MergeReport {
  std::size_t added = 0;
  std::size_t present = 0;             ///< with the same bytes
  std::vector<std::string> conflicts;  ///< keys whose bytes differ: `into` keeps its own
  std::vector<std::string> damaged;    ///< keys of `from` that are not what was stored there
};

/// Copies the intact entries of `from` that `into` lacks, some at a time, and what it knows of toolchains by their build id.
/// Errors: `from` cannot be read, `into` cannot be written; what was copied by then stays.
ORDO_API Result<MergeReport> merge(Store& into, const Store& from);

/// The same in one transaction, or not at all: a conflict or a damaged entry is an error (cache) that names the key.
ORDO_API Result<MergeReport> import_all(Store& into, const Store& from);

struct ExportOptions {
  std::function<bool(const Entry&)> wanted = {};  ///< by its metadata; empty: all
  std::map<std::string, std::string> plans = {};  ///< key -> the plan to name in the entry, in place of the one stored
  std::int64_t time = 1;                          ///< seconds since 1970, for `created` and `used`: see reproducible_time()
};

/// Writes a finished file beside `path` and renames it over `path`. Its bytes follow from the entries alone: sorted by key,
/// without counters, stamps, compile times and paths. Errors: `from` holds a damaged entry or cannot be read, `path` cannot be
/// written.
ORDO_API Result<Sizes> export_file(const Store& from, const std::string& path, const ExportOptions& options = {});

/// $SOURCE_DATE_EPOCH, else 1.
ORDO_API std::int64_t reproducible_time();

struct Difference {
  std::vector<Entry> only_first, only_second;
  std::vector<std::string> conflicts;  ///< keys in both, with other bytes
  std::size_t same = 0;
};
ORDO_API Result<Difference> difference(const Store& first, const Store& second);

}  // namespace ordo::cache
