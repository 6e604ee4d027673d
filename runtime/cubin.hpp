// Reads a cubin's ELF with LLVM's Object library: resources and symbols, every record bounds-checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ordo/error.hpp"

namespace ordo {

/// Resources of one kernel as its cubin states them (.nv.info). Spill counts are not in a cubin: see Cubin.
struct CubinKernel {
  std::string symbol;
  int registers = 0;
  int stack_bytes = 0;  ///< frame size
  int static_shared_bytes = 0;
  int barriers = 0;
  int max_threads = 0;  ///< 0 when not stated
  int parameter_bytes = 0;
};

struct CubinInfo {
  int sm = 0;  ///< 90 for sm_90 and sm_90a: the file does not tell them apart
  std::vector<CubinKernel> kernels;
};

/// Any bytes are safe to pass; those that are not a whole cubin give ErrorCode::bad_cubin that says what is wrong where.
ORDO_API Result<CubinInfo> read_cubin(std::span<const std::byte> bytes);

}  // namespace ordo
