// Reads NVRTC's log: what a compiled kernel must not say, and the part of a failed compile that a person needs.
#pragma once

#include <string>
#include <vector>

#include "runtime/compiler.hpp"

namespace ordo {

/// The warnings after which a kernel is not the one its source describes: setmaxnreg ignored (C7508 and its kin, C7507 among
/// them), or wgmma serialised (C7510, C7511 and the other "wgmma.mma_async instructions are serialized"). Waits that ptxas merely
/// injects (C7517, C7519) are not among them.
std::vector<std::string> broken_rules(const CompileLog& log);

/// The first `limit` error lines, or the log's last lines when it has none (NVRTC's "too much shared memory" is silent).
std::string first_errors(const std::string& log, std::size_t limit = 8);

}  // namespace ordo
