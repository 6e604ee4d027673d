// KernelSource: generated CUDA text and what is needed to compile it.
#pragma once

#include <string>
#include <vector>

#include "ordo/error.hpp"
#include "ordo/plan.hpp"
#include "ordo/target.hpp"

namespace ordo {

/// One kernel of a plan: a self-contained, header-free CUDA C++20 translation unit with one entry.
struct KernelSource {
  std::string name;      ///< "main", "preprocess", "convert", ("scales" for exact), "probe"; unique within a plan
  std::string entry;     ///< extern "C" symbol
  std::string text;      ///< the source
  std::string arch;      ///< "sm_90a"
  int threads = 0;       ///< a block
  int shared_bytes = 0;  ///< dynamic shared memory a block
};

/// What a plan's kernels are built for. Other flavours than normal have texts, and so keys, of their own.
enum class Flavour {
  normal,
  stalls,  ///< for debugging: the main kernel reads the clock around its waits for turns, see AttentionBackwardKernel::stalls
};

/// All kernels of a plan, the main one first. Pure and thread-safe; the same plan gives the same text.
ORDO_API Result<std::vector<KernelSource>> generate(const Plan& plan, const Target& target, Flavour flavour = Flavour::normal);

/// The consumer path of the main kernel alone, as a kernel of 256 threads without setmaxnreg, so that ptxas states what a
/// consumer needs: for a kernel with setmaxnreg it states the launch's 168 whatever the consumer takes. To be compiled, never
/// launched.
ORDO_API Result<KernelSource> generate_probe(const Plan& plan, const Target& target);

}  // namespace ordo
