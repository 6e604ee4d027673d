// Values that the texts of OverlapGemm and OverlapPlan share.
#pragma once

#include "codegen/fields.hpp"

namespace ordo {

inline Result<bool> parse_yes_no(std::string_view text) {
  if (text == "yes") return true;
  if (text == "no") return false;
  return Error{ErrorCode::invalid_argument, text::quote(text) + " is neither yes nor no"};
}

}  // namespace ordo
