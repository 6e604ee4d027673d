// How a cubin lies in its row: as it is, or compressed with zstd.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ordo::cache {

/// The values of blobs.codec.
enum class Codec : std::int64_t { plain = 0, zstd = 1 };

/// No cubin is larger; a file that claims so is damaged or hostile.
inline constexpr std::size_t largest_cubin_bytes = std::size_t{64} << 20;

struct Encoded {
  Codec codec = Codec::plain;
  std::vector<std::byte> data;
};

/// zstd where that is smaller, else as it is. The same bytes give the same result (with one version of zstd).
Encoded encode(std::span<const std::byte> bytes);

/// The bytes that were encoded; nullopt for a codec unknown here and for data that is not whole.
std::optional<std::vector<std::byte>> decode(std::int64_t codec, std::vector<std::byte> data);

}  // namespace ordo::cache
