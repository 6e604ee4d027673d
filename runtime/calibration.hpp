// The constants of the cost model that `ordo calibrate` stored for a target.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "codegen/cost/constants.hpp"
#include "ordo/error.hpp"
#include "ordo/ordo.hpp"
#include "ordo/target.hpp"

namespace ordo {

/// Where they are kept: $ORDO_COST, else $XDG_CONFIG_HOME/ordo/cost-TARGET.json, else ~/.config/ordo/cost-TARGET.json. nullopt
/// where none of the variables is set.
ORDO_API std::optional<std::string> calibration_path(const Target& target);

/// What `path` holds; null when there is no such file. Their origin names the file. Errors: a file that cannot be read, is no set
/// of constants, or is for another target; the message says to calibrate again or to remove it.
ORDO_API Result<std::shared_ptr<const cost::Constants>> read_calibration(const std::string& path, const Target& target);

/// The same for those who plan, whom a calibration that cannot be used does not stop: null, and `warn` (which may be empty) is
/// told. Null without a path, too.
ORDO_API std::shared_ptr<const cost::Constants> usable_calibration(const std::optional<std::string>& path, const Target& target,
                                                                   const std::function<void(const std::string&)>& warn);

/// That of an engine made with `options`.
std::shared_ptr<const cost::Constants> calibration_of(const EngineOptions& options, const Target& target);

}  // namespace ordo
