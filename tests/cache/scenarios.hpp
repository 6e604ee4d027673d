// What the cache must survive, at any scale: the unit tests run short forms, ordo_cache_soak the long ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ordo::test {

/// What went wrong; empty: nothing.
struct Report {
  std::vector<std::string> problems;
  std::string summary;  ///< what was done, with figures
};

/// One fault each below SQLite during a run of open, put, get, list, stamp, gc and merge. No wrong bytes may be served, nothing
/// may crash or hang, and after a fault that is not silent everything that was reported stored must be there.
Report fault_cases(std::size_t count, std::uint64_t seed);

/// Processes that store, merge, clean up and (every tenth, where NVRTC is there) compile are killed at random moments. The file
/// must open, verify, and hold everything that was reported stored.
Report kill_rounds(std::size_t count, std::uint64_t seed);

/// One bit flipped, or the end cut off, anywhere in a finished file that is opened immutable: each kernel is a miss or right.
Report shipped_damage(std::size_t count, std::uint64_t seed);

/// A store of so many kernels: time to open it, to look one up, to gather its sizes and to clean it up.
Report large_store(std::size_t entries);

/// So many processes start cold on the same kernels: each kernel is compiled once. Needs NVRTC.
Report cold_start(int processes, int kernels);

/// New processes on a warm cache: from nothing to a prepared engine. Needs NVRTC to fill the cache.
Report warm_start(int processes);

}  // namespace ordo::test
