// What a verb prints, and the exit code it ends with.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "ordo/error.hpp"
#include "ordo/ordo.hpp"
#include "runtime/reference/attention.hpp"

namespace ordo::cli {

/// Keeps its keys in the order in which they were set.
using Json = nlohmann::ordered_json;

inline constexpr int kOk = 0;
inline constexpr int kFailedCheck = 1;
inline constexpr int kBadUsage = 2;
inline constexpr int kEnvironment = 3;

/// kBadUsage for what the user asked wrongly, kEnvironment for what the machine lacks.
int exit_code(ErrorCode code);

/// Prints `error: ...` to standard error and returns the exit code.
int report_error(const Error& error);

/// The one thing on standard output with --json.
void print_json(const Json& json);

/// A line on standard error, for what a person should know and no program reads. Each text once.
void note(const std::string& text);

/// Prints formatted text to standard output.
template <class... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print(stdout, format, std::forward<Args>(args)...);
}

/// `12.3 kB`, `4.56 GB`: decimal units, three digits.
std::string bytes_text(double bytes);

/// A kernel's resources: key, cache, arch, launch_registers, spill_bytes, ...
Json to_json(const KernelReport& kernel);

/// The main kernel's fields; `cache` is "hit" only if every kernel hit; and all of them as `kernels`.
Json kernels_json(const std::vector<KernelReport>& kernels);

/// The same as a table.
void print_kernels(const std::vector<KernelReport>& kernels);

/// {dq, dk, dv}. JSON knows no infinity: a relative error that is not finite is null.
Json errors_json(const reference::CheckResult& result, double reference::GradientError::* member);

/// One line a gradient: error, bound, verdict.
void print_errors(const reference::CheckResult& result);

}  // namespace ordo::cli
