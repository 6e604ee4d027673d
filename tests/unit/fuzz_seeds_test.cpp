// The fuzz targets on their seeds and on seeds with a few bytes changed: what a fuzzer has found stays found.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/targets.hpp"

namespace ordo::test {
namespace {

namespace fs = std::filesystem;

void run_seeds(const char* name, void (*target)(std::span<const std::byte>), int changes) {
  int seeds = 0;
  std::mt19937 random(17);
  std::vector<fs::path> files;
  for (const auto& file : fs::directory_iterator(fs::path(ORDO_FUZZ_SEEDS) / name)) files.push_back(file.path());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    CAPTURE(file.string());
    std::ifstream in(file, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    ++seeds;
    target(std::as_bytes(std::span(text)));
    for (int i = 0; i < changes && !text.empty(); ++i) {
      std::string changed = text;
      for (unsigned n = 1 + random() % 4; n > 0; --n) changed[random() % changed.size()] = static_cast<char>(random());
      if (random() % 4 == 0) changed.resize(random() % changed.size());
      target(std::as_bytes(std::span(changed)));
    }
  }
  CHECK(seeds > 0);
}

}  // namespace

TEST_CASE("fuzz seeds: cubins") { run_seeds("cubin", fuzz_cubin, 200); }
TEST_CASE("fuzz seeds: shape lists") { run_seeds("shape_list", fuzz_shape_list, 30); }
TEST_CASE("fuzz seeds: safetensors headers") { run_seeds("safetensors", fuzz_safetensors, 300); }
TEST_CASE("fuzz seeds: decision tables") { run_seeds("decision_table", fuzz_decision_table, 100); }
TEST_CASE("fuzz seeds: expressions") { run_seeds("expression", fuzz_expression, 300); }

}  // namespace ordo::test
