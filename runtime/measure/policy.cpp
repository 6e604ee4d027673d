#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "codegen/fields.hpp"
#include "ordo/measurement_policy.hpp"

namespace ordo {
namespace {

constexpr std::string_view kNoun = "measurement";
constexpr double kLongestMs = 600000;
constexpr int kMostRounds = 100;

text::Field time_field(std::string_view key, double& out) {
  return {key, [key, &out](std::string_view value) -> Result<void> {
            const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
            if (error == std::errc() && end == value.data() + value.size() && std::isfinite(out)) return {};
            return Error{ErrorCode::invalid_argument, fmt::format("{}={} is not a number", key, text::quote(value))};
          }};
}

}  // namespace

Result<void> MeasurementPolicy::validate() const {
  const std::array<std::pair<const char*, double>, 4> times{
      {{"first_warm_ms", first_warm_ms}, {"warm_ms", warm_ms}, {"round_warm_ms", round_warm_ms}, {"measure_ms", measure_ms}}};
  for (const auto& [name, ms] : times)
    if (!(ms >= 0 && ms <= kLongestMs))
      return Error{ErrorCode::invalid_argument, fmt::format("{} is {}; it must be within 0 .. {}", name, ms, kLongestMs)};
  if (measure_ms < 1)
    return Error{ErrorCode::invalid_argument, fmt::format("measure_ms is {}; it must be at least 1", measure_ms)};
  if (rounds < 1 || rounds > kMostRounds)
    return Error{ErrorCode::invalid_argument, fmt::format("rounds is {}; it must be within 1 .. {}", rounds, kMostRounds)};
  return {};
}

std::string to_text(const MeasurementPolicy& policy) {
  return fmt::format("{} first_warm_ms={} warm_ms={} round_warm_ms={} measure_ms={} rounds={} cold_l2={:d}", kNoun,
                     policy.first_warm_ms, policy.warm_ms, policy.round_warm_ms, policy.measure_ms, policy.rounds,
                     policy.cold_l2);
}

Result<MeasurementPolicy> parse_measurement_policy(std::string_view text) {
  MeasurementPolicy policy;
  int cold = 0;
  const std::vector<text::Field> fields{
      time_field("first_warm_ms", policy.first_warm_ms), time_field("warm_ms", policy.warm_ms),
      time_field("round_warm_ms", policy.round_warm_ms), time_field("measure_ms", policy.measure_ms),
      text::integer_field("rounds", policy.rounds),      text::integer_field("cold_l2", cold)};
  if (auto read = text::read_fields(text, kNoun, fields, ErrorCode::invalid_argument); !read) return read.error();
  if (cold != 0 && cold != 1) return Error{ErrorCode::invalid_argument, fmt::format("cold_l2 is {}; it is 0 or 1", cold)};
  policy.cold_l2 = cold == 1;
  if (auto valid = policy.validate(); !valid) return valid.error();
  return policy;
}

}  // namespace ordo
