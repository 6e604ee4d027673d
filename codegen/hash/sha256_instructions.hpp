// SHA-256 by the processor's own instructions: four times as fast as without (6,000 bytes in 3 us, EPYC).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ordo {

/// Whether this processor has them, and there is code for them here (x86).
bool has_sha256_instructions();

/// The digest. Only where has_sha256_instructions().
std::array<std::uint8_t, 32> sha256_by_instructions(std::span<const std::byte> bytes);

}  // namespace ordo
