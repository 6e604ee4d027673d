// SHA-256 as lower-case hex: by the processor's instructions where it has them, else LLVM's implementation.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ordo {

std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);

/// The same without the processor's instructions.
std::string portable_sha256_hex(std::span<const std::byte> bytes);

}  // namespace ordo
