// Measured times in the cache file: one row a round of a plan on a problem, known by everything that the time depends on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ordo/error.hpp"

namespace ordo::cache {

/// Where a time was measured. A time counts only where all of it agrees.
struct MeasuredOn {
  std::string target;  ///< canonical text of the Target, e.g. "h200"
  std::string device;  ///< "NVIDIA H200"
  int sm_count = 0;
  std::string driver;     ///< "580.159.04"
  std::string toolchain;  ///< "NVRTC 13.0.88"
  friend bool operator==(const MeasuredOn&, const MeasuredOn&) = default;
  friend auto operator<=>(const MeasuredOn&, const MeasuredOn&) = default;
};

/// One round.
struct Measurement {
  std::string problem;  ///< canonical text
  std::string plan;     ///< canonical text
  std::string kernels;  ///< hex digest of the generated sources that were measured
  MeasuredOn on;
  std::string policy;  ///< canonical text of the MeasurementPolicy
  int round = 0;
  double ms_median = 0, ms_min = 0;  ///< of one launch
  int launches = 0;
  double clock_mhz = 0, watts = 0;  ///< 0: not known
  friend bool operator==(const Measurement&, const Measurement&) = default;
};

/// Thread-safe, and safe beside other processes on the same file; after a fork the child opens a connection of its own. Copies
/// share one connection. Rows that are damaged are passed over.
class ORDO_API Measurements {
 public:
  /// Opens or creates the cache file. Errors: as Store::open.
  static Result<Measurements> open(const std::string& path);
  /// In this process' memory.
  static Result<Measurements> in_memory();

  [[nodiscard]] const std::string& path() const;

  /// Stores; of a round that is there already, the first stays. Errors: a file that cannot be written.
  Result<void> put(const std::vector<Measurement>& rows);
  /// All of one problem, in the order in which they were stored.
  [[nodiscard]] Result<std::vector<Measurement>> of(const std::string& problem) const;
  /// Texts of the problems that have any, sorted.
  [[nodiscard]] Result<std::vector<std::string>> problems() const;

 private:
  struct Impl;
  explicit Measurements(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace ordo::cache
