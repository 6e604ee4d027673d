// The device templates in a generated source, by their hash.
#pragma once

#include <string>

#include "ordo/kernel_source.hpp"

namespace ordo {

/// Hex SHA-256 of a source without the part that is written for the plan: the same for all plans by one version of the templates.
/// What tells "compiled from other templates" from "compiled for another plan".
ORDO_API std::string template_hash(const KernelSource& source);

}  // namespace ordo
