// One function a parser: any bytes must be refused or read, never crash, and what was read must be consistent. libFuzzer calls
// them, and the unit tests on the seeds.
#pragma once

#include <cstddef>
#include <span>

namespace ordo::test {

void fuzz_cubin(std::span<const std::byte> bytes);
void fuzz_shape_list(std::span<const std::byte> bytes);
void fuzz_safetensors(std::span<const std::byte> bytes);
void fuzz_decision_table(std::span<const std::byte> bytes);
void fuzz_expression(std::span<const std::byte> bytes);

}  // namespace ordo::test
