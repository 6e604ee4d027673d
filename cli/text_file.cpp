#include "cli/text_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace ordo::cli {

Result<void> write_text(const std::string& path, const std::string& text) {
  const auto failed = [&](int code) {
    return Error{ErrorCode::io,
                 fmt::format("{}: cannot write: {}", path, std::error_code(code, std::generic_category()).message())};
  };
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return failed(errno);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int reason = errno;
  if (std::fclose(file) != 0 || !written) return failed(written ? errno : reason);
  return {};
}

}  // namespace ordo::cli
