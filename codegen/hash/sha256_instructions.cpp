#include "codegen/hash/sha256_instructions.hpp"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#include <bit>
#include <cstring>

namespace ordo {
namespace {

constexpr std::size_t block_bytes = 64;

// FIPS 180-4, 4.2.2 and 5.3.3.
alignas(16) constexpr std::uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
constexpr std::uint32_t initial_state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                            0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

/// The state as the instructions take it: words A, B, E, F and C, D, G, H, the first in the highest lane.
struct State {
  __m128i abef, cdgh;
};

__attribute__((target("sha,sse4.1"))) void add_blocks(State& state, const std::byte* data, std::size_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  for (; blocks > 0; --blocks, data += block_bytes) {
    __m128i w[4];  // the last 16 words of the message schedule
    for (int i = 0; i < 4; ++i) w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i), big_endian);
    __m128i abef = state.abef, cdgh = state.cdgh;
    for (int four = 0; four < 16; ++four) {  // rounds
      const __m128i constants = _mm_load_si128(reinterpret_cast<const __m128i*>(round_constants) + four);
      const __m128i words = _mm_add_epi32(w[0], constants);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0e));
      const __m128i seven_back = _mm_alignr_epi8(w[3], w[2], 4);
      const __m128i next = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w[0], w[1]), seven_back), w[3]);
      w[0] = w[1];
      w[1] = w[2];
      w[2] = w[3];
      w[3] = next;  // of no use after round 48
    }
    state.abef = _mm_add_epi32(state.abef, abef);
    state.cdgh = _mm_add_epi32(state.cdgh, cdgh);
  }
}

/// Its bytes, the highest first.
template <class Integer>
void store_big_endian(Integer value, void* to) {
  std::uint8_t bytes[sizeof(Integer)];
  for (std::size_t i = 0; i < sizeof(Integer); ++i)
    bytes[i] = static_cast<std::uint8_t>(value >> (8 * (sizeof(Integer) - 1 - i)));
  std::memcpy(to, bytes, sizeof(Integer));
}

}  // namespace

bool has_sha256_instructions() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned sha_bit = 1U << 29;  // leaf 7, EBX; GCC 12's __builtin_cpu_supports does not know it
    return __builtin_cpu_supports("sse4.1") != 0 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & sha_bit) != 0;
  }();
  return has;
}

std::array<std::uint8_t, 32> sha256_by_instructions(std::span<const std::byte> bytes) {
  const std::uint32_t* s = initial_state;
  const auto lanes = [](std::uint32_t high, std::uint32_t b, std::uint32_t c, std::uint32_t low) {
    return _mm_set_epi32(std::bit_cast<int>(high), std::bit_cast<int>(b), std::bit_cast<int>(c), std::bit_cast<int>(low));
  };
  State state{lanes(s[0], s[1], s[4], s[5]), lanes(s[2], s[3], s[6], s[7])};
  const std::size_t whole = bytes.size() / block_bytes, rest = bytes.size() % block_bytes;
  add_blocks(state, bytes.data(), whole);

  // The rest, a one bit, zeros, and the length in bits in the last eight bytes.
  std::array<std::byte, 2 * block_bytes> tail{};
  if (rest > 0) std::memcpy(tail.data(), bytes.data() + whole * block_bytes, rest);
  tail[rest] = std::byte{0x80};
  const std::size_t tail_blocks = rest + 1 + sizeof(std::uint64_t) > block_bytes ? 2 : 1;
  store_big_endian(std::uint64_t{bytes.size()} * 8, tail.data() + tail_blocks * block_bytes - sizeof(std::uint64_t));
  add_blocks(state, tail.data(), tail_blocks);

  std::uint32_t abef[4], cdgh[4];  // lowest lane first
  std::memcpy(abef, &state.abef, sizeof abef);
  std::memcpy(cdgh, &state.cdgh, sizeof cdgh);
  std::array<std::uint8_t, 32> digest{};
  const std::uint32_t words[8] = {abef[3], abef[2], cdgh[3], cdgh[2], abef[1], abef[0], cdgh[1], cdgh[0]};
  for (std::size_t i = 0; i < 8; ++i) store_big_endian(words[i], digest.data() + i * sizeof(std::uint32_t));
  return digest;
}

}  // namespace ordo

#else

namespace ordo {

bool has_sha256_instructions() { return false; }
std::array<std::uint8_t, 32> sha256_by_instructions(std::span<const std::byte>) { return {}; }

}  // namespace ordo

#endif
