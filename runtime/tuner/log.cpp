#include "runtime/tuner/log.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

namespace ordo::tuner {

Log::Log(std::string path, std::function<void(const std::string&)> warn) : path_(std::move(path)), warn_(std::move(warn)) {}

std::optional<cache::Measurements> Log::file(bool make) const {
  std::error_code ignored;
  if (path_.empty() || (!make && !std::filesystem::exists(path_, ignored))) return std::nullopt;
  {
    const std::scoped_lock lock(mutex_);
    if (file_) return file_;
  }
  auto opened = cache::Measurements::open(path_);
  if (!opened) {
    warn_once(opened.error().message);
    return std::nullopt;
  }
  const std::scoped_lock lock(mutex_);
  if (!file_) file_ = *std::move(opened);
  return file_;
}

void Log::warn_once(const std::string& message) const {
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(warned_, true)) return;
  }
  if (warn_) warn_(message + " Measured times are kept in memory only.");
}

void Log::put(const std::vector<cache::Measurement>& rows) {
  if (auto there = file(true)) {
    const auto stored = there->put(rows);
    if (stored) return;
    warn_once(stored.error().message);
  }
  const std::scoped_lock lock(mutex_);
  unsaved_.insert(unsaved_.end(), rows.begin(), rows.end());
}

std::vector<cache::Measurement> Log::of(const std::string& problem) const {
  std::vector<cache::Measurement> rows;
  if (const auto there = file(false)) {
    auto stored = there->of(problem);
    if (stored)
      rows = *std::move(stored);
    else
      warn_once(stored.error().message);
  }
  const std::scoped_lock lock(mutex_);
  std::copy_if(unsaved_.begin(), unsaved_.end(), std::back_inserter(rows),
               [&](const cache::Measurement& row) { return row.problem == problem; });
  return rows;
}

std::vector<std::string> Log::problems() const {
  std::vector<std::string> out;
  if (const auto there = file(false)) {
    auto stored = there->problems();
    if (stored)
      out = *std::move(stored);
    else
      warn_once(stored.error().message);
  }
  const std::scoped_lock lock(mutex_);
  for (const cache::Measurement& row : unsaved_) out.push_back(row.problem);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace ordo::tuner
