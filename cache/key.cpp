#include <string_view>

#include "cache/store.hpp"
#include "codegen/hash/sha256.hpp"

namespace ordo::cache {
namespace {

// A change of what the key covers, or of what a stored cubin must satisfy, takes a new number here: old entries then no longer
// match.
constexpr std::string_view key_schema = "ordo kernel 1";

/// Every part with its length before it, so that no two lists of parts give one text.
class Parts {
 public:
  Parts& add(std::string_view part) {
    text_ += std::to_string(part.size());
    text_ += ':';
    text_ += part;
    return *this;
  }
  Parts& add(const std::vector<std::string>& list) {
    add(std::to_string(list.size()));
    for (const std::string& part : list) add(part);
    return *this;
  }
  [[nodiscard]] std::string digest() const { return sha256_hex(text_); }

 private:
  std::string text_;
};

}  // namespace

std::string kernel_key(const std::string& source, const std::vector<std::string>& flags, const std::string& toolchain,
                       const std::string& arch) {
  return Parts().add(key_schema).add(source).add(flags).add(toolchain).add(arch).digest();
}

std::string source_key(const std::string& source, const std::vector<std::string>& flags, const std::string& arch) {
  return Parts().add(key_schema).add(source).add(flags).add(arch).digest();
}

}  // namespace ordo::cache
