#include "runtime/manifest.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace ordo {
namespace {

/// Whole or not at all: one write to a file opened for appending. Returns what went wrong, or nothing.
std::string append(const std::string& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) return std::generic_category().message(errno);
  const ssize_t written = ::write(file, text.data(), text.size());
  const int error = written < 0 ? errno : ENOSPC;
  ::close(file);
  return written == static_cast<ssize_t>(text.size()) ? "" : std::generic_category().message(error);
}

}  // namespace

Manifest::Manifest(std::string path, std::function<void(const std::string&)> warn)
    : path_(std::move(path)), warn_(std::move(warn)) {
  if (!path_.empty()) return;
  if (const char* named = std::getenv("ORDO_MANIFEST"); named != nullptr) path_ = named;
}

void Manifest::record(const ShapeList& plan) {
  if (path_.empty()) return;
  const std::string text = to_toml(plan);
  std::string problem;
  {
    const std::scoped_lock lock(mutex_);
    if (failed_ || !recorded_.insert(text).second) return;
    problem = append(path_, text);
    failed_ = !problem.empty();
  }
  if (!problem.empty() && warn_)
    warn_(fmt::format("The manifest {} cannot be written: {}. Plans are not recorded.", path_, problem));
}

}  // namespace ordo
