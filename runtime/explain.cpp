#include "runtime/explain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "codegen/generate/template_hash.hpp"
#include "runtime/compiler.hpp"

namespace ordo {
namespace {

std::string joined(const std::vector<std::string>& flags) {
  std::string text;
  for (const std::string& flag : flags) text += (text.empty() ? "" : " ") + flag;
  return text;
}

/// "key=value" words of a plan's text.
std::map<std::string, std::string> fields_of(const std::string& plan) {
  std::map<std::string, std::string> fields;
  std::istringstream words(plan);
  for (std::string word; words >> word;) {
    if (const std::size_t equals = word.find('='); equals != std::string::npos)
      fields[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return fields;
}

/// Entries of schema 1 know neither flags nor templates: what is unknown is not called different.
void compare(std::vector<KeyDifference>& out, const char* what, const std::string& wanted, const std::string& found) {
  if (!found.empty() && wanted != found) out.push_back({what, wanted, found});
}

std::vector<KeyDifference> differences_of(const cache::Entry& wanted, const cache::Entry& found) {
  std::vector<KeyDifference> out;
  compare(out, "toolchain", wanted.toolchain, found.toolchain);
  if (wanted.source_key == found.source_key) return out;
  compare(out, "architecture", wanted.arch, found.arch);
  compare(out, "flags", wanted.flags, found.flags);
  compare(out, "templates", wanted.templates, found.templates);
  const std::map<std::string, std::string> ours = fields_of(wanted.plan), theirs = fields_of(found.plan);
  for (const auto& [field, value] : ours) {
    const auto it = theirs.find(field);
    if (it == theirs.end() || it->second != value) out.push_back({field, value, it == theirs.end() ? "" : it->second});
  }
  if (out.empty()) out.push_back({"source", wanted.source_key, found.source_key});
  return out;
}

/// Fewer differences are nearer; of as many, one in the toolchain alone is nearest, since nothing but the compiler would have to
/// change.
std::pair<std::size_t, bool> distance(const std::vector<KeyDifference>& differences) {
  return {differences.size(), differences.empty() || differences.front().what != "toolchain"};
}

}  // namespace

Result<MissExplanation> explain_miss(const std::vector<cache::Store>& stores, const KernelSource& source, const std::string& plan,
                                     const std::string& toolchain) {
  const std::vector<std::string> flags = Compiler::flags(source.arch);
  cache::Entry wanted;
  wanted.name = source.name;
  wanted.plan = plan;
  wanted.toolchain = toolchain;
  wanted.arch = source.arch;
  wanted.flags = joined(flags);
  wanted.templates = template_hash(source);
  wanted.key = cache::kernel_key(source.text, flags, toolchain, source.arch);
  wanted.source_key = cache::source_key(source.text, flags, source.arch);

  MissExplanation result;
  result.kernel = source.name;
  result.key = wanted.key;
  for (const cache::Store& store : stores) {
    const Result<std::optional<cache::Entry>> hit = store.get(wanted.key);
    if (!hit) return hit.error();
    if (*hit) {
      result.layer = store.path();
      return result;
    }
  }
  for (const cache::Store& store : stores) {
    Result<std::vector<cache::Entry>> entries = store.list();
    if (!entries) return entries.error();
    for (cache::Entry& entry : *entries) {
      if (entry.name != source.name) continue;
      std::vector<KeyDifference> differences = differences_of(wanted, entry);
      if (entry.key == wanted.key) differences = {{"bytes", "those that were stored", "damaged: they have another SHA-256"}};
      if (result.nearest && distance(differences) >= distance(result.differences)) continue;
      result.nearest = std::move(entry);
      result.file = store.path();
      result.differences = std::move(differences);
    }
  }
  return result;
}

std::string MissExplanation::text() const {
  if (!layer.empty()) return fmt::format("{}: in {}", kernel, layer);
  if (!nearest) return fmt::format("{}: no entry of any '{}' kernel; nothing like it was compiled", kernel, kernel);
  std::string out = fmt::format("{}: not there; nearest is {} in {}, which differs in", kernel, nearest->key.substr(0, 16), file);
  for (const KeyDifference& d : differences) {
    const bool hash = d.wanted.size() == 64;
    out += fmt::format("\n  {:<14}{} / {}", d.what, hash ? d.wanted.substr(0, 16) : d.wanted,
                       hash ? d.found.substr(0, 16) : d.found);
  }
  return out;
}

}  // namespace ordo
