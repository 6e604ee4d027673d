// What goes with getting kernels ready ahead of time: options, counters, and their text for Prometheus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "ordo/error.hpp"

namespace ordo {

/// How Engine::prepare(list) goes about it.
struct PrepareOptions {
  int threads =
      0;  ///< plans at once; 0: as many as compiles are allowed on this host ($ORDO_COMPILE_JOBS, else half of the processors)
  /// After each plan. Called from the threads that prepare, one at a time.
  std::function<void(std::size_t done, std::size_t total)> progress;
  /// Asked often, from several threads; once it says true the compiles under way are broken off (within 0.1 s with CUDA 13, else
  /// when they end) and prepare() returns ErrorCode::cancelled. What was stored stays.
  std::function<bool()> cancelled;
};

/// What Engine::prepare(list) did.
struct PrepareReport {
  std::size_t plans = 0;     ///< different ones
  std::size_t kernels = 0;   ///< different ones
  std::size_t compiled = 0;  ///< of these, by this call
  std::size_t loaded = 0;    ///< plans loaded in the current CUDA context; 0 where there is none
};

/// What an Engine has counted since it was made. A kernel counts as a hit or a miss each time it is looked for.
struct CacheCounters {
  std::uint64_t memory_hits = 0;   ///< in this process' memory
  std::uint64_t local_hits = 0;    ///< in the writable file
  std::uint64_t shipped_hits = 0;  ///< in a read-only file
  std::uint64_t misses = 0;
  std::uint64_t compiles = 0;          ///< that succeeded
  std::uint64_t compile_failures = 0;  ///< cancelled ones too
  std::uint64_t shared_compiles = 0;   ///< misses that another process or thread compiled meanwhile
  double compile_seconds = 0;
  double wait_seconds = 0;  ///< for other compiles of the same kernel, and for a turn

  friend bool operator==(const CacheCounters&, const CacheCounters&) = default;
};

/// By the names they have in Prometheus: "ordo_cache_hits_total{layer=\"local\"}" and so on.
ORDO_API std::map<std::string, double> named(const CacheCounters& counters);

/// Prometheus' text format (version 0.0.4), with HELP and TYPE for the names that ordo gives; others are untyped.
ORDO_API std::string prometheus_text(const std::map<std::string, double>& values);

}  // namespace ordo
