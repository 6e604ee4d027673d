// The device templates, embedded at build time.
#pragma once

#include <string_view>
#include <vector>

namespace ordo {

struct TemplateFile {
  std::string_view path;  ///< relative to templates/, e.g. "sm90/wgmma.cuh"
  std::string_view text;
};

/// All of templates/, sorted by path.
const std::vector<TemplateFile>& template_files();

}  // namespace ordo
