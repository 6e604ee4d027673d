// libFuzzer's entry; CMake says which target. Run: fuzz_cubin CORPUS tests/fuzz/seeds/cubin -max_total_time=300 (tests/nightly.sh
// does).
#include <cstdint>

#include "tests/fuzz/targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ordo::test::ORDO_FUZZ_TARGET({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
