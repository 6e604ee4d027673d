// One kernel onto a stream.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <array>
#include <initializer_list>

#include "runtime/driver.hpp"

namespace ordo {

struct Grid {
  unsigned x = 1, y = 1;
};

/// Launches a kernel that takes one struct. `attributes` may be empty, four at most. `what` is a literal, here and elsewhere on
/// this path: a launch allocates nothing.
template <class Params>
Result<void> launch_kernel(const Driver& driver, CUfunction function, const char* what, Grid grid, int threads, int shared_bytes,
                           Params& params, CUstream stream, std::initializer_list<CUlaunchAttribute> attributes) {
  std::array<CUlaunchAttribute, 4> list{};
  std::copy(attributes.begin(), attributes.end(), list.begin());
  CUlaunchConfig config{};
  config.gridDimX = grid.x;
  config.gridDimY = grid.y;
  config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(threads);
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(shared_bytes);
  config.hStream = stream;
  config.attrs = list.data();
  config.numAttrs = static_cast<unsigned>(attributes.size());
  std::array<void*, 1> arguments{&params};
  return driver.check(driver.launchKernelEx(&config, function, arguments.data(), nullptr), what);
}

}  // namespace ordo
