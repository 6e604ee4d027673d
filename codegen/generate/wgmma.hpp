// Writes the wgmma and conversion wrappers of one kernel: CUDA text whose operand lists depend on shape and element type.
#pragma once

#include <string>

#include "ordo/problem.hpp"

namespace ordo {

/// One wrapper of templates/sm90/wgmma.cuh.
struct WgmmaForm {
  int n = 0;  ///< columns of the accumulator, n / 2 registers a thread
  bool a_in_registers = false;
  bool transpose_a = false;  ///< A is MN-major (shared memory only)
  bool transpose_b = false;
  bool first = false;  ///< mma_first: D = A B
};

std::string wgmma_wrapper(const WgmmaForm& form, DType dtype);

/// pack and unpack_pair for the element type.
std::string conversion_wrappers(DType dtype);

}  // namespace ordo
