// Writing a text to a file.
#pragma once

#include <string>

#include "ordo/error.hpp"

namespace ordo::cli {

/// Errors (io) name the path and the reason.
Result<void> write_text(const std::string& path, const std::string& text);

}  // namespace ordo::cli
