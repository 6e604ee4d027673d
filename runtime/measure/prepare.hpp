// Compiles many plans at once.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>

#include "ordo/ordo.hpp"

namespace ordo::measure {

/// By the plan's text. An error stands where a plan could not be prepared.
using Prepared = std::map<std::string, Result<AttentionBackwardKernel>>;

/// Prepares those of the plans that differ, on all processors. `progress` gets the share that is done, now and then, on any of
/// the threads but one at a time; it returns false to stop: then plans that were not begun are left out. It may be empty.
ORDO_API Prepared prepare_all(Engine& engine, std::span<const Plan> plans,
                              const std::function<bool(double share)>& progress = {});

}  // namespace ordo::measure
