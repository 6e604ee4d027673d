#include "runtime/cubin.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "tests/unit/cubin_samples.hpp"

namespace ordo {
namespace {

using Bytes = std::vector<std::byte>;

const Bytes& sample(int cuda) {
  static const Bytes cuda12 = test::from_base64(test::cubin_cuda12), cuda13 = test::from_base64(test::cubin_cuda13);
  return cuda == 12 ? cuda12 : cuda13;
}

void put_u16(Bytes& bytes, std::size_t offset, unsigned value) {
  bytes[offset] = static_cast<std::byte>(value & 0xff);
  bytes[offset + 1] = static_cast<std::byte>(value >> 8);
}

/// Offset of the first place where `pattern` stands.
std::size_t find(const Bytes& bytes, std::initializer_list<int> pattern) {
  Bytes wanted;
  for (const int byte : pattern) wanted.push_back(static_cast<std::byte>(byte));
  const auto it = std::search(bytes.begin(), bytes.end(), wanted.begin(), wanted.end());
  REQUIRE(it != bytes.end());
  return static_cast<std::size_t>(it - bytes.begin());
}

void check_bad(const Bytes& bytes, std::string_view message) {
  const Result<CubinInfo> info = read_cubin(bytes);
  REQUIRE_FALSE(info);
  CHECK(info.error().code == ErrorCode::bad_cubin);
  CHECK_MESSAGE(info.error().message.find(message) != std::string::npos, info.error().message);
}

}  // namespace

TEST_CASE("cubin, report 41: resources of both formats are what ptxas printed") {
  for (const int cuda : {12, 13}) {
    CAPTURE(cuda);
    const Result<CubinInfo> info = read_cubin(sample(cuda));
    REQUIRE_MESSAGE(info, info.error().message);
    CHECK(info->sm == 90);
    REQUIRE(info->kernels.size() == 1);
    const CubinKernel& kernel = info->kernels[0];
    CHECK(kernel.symbol == "sample");
    CHECK(kernel.registers == 10);
    CHECK(kernel.stack_bytes == 0);
    CHECK(kernel.static_shared_bytes == 1024);
    CHECK(kernel.barriers == 3);
    CHECK(kernel.max_threads == 256);
    CHECK(kernel.parameter_bytes == 24);
  }
}

TEST_CASE("cubin: reads at any alignment") {
  Bytes shifted(sample(13).size() + 1);
  std::copy(sample(13).begin(), sample(13).end(), shifted.begin() + 1);
  CHECK(read_cubin(std::span(shifted).subspan(1)));
}

TEST_CASE("cubin: what is no cubin is refused by name") {
  check_bad({}, "ELF");
  check_bad(Bytes(4096, std::byte{0}), "ELF");
  Bytes text(64, std::byte{'x'});
  check_bad(text, "ELF");

  Bytes other = sample(13);
  put_u16(other, 18, 62);
  check_bad(other, "machine 62");
  other = sample(13);
  other[7] = std::byte{3};
  check_bad(other, "OSABI 0x3");
  other = sample(13);
  other[4] = std::byte{1};  // 32-bit
  check_bad(other, "64-bit");
  other = sample(13);
  put_u16(other, 16, 1);  // relocatable: not linked
  check_bad(other, "type 1");
}

TEST_CASE("cubin: a record that lies about its size, or of unknown format, is refused") {
  Bytes bytes = sample(13);
  const std::size_t registers = find(bytes, {0x04, 0x2f, 0x08, 0x00});
  put_u16(bytes, registers + 2, 0x7fff);
  check_bad(bytes, ".nv.info has a record of 32767 bytes");
  put_u16(bytes, registers + 2, 4);  // what follows is then read as the next record
  check_bad(bytes, "unknown format 10 at byte 8");

  bytes = sample(13);
  bytes[registers] = std::byte{9};
  check_bad(bytes, "unknown format 9");

  bytes = sample(13);
  bytes[registers + 1] = std::byte{0xee};  // the register count is now some other attribute
  check_bad(bytes, "does not state the registers of kernel sample");
}

TEST_CASE("cubin: a number no GPU has is refused") {
  Bytes bytes = sample(13);
  const std::size_t registers = find(bytes, {0x04, 0x2f, 0x08, 0x00});
  bytes[registers + 11] = std::byte{0xff};
  check_bad(bytes, "register count");
  bytes = sample(13);
  const std::size_t threads = find(bytes, {0x04, 0x05, 0x0c, 0x00});
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(threads) + 4, 12, std::byte{0xff});
  check_bad(bytes, "thread limit");
}

TEST_CASE("cubin: every truncation is an error") {
  for (const int cuda : {12, 13}) {
    const Bytes& whole = sample(cuda);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      // A buffer of its own size, so that a sanitizer sees a read past the end.
      const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      const Result<CubinInfo> info = read_cubin(cut);
      REQUIRE_MESSAGE(!info, "cut to ", size, " bytes");
      CHECK(info.error().code == ErrorCode::bad_cubin);
    }
  }
}

TEST_CASE("cubin: damaged bytes give an error or plausible numbers, never a crash") {
  std::mt19937 random(20240607);
  int refused = 0;
  for (int round = 0; round < 30000; ++round) {
    Bytes bytes = sample(round % 2 == 0 ? 12 : 13);
    const int flips = 1 + static_cast<int>(random() % 8);
    for (int i = 0; i < flips; ++i) {
      // Headers decide where everything else is looked for: half of the damage goes there.
      const std::size_t tables = bytes.size() - 1400;
      const std::size_t at = random() % 2 == 0 ? random() % bytes.size() : tables + random() % 1400;
      bytes[round % 3 == 0 ? at % 64 : at] = static_cast<std::byte>(random());
    }
    if (round % 5 == 0) bytes.resize(random() % bytes.size());
    const Result<CubinInfo> info = read_cubin(bytes);
    if (!info) {
      ++refused;
      REQUIRE(info.error().code == ErrorCode::bad_cubin);
      continue;
    }
    for (const CubinKernel& kernel : info->kernels) {
      REQUIRE(kernel.registers > 0);
      REQUIRE(kernel.static_shared_bytes >= 0);
      REQUIRE(kernel.max_threads >= 0);
      REQUIRE(std::all_of(kernel.symbol.begin(), kernel.symbol.end(), [](char c) { return c > ' ' && c <= '~'; }));
    }
  }
  CHECK(refused > 3000);
}

}  // namespace ordo
