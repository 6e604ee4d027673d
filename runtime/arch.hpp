// Names of GPU architectures.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace ordo {

/// 90 for "sm_90" and "sm_90a"; nullopt for anything that is no real architecture ("compute_90" is a virtual one).
inline std::optional<int> arch_number(std::string_view arch) {
  if (!arch.starts_with("sm_")) return std::nullopt;
  arch.remove_prefix(3);
  int number = 0;
  const auto [end, error] = std::from_chars(arch.data(), arch.data() + arch.size(), number);
  const std::string_view suffix(end, static_cast<std::size_t>(arch.data() + arch.size() - end));
  if (error != std::errc{} || (!suffix.empty() && suffix != "a" && suffix != "f")) return std::nullopt;
  return number;
}

}  // namespace ordo
