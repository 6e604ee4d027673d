// Measurements in the cache file, and in memory where the file refuses them: a cache that fails never fails a tuning.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cache/measurements.hpp"

namespace ordo::tuner {

/// Thread-safe.
class Log {
 public:
  /// `path` empty: memory alone. A file that is not there is made when there is something to store. One that cannot be opened is
  /// warned of; then memory alone too.
  Log(std::string path, std::function<void(const std::string&)> warn);

  void put(const std::vector<cache::Measurement>& rows);
  /// All rows of a problem, in the order in which they were stored.
  [[nodiscard]] std::vector<cache::Measurement> of(const std::string& problem) const;
  [[nodiscard]] std::vector<std::string> problems() const;

 private:
  void warn_once(const std::string& message) const;
  /// The file, opened if it can be; where it is not there yet, made if `make`.
  std::optional<cache::Measurements> file(bool make) const;

  std::string path_;
  std::function<void(const std::string&)> warn_;
  mutable std::mutex mutex_;  // of what follows
  mutable std::optional<cache::Measurements> file_;
  std::vector<cache::Measurement> unsaved_;
  mutable bool warned_ = false;
};

}  // namespace ordo::tuner
