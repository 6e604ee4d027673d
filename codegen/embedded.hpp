// Files that are embedded at build time (codegen/embed.cmake).
#pragma once

#include <string_view>
#include <vector>

namespace ordo {

struct EmbeddedFile {
  std::string_view path;  ///< relative to the folder, e.g. "sm90/wgmma.cuh"
  std::string_view text;
};

/// All of templates/, sorted by path: the device templates.
const std::vector<EmbeddedFile>& template_files();

/// All of codegen/cost/targets/, sorted by path: the constants of the cost model.
const std::vector<EmbeddedFile>& constant_files();

}  // namespace ordo
