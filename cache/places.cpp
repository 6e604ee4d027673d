// Where the cache is and how large it may grow, by the environment.
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "cache/places.hpp"
#include "cache/store.hpp"

namespace ordo::cache {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

/// The filesystem of the nearest folder that is there.
bool on_network(fs::path path) {
  struct statfs facts{};
  for (; !path.empty(); path = path.parent_path()) {
    if (::statfs(path.c_str(), &facts) == 0) return is_network_filesystem(static_cast<std::int64_t>(facts.f_type) & 0xffffffff);
    if (path == path.parent_path()) break;
  }
  return false;
}

/// Whoever made it first in a folder that everybody writes to: it must be ours, and a folder.
bool is_ours_alone(const std::string& folder) {
  struct stat facts{};
  return ::lstat(folder.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) && facts.st_uid == ::getuid() &&
         (facts.st_mode & 0022) == 0 && ::access(folder.c_str(), W_OK | X_OK) == 0;
}

std::string local_folder() {
  const std::string root = environment("TMPDIR").value_or("/tmp");
  return (fs::path(root) / ("ordo-" + std::to_string(::getuid()))).string();
}

}  // namespace

bool is_network_filesystem(std::int64_t type) {
  constexpr std::array<std::int64_t, 12> types{
      0x6969,      // NFS
      0x0bd00bd0,  // Lustre
      0x47504653,  // GPFS
      0x19830326,  // BeeGFS
      0x00c36400,  // Ceph
      0x01021997,  // 9P
      0xff534d42,  // CIFS
      0xfe534d42,  // SMB2
      0x517b,      // SMB
      0x5346414f,  // AFS
      0x73757245,  // Coda
      0x65735546,  // FUSE: sshfs, gluster, object stores
  };
  return std::find(types.begin(), types.end(), type) != types.end();
}

std::optional<std::string> private_folder() {
  const auto make = [](const std::string& folder) {
    return (::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) && is_ours_alone(folder);
  };
  if (const auto runtime = environment("XDG_RUNTIME_DIR"); runtime && make(*runtime + "/ordo")) return *runtime + "/ordo";
  if (std::string local = local_folder(); make(local)) return local;
  return std::nullopt;
}

std::optional<std::string> default_path() {
  if (const auto path = environment("ORDO_CACHE")) return path;
  std::optional<std::string> path;
  // The XDG specification has relative paths ignored.
  if (const auto folder = environment("XDG_CACHE_HOME"); folder && fs::path(*folder).is_absolute())
    path = *folder + "/ordo/cache.db";
  else if (const auto home = environment("HOME"))
    path = *home + "/.cache/ordo/cache.db";
  if (!path || !on_network(*path)) return path;
  const std::string local = local_folder();  // made when something is stored
  std::error_code ignored;
  return !fs::exists(fs::symlink_status(local, ignored)) || is_ours_alone(local) ? local + "/cache.db" : *path;
}

std::vector<std::string> default_layers() { return split_layers(environment("ORDO_CACHE_LAYERS").value_or("")); }

std::vector<std::string> split_layers(const std::string& list) {
  std::vector<std::string> layers;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(':', begin), list.size());
    if (end > begin) layers.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return layers;
}

std::int64_t default_limit_bytes() {
  constexpr std::int64_t otherwise = std::int64_t{2} << 30;
  const std::string text = environment("ORDO_CACHE_LIMIT").value_or("");
  return parse_size(text).value_or(otherwise);
}

std::optional<std::int64_t> parse_size(std::string_view text) {
  constexpr std::string_view units = "KMGT";
  int shift = 0;
  if (!text.empty()) {
    if (const std::size_t unit = units.find(text.back()); unit != std::string_view::npos) {
      shift = 10 * static_cast<int>(unit + 1);
      text.remove_suffix(1);
    }
  }
  std::int64_t value = 0;
  const char* const begin = text.data();  // NOLINT(bugprone-suspicious-stringview-data-usage): its end goes along
  const auto [end, error] = std::from_chars(begin, begin + text.size(), value);
  if (error != std::errc{} || end != begin + text.size() || value < 0 || value > (INT64_MAX >> shift)) return std::nullopt;
  return value << shift;
}

}  // namespace ordo::cache
