// Target: the GPU a plan is made for, by name or from a device, so that planning and compiling need no GPU.
#pragma once

#include <string>
#include <string_view>

#include "ordo/error.hpp"

namespace ordo {

struct Target {
  std::string name = "h200";    ///< "h100", "h200", "h800", "h20", or "sm_90a" for a target given by hand
  std::string arch = "sm_90a";  ///< NVRTC --gpu-architecture, exact
  int sm_count = 132;
  int shared_bytes_per_block = 232448;  ///< dynamic shared memory one block may opt in to
  int registers_per_sm = 65536;
  double tensor_tflops = 989.0;  ///< dense bf16 peak, datasheet
  double l2_bytes = 50e6;
  double memory_gbps = 4800.0;  ///< DRAM, datasheet

  friend bool operator==(const Target&, const Target&) = default;
};

/// "h100" (132 SMs), "h200" (132), "h800" (132), "h20" (78), or "sm_90a:SMS" with 1 <= SMS <= 1024.
ORDO_API Result<Target> parse_target(std::string_view text);

/// Text that parse_target reads back: the name, or "sm_90a:SMS".
ORDO_API std::string to_text(const Target& target);

}  // namespace ordo
