// What must hold for any text that is given as an expression.
#pragma once

#include <string>
#include <string_view>

namespace ordo::fuzz {

/// Reads `text` as a mask; if it is one, prints it and reads that, checks its ranges, folds it, and evaluates both forms. Empty,
/// or what did not hold.
std::string check_expression(std::string_view text);

}  // namespace ordo::fuzz
