#include "codegen/hash/sha256.hpp"

#include <llvm/ADT/ArrayRef.h>
#include <llvm/ADT/StringExtras.h>
#include <llvm/Support/SHA256.h>

#include <cstdint>

namespace ordo {

std::string sha256_hex(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const auto digest = llvm::SHA256::hash(llvm::ArrayRef<std::uint8_t>(data, bytes.size()));
  return llvm::toHex(llvm::ArrayRef<std::uint8_t>(digest), /*LowerCase=*/true);
}

std::string sha256_hex(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text.data(), text.size()))); }

}  // namespace ordo
