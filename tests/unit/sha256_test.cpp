// SHA-256 by the processor's instructions against LLVM's, and both against FIPS 180-4's examples.
#include <doctest/doctest.h>

#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/hash/sha256.hpp"

namespace ordo {
namespace {

std::string portable(std::string_view text) { return portable_sha256_hex(std::as_bytes(std::span(text.data(), text.size()))); }

TEST_CASE("sha256: the examples of FIPS 180-4") {
  const struct {
    std::string text, digest;
  } examples[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {std::string(1'000'000, 'a'), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
  };
  for (const auto& [text, digest] : examples) {
    CHECK(sha256_hex(text) == digest);
    CHECK(portable(text) == digest);
  }
}

TEST_CASE("sha256: with and without the processor's instructions, every length and alignment about the ends of blocks") {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(400);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  for (std::size_t from = 0; from < 17; ++from) {
    for (std::size_t size = 0; size <= 260; ++size) {
      const std::span<const std::byte> part = std::span(bytes).subspan(from, size);
      REQUIRE(sha256_hex(part) == portable_sha256_hex(part));
    }
  }
}

}  // namespace
}  // namespace ordo
