// Templates to one self-contained text.
#pragma once

#include <string>
#include <string_view>

#include "ordo/error.hpp"

namespace ordo {

/// The template `path` with its includes before it, each file once, in include order; the one file `substituted` is replaced by
/// `text`. Starts with a line that says how to compile it alone.
ORDO_API std::string expand_template(std::string_view path, std::string_view substituted, std::string_view text);

}  // namespace ordo
