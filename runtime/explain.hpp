// Why a kernel is not in the cache: the entry that is nearest to it, and what differs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cache/store.hpp"
#include "ordo/kernel_source.hpp"

namespace ordo {

/// One thing that is not the same.
struct KeyDifference {
  std::string what;  ///< "toolchain", "architecture", "flags", "templates", "source", or a field of the plan
  std::string wanted, found;
};

struct MissExplanation {
  std::string kernel;  ///< "main", ...
  std::string key;     ///< that was looked for
  std::string layer;   ///< the file that has it; empty for a miss
  std::string file;    ///< of the nearest entry
  std::optional<cache::Entry> nearest;
  std::vector<KeyDifference> differences;           ///< from `nearest`, which is what would have to change for a hit
  [[nodiscard]] ORDO_API std::string text() const;  ///< a few lines for a person
};

/// Looks for the kernel among `stores`, in order, and at their entries where it is not there. `toolchain` is that of this machine
/// ("NVRTC 13.0.88"), `plan` the canonical text of the plan. Errors: a store cannot be read.
ORDO_API Result<MissExplanation> explain_miss(const std::vector<cache::Store>& stores, const KernelSource& source,
                                              const std::string& plan, const std::string& toolchain);

}  // namespace ordo
