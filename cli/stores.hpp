// Cache files as the verbs that look after them open them: what is not there is an error, nothing is made.
#pragma once

#include <string>
#include <vector>

#include "cache/store.hpp"

namespace ordo::cli {

/// `path`, else the default cache. Errors: no such place, no such file.
Result<cache::Store> open_cache(const std::string& path);

/// A file that is only read, whoever else uses it.
Result<cache::Store> open_other(const std::string& path);

/// Every file a run would look into: --cache or the default one, and the layers. Those that are not there are left out.
Result<std::vector<cache::Store>> open_layers(const std::string& path);

}  // namespace ordo::cli
