// Folders and sizes from the environment, apart from the cache file's own (cache/store.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ordo/error.hpp"

namespace ordo::cache {

/// A folder of this user on this host, made if need be: $XDG_RUNTIME_DIR/ordo, else $TMPDIR (/tmp)/ordo-UID. nullopt when neither
/// can be had, or is somebody else's.
ORDO_API std::optional<std::string> private_folder();

/// Whether statfs(2)'s f_type is that of a filesystem between hosts, or of FUSE, which may be one.
ORDO_API bool is_network_filesystem(std::int64_t type);

/// Bytes of "123", "4K", "500M", "2G" or "1T" (powers of 1024); nullopt for anything else.
ORDO_API std::optional<std::int64_t> parse_size(std::string_view text);

}  // namespace ordo::cache
