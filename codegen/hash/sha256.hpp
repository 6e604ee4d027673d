// SHA-256 (LLVM's implementation) as lower-case hex.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ordo {

std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);

}  // namespace ordo
