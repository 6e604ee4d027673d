#include "runtime/calibration.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace ordo {

std::optional<std::string> calibration_path(const Target& target) {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (std::string file = variable("ORDO_COST"); !file.empty()) return file;
  std::string name = to_text(target);
  for (char& c : name)
    if (c == ':') c = '-';
  if (const std::string config = variable("XDG_CONFIG_HOME"); !config.empty())
    return fmt::format("{}/ordo/cost-{}.json", config, name);
  if (const std::string home = variable("HOME"); !home.empty()) return fmt::format("{}/.config/ordo/cost-{}.json", home, name);
  return std::nullopt;
}

Result<std::shared_ptr<const cost::Constants>> read_calibration(const std::string& path, const Target& target) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::shared_ptr<const cost::Constants>();
  const auto bad = [&](const std::string& what) {
    return Error{ErrorCode::io, fmt::format("calibration {}: {}; run ordo calibrate again, or remove the file", path, what)};
  };
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) return bad("it cannot be read");
  auto constants = cost::parse_constants(text);
  if (!constants) return bad(constants.error().message);
  if (constants->target != to_text(target))
    return bad(fmt::format("it is for {}, not for {}", constants->target, to_text(target)));
  constants->origin = fmt::format("{}, {}", path, constants->origin);
  return std::make_shared<const cost::Constants>(*std::move(constants));
}

std::shared_ptr<const cost::Constants> usable_calibration(const std::optional<std::string>& path, const Target& target,
                                                          const std::function<void(const std::string&)>& warn) {
  if (!path) return nullptr;
  auto constants = read_calibration(*path, target);
  if (constants) return *std::move(constants);
  if (warn) warn(constants.error().message + ". Planning with the constants that are shipped.");
  return nullptr;
}

std::shared_ptr<const cost::Constants> calibration_of(const EngineOptions& options, const Target& target) {
  const std::optional<std::string> path = options.calibration_path.empty() ? calibration_path(target) : options.calibration_path;
  return usable_calibration(path, target, options.warn);
}

}  // namespace ordo
