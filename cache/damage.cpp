#include "cache/damage.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>

namespace ordo::cache {

thread_local bool DamageWatch::seen_ = false;

void DamageWatch::note(int code) {
  const int primary = code & 0xff;
  if (primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB) seen_ = true;
}

bool is_ours(const std::string& path) {
  // The file format: 16 bytes of magic, the application id at 68.
  constexpr std::string_view magic("SQLite format 3\0", 16);
  constexpr std::size_t id_at = 68;
  std::array<char, id_at + 4> header{};
  std::ifstream file(path, std::ios::binary);
  file.read(header.data(), header.size());
  const auto size = static_cast<std::size_t>(file.gcount());
  const std::string_view read(header.data(), size);
  if (size >= id_at + 4 && read.substr(id_at) == "ordo") return true;
  return size < header.size() && read.starts_with(magic.substr(0, size));
}

Result<std::string> quarantine(const std::string& path, dev_t device, ino_t inode) {
  const auto failed = [&](const char* what) {
    return Error{ErrorCode::cache, fmt::format("The damaged cache {} cannot be put aside: {}: {}.", path, what,
                                               std::generic_category().message(errno))};
  };
  // The lock is on the damaged file itself: whoever waits for it finds another file under the name afterwards.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return errno == ENOENT ? Result<std::string>(std::string()) : failed("open");
  struct Close {
    int file;
    ~Close() { ::close(file); }
  } close{file};
  if (::flock(file, LOCK_EX) != 0) return failed("flock");
  struct stat opened{}, named{};
  if (::fstat(file, &opened) != 0) return failed("fstat");
  if (::stat(path.c_str(), &named) != 0 || named.st_ino != opened.st_ino || named.st_dev != opened.st_dev) return std::string();
  if (named.st_ino != inode || named.st_dev != device) return std::string();
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  std::string aside = fmt::format("{}.corrupt-{}-{}", path, now.count(), ::getpid());
  // The journal first: it belongs to the damaged file, and must not be rolled into the new one.
  (void)std::rename((path + "-journal").c_str(), (aside + "-journal").c_str());
  if (std::rename(path.c_str(), aside.c_str()) != 0) return failed("rename");
  return aside;
}

}  // namespace ordo::cache
