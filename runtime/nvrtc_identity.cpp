#include "runtime/nvrtc_identity.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <llvm/ADT/StringExtras.h>
#include <llvm/Object/BuildID.h>
#include <llvm/Object/ObjectFile.h>
#include <llvm/Support/MemoryBuffer.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <vector>

namespace ordo {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

/// The path of a library that this process has open already under that soname; the loader would take it again.
std::optional<std::string> open_already(const std::string& soname) {
  void* handle = dlopen(soname.c_str(), RTLD_NOLOAD | RTLD_LAZY);
  if (handle == nullptr) return std::nullopt;
  link_map* map = nullptr;
  std::optional<std::string> path;
  if (dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && map != nullptr && map->l_name != nullptr &&
      *map->l_name != '\0')
    path = map->l_name;
  dlclose(handle);
  return path;
}

/// The paths that ld.so.cache gives for a soname. The file holds them as strings that end with NUL; nothing else of its format
/// matters.
std::vector<std::string> in_loader_cache(const std::string& soname) {
  std::ifstream file("/etc/ld.so.cache", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string ending = "/" + soname + std::string(1, '\0');
  std::vector<std::string> paths;
  for (std::size_t at = text.find(ending); at != std::string::npos; at = text.find(ending, at + 1)) {
    const std::size_t nul = text.rfind('\0', at);
    const std::size_t begin = nul == std::string::npos ? 0 : nul + 1;
    std::string path = text.substr(begin, at + ending.size() - 1 - begin);
    if (path.starts_with('/') && is_file(path)) paths.push_back(std::move(path));
  }
  return paths;
}

/// Where the loader would find a soname. `certain` turns false where it alone knows.
std::optional<std::string> by_loader(const std::string& soname, bool& certain) {
  if (auto path = open_already(soname)) return path;
  if (const char* list = std::getenv("LD_LIBRARY_PATH"); list != nullptr) {
    std::string_view rest(list);
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find_first_of(":;"), rest.size());
      const fs::path candidate = fs::path(rest.substr(0, end)) / soname;
      if (end > 0 && is_file(candidate)) return candidate.string();
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  const std::vector<std::string> cached = in_loader_cache(soname);
  if (cached.size() == 1) return cached.front();
  if (cached.size() > 1) certain = false;  // for other processors, or other ABIs
  for (const char* folder : {"/lib64", "/usr/lib64", "/lib", "/usr/lib", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"}) {
    if (is_file(fs::path(folder) / soname)) return (fs::path(folder) / soname).string();
  }
  return std::nullopt;
}

std::optional<std::string> build_id(const std::string& path) {
  auto buffer =
      llvm::MemoryBuffer::getFile(path, /*IsText=*/false, /*RequiresNullTerminator=*/false);  // mapped: only headers are read
  if (!buffer) return std::nullopt;
  auto object = llvm::object::ObjectFile::createObjectFile((*buffer)->getMemBufferRef());
  if (!object) {
    llvm::consumeError(object.takeError());
    return std::nullopt;
  }
  const llvm::object::BuildIDRef id = llvm::object::getBuildID(object->get());
  if (id.empty()) return std::nullopt;
  return llvm::toHex(id, /*LowerCase=*/true);
}

}  // namespace

std::optional<std::string> locate_nvrtc(const NvrtcPlaces& places) {
  const auto resolved = [](const std::string& path) -> std::optional<std::string> {
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    return error ? std::nullopt : std::optional(real.string());
  };
  std::error_code ignored;
  if (places.forced) {
    if (fs::is_directory(*places.forced, ignored)) {
      const auto newest = newest_nvrtc_in(*places.forced);
      return newest ? resolved(*newest) : std::nullopt;
    }
    return places.forced->find('/') == std::string::npos ? std::nullopt : resolved(*places.forced);
  }
  if (!places.built_with.empty()) {
    if (const auto newest = newest_nvrtc_in(places.built_with)) return resolved(*newest);
  }
  bool certain = true;
  for (const std::string& soname : nvrtc_sonames()) {
    const auto path = by_loader(soname, certain);
    if (!certain) return std::nullopt;
    if (path) return resolved(*path);
  }
  for (const std::string& folder : toolkit_folders(places)) {
    if (const auto newest = newest_nvrtc_in(folder)) return resolved(*newest);
  }
  return std::nullopt;
}

std::optional<std::string> library_identity(const std::string& path) {
  if (const auto id = build_id(path)) return "build-id:" + *id;
  struct stat facts{};
  if (::stat(path.c_str(), &facts) != 0) return std::nullopt;
  return fmt::format("file:{}:{}:{}.{:09}:{}", path, static_cast<std::int64_t>(facts.st_size), facts.st_mtim.tv_sec,
                     facts.st_mtim.tv_nsec, facts.st_ino);
}

}  // namespace ordo
