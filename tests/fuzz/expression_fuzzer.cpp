// libFuzzer over the parser of expressions: cmake -DORDO_FUZZ=ON with Clang, then
//   build/fuzz/bin/ordo_fuzz_expression -dict=tests/fuzz/expression.dict -max_total_time=60 tests/fuzz/seeds/expression
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/fuzz/expression.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string failure = ordo::fuzz::check_expression({reinterpret_cast<const char*>(data), size});
  if (failure.empty()) return 0;
  std::fprintf(stderr, "%s\n", failure.c_str());
  std::abort();
}
