#include "cli/report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <string_view>

namespace ordo::cli {

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_problem:
    case ErrorCode::invalid_plan:
    case ErrorCode::invalid_argument:
    case ErrorCode::unsupported:
      return kBadUsage;
    default:
      return kEnvironment;
  }
}

int report_error(const Error& error) {
  fmt::print(stderr, "error: {}\n", error.message);
  return exit_code(error.code);
}

void print_json(const Json& json) { print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace)); }

void note(const std::string& text) {
  static std::set<std::string> said;  // the command runs on one thread
  if (said.insert(text).second) fmt::print(stderr, "note: {}\n", text);
}

std::string bytes_text(double bytes) {
  constexpr std::string_view kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < std::size(kUnits)) {
    bytes /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

Json to_json(const KernelReport& kernel) {
  return {{"name", kernel.name},
          {"key", kernel.key},
          {"cache", kernel.cache_hit ? "hit" : "miss"},
          {"cache_layer", kernel.cache_layer},
          {"arch", kernel.arch},
          {"launch_registers", kernel.launch_registers},
          {"spill_bytes", kernel.spill_bytes},
          {"stack_bytes", kernel.stack_bytes},
          {"shared_bytes", kernel.shared_bytes},
          {"barriers", kernel.barriers},
          {"compile_ms", kernel.compile_ms},
          {"cubin_sha256", kernel.cubin_sha256}};
}

Json kernels_json(const std::vector<KernelReport>& kernels) {
  Json json = to_json(kernels.front());
  json.erase("name");
  const bool all_hit = std::all_of(kernels.begin(), kernels.end(), [](const KernelReport& kernel) { return kernel.cache_hit; });
  json["cache"] = all_hit ? "hit" : "miss";
  Json list = Json::array();
  for (const KernelReport& kernel : kernels) list.push_back(to_json(kernel));
  json["kernels"] = std::move(list);
  return json;
}

void print_kernels(const std::vector<KernelReport>& kernels) {
  print("{:<12}{:>6}{:>11}{:>8}{:>8}{:>10}{:>12}  {}\n", "kernel", "cache", "registers", "spills", "stack", "shared",
        "compile ms", "key");
  for (const KernelReport& kernel : kernels) {
    print("{:<12}{:>6}{:>11}{:>8}{:>8}{:>10}{:>12.0f}  {}\n", kernel.name, kernel.cache_hit ? "hit" : "miss",
          kernel.launch_registers, kernel.spill_bytes, kernel.stack_bytes, kernel.shared_bytes, kernel.compile_ms,
          kernel.key.substr(0, 16));
  }
}

Json errors_json(const reference::CheckResult& result, double reference::GradientError::* member) {
  const auto number = [member](const reference::GradientError& error) {
    return std::isfinite(error.*member) ? Json(error.*member) : Json();
  };
  return {{"dq", number(result.dq)}, {"dk", number(result.dk)}, {"dv", number(result.dv)}};
}

void print_errors(const reference::CheckResult& result) {
  for (const auto& [name, error] : {std::pair{"dq", result.dq}, std::pair{"dk", result.dk}, std::pair{"dv", result.dv}}) {
    print("{:<14}{:.2e} of the fp64 norm, {:.2e} allowed: {}\n", fmt::format("error {}", name), error.relative, error.allowed,
          error.within ? "ok" : "TOO LARGE");
  }
}

}  // namespace ordo::cli
