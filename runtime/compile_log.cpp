#include "runtime/compile_log.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace ordo {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\0')) line.remove_suffix(1);
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// The number that ends where `unit` starts: 24 for ("24 bytes spill stores", " bytes spill stores"). 0 when there is none.
int number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = 0;
  const auto [last, error] = std::from_chars(line.data() + begin, line.data() + end, value);
  return error == std::errc{} && last == line.data() + end ? value : 0;
}

/// "(C7510)": ptxas prints its performance advisories as info, with such a number.
bool has_advisory_number(std::string_view line) {
  const std::size_t at = line.find("(C");
  if (at == std::string_view::npos) return false;
  std::size_t end = at + 2;
  while (end < line.size() && line[end] >= '0' && line[end] <= '9') ++end;
  return end > at + 2 && end < line.size() && line[end] == ')';
}

bool is_warning(std::string_view line) {
  if (line.starts_with("ptxas")) return contains(line, "warning") || (contains(line, "info") && has_advisory_number(line));
  return contains(line, ": warning ") || contains(line, ": warning:");  // FILE(LINE): warning #177-D: ..., or nvrtc: warning: ...
}

/// "k.cu(1): error: ...", "k.cu(1): catastrophic error: ...", "ptxas ..., line 23; error   : ...", "ptxas fatal   : ...".
bool is_error(std::string_view line) {
  return contains(line, ": error") || contains(line, "; error ") || contains(line, "catastrophic error") ||
         line.starts_with("ptxas fatal");
}

}  // namespace

CompileLog parse_log(const std::string& log) {
  CompileLog result;
  for (const std::string_view line : lines_of(log)) {
    // A kernel that calls functions has one such line for each function.
    if (contains(line, " bytes stack frame")) {
      result.stack_bytes = std::max(result.stack_bytes, number_before(line, " bytes stack frame"));
      result.spill_store_bytes += number_before(line, " bytes spill stores");
      result.spill_load_bytes += number_before(line, " bytes spill loads");
    } else if (line.starts_with("ptxas info") && contains(line, "Used ")) {
      result.registers = std::max(result.registers, number_before(line, " registers"));
      result.stack_bytes = std::max(result.stack_bytes, number_before(line, " bytes cumulative stack size"));
    }
    if (is_warning(line)) result.warnings.emplace_back(line);
  }
  return result;
}

std::vector<std::string> broken_rules(const CompileLog& log) {
  std::vector<std::string> broken;
  for (const std::string& line : log.warnings) {
    const bool serialized = contains(line, "wgmma") && contains(line, "serializ");
    const bool numbered = contains(line, "(C7508)") || contains(line, "(C7510)") || contains(line, "(C7511)");
    if (serialized || numbered || contains(line, "setmaxnreg")) broken.push_back(line);
  }
  return broken;
}

std::string first_errors(const std::string& log, std::size_t limit) {
  const std::vector<std::string_view> lines = lines_of(log);
  std::vector<std::string_view> chosen;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(chosen), is_error);
  const std::size_t errors = chosen.size();
  if (chosen.empty()) chosen.assign(lines.end() - static_cast<std::ptrdiff_t>(std::min(limit, lines.size())), lines.end());
  std::string text;
  for (std::size_t i = 0; i < std::min(limit, chosen.size()); ++i) text.append(i == 0 ? "  " : "\n  ").append(chosen[i]);
  if (errors > limit) text += "\n  and " + std::to_string(errors - limit) + " more";
  return text;
}

}  // namespace ordo
