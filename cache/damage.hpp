// Damaged files: how damage is noticed, and how such a file is put aside.
#pragma once

#include <sys/types.h>

#include <string>

#include "ordo/error.hpp"

namespace ordo::cache {

/// Whether SQLite has called a file malformed, or no database, on this thread since the watch began. Watches do not nest.
class DamageWatch {
 public:
  DamageWatch() { seen_ = false; }
  [[nodiscard]] bool seen() const { return seen_; }  // NOLINT(readability-convert-member-functions-to-static): a watch must exist
  /// Called with every SQLite error code.
  static void note(int code);

 private:
  static thread_local bool seen_;  // NOLINT(readability-identifier-naming): a member, static or not
};

/// Whether the file, damaged as it may be, was made by us: its header says so in one of two places. A file without a header is
/// nobody's and counts as ours.
bool is_ours(const std::string& path);

/// Renames the file and its journal to FILE.corrupt-TIME-PID, if the file is still the one that was opened (`device` and
/// `inode`). Processes of this host that do so at once wait for each other. Returns the new name; empty when another process was
/// faster.
Result<std::string> quarantine(const std::string& path, dev_t device, ino_t inode);

}  // namespace ordo::cache
