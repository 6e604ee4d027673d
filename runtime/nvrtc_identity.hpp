// Which NVRTC would be opened, and which it is, without opening it: opening takes some 20 ms, nearly all of a cache hit's time.
#pragma once

#include <optional>
#include <string>

#include "runtime/nvrtc.hpp"

namespace ordo {

/// The libnvrtc that open_nvrtc would take if it proves usable, with links resolved; nullopt where only the loader knows.
std::optional<std::string> locate_nvrtc(const NvrtcPlaces& places);

/// What tells a library's file from any other: "build-id:HEX", the same on every machine; else "file:PATH:SIZE:MTIME:INODE" for a
/// library without a build id. nullopt for a file that cannot be read.
std::optional<std::string> library_identity(const std::string& path);

}  // namespace ordo
