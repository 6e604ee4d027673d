// What ordo costs beside the kernels: host time of a launch, and the way from a cache file to a loaded kernel.
#pragma once

#include <string>

#include "tests/bench/suite/device.hpp"

namespace ordo::bench {

/// Prints host microseconds of launch(), of the bare cuLaunchKernelEx calls with the same functions and parameters, and of a
/// cache hit up to the first launch, here and in processes of their own.
Result<void> print_overheads(Device& device);

/// One cache hit, for a process of its own: opens `cache`, prepares the plan that print_overheads put there, launches, prints.
Result<void> print_cache_hit(const std::string& cache);

}  // namespace ordo::bench
