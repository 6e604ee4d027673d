#include "ordo/target.hpp"

#include <fmt/format.h>

#include <array>

#include "codegen/fields.hpp"

namespace ordo {
namespace {

constexpr std::string_view kArch = "sm_90a";
constexpr std::int64_t kMostSms = 1024;

/// Datasheet figures of the SXM cards. All have Hopper's 228 KiB of shared memory an SM (227 KiB a block) and 64 Ki registers.
const std::array<Target, 4>& known_targets() {
  static const std::array<Target, 4> targets{{
      {.name = "h100", .sm_count = 132, .tensor_tflops = 989, .l2_bytes = 50e6, .memory_gbps = 3350},
      {.name = "h200", .sm_count = 132, .tensor_tflops = 989, .l2_bytes = 50e6, .memory_gbps = 4800},
      {.name = "h800", .sm_count = 132, .tensor_tflops = 989, .l2_bytes = 50e6, .memory_gbps = 3350},
      {.name = "h20", .sm_count = 78, .tensor_tflops = 148, .l2_bytes = 60e6, .memory_gbps = 4000},
  }};
  return targets;
}

/// An unnamed target of that many SMs: an H200 scaled.
Target scaled_target(int sm_count) {
  Target target;
  const double share = sm_count / static_cast<double>(target.sm_count);
  target.name = kArch;
  target.sm_count = sm_count;
  target.tensor_tflops *= share;
  return target;
}

}  // namespace

Result<Target> parse_target(std::string_view text) {
  std::string known;
  for (const Target& target : known_targets()) {
    if (target.name == text) return target;
    known += target.name + ", ";
  }
  const std::size_t colon = text.find(':');
  if (colon != std::string_view::npos && text.substr(0, colon) == kArch) {
    auto sms = text::read_integer("SMs of target sm_90a:SMS", text.substr(colon + 1), 1, kMostSms);
    if (!sms) return sms.error();
    return scaled_target(static_cast<int>(*sms));
  }
  return Error{ErrorCode::invalid_argument,
               fmt::format("target {} is unknown; it is one of: {}sm_90a:SMS (SMS is the number of SMs, 1 .. {})",
                           text::quote(text), known, kMostSms)};
}

std::string to_text(const Target& target) {
  for (const Target& known : known_targets()) {
    if (known.name == target.name && known.sm_count == target.sm_count) return target.name;
  }
  return fmt::format("{}:{}", target.arch, target.sm_count);
}

}  // namespace ordo
