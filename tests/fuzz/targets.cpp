#include "tests/fuzz/targets.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "ordo/decision_table.hpp"
#include "ordo/shape_list.hpp"
#include "runtime/cubin.hpp"
#include "runtime/io/safetensors_header.hpp"
#include "tests/fuzz/expression.hpp"

namespace ordo::test {
namespace {

/// A property that does not hold ends the program, which is what a fuzzer looks for.
void require(bool property) {
  if (!property) std::abort();
}

std::string_view text_of(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

/// Where `error` says that a digest is not of what stands beside it, puts the right one in its place. A fuzzer finds no SHA-256,
/// and would see nothing of what lies behind the check.
bool put_digest_right(std::string& text, const std::string& error) {
  constexpr std::string_view kinds[][2] = {{"has the order fingerprint ", ", but has "},
                                           {"its hash is ", ", but its decisions have "}};
  for (const auto& [before, between] : kinds) {
    const std::size_t at = error.find(before), middle = error.find(between, at);
    if (at == std::string::npos || middle == std::string::npos) continue;
    const std::string wrong = error.substr(at + before.size(), middle - at - before.size());
    const std::string right = error.substr(middle + between.size(), error.find(':', middle) - middle - between.size());
    const std::size_t where = wrong.empty() ? std::string::npos : text.find(wrong);
    if (where == std::string::npos) return false;
    text.replace(where, wrong.size(), right);
    return true;
  }
  return false;
}

}  // namespace

void fuzz_cubin(std::span<const std::byte> bytes) {
  const Result<CubinInfo> info = read_cubin(bytes);
  if (!info) {
    require(info.error().code == ErrorCode::bad_cubin && !info.error().message.empty());
    return;
  }
  require(info->sm > 0 && !info->kernels.empty());
  for (const CubinKernel& kernel : info->kernels) require(!kernel.symbol.empty() && kernel.symbol.size() <= bytes.size());
}

void fuzz_shape_list(std::span<const std::byte> bytes) {
  if (bytes.size() > 4096) return;  // a few kB of lists multiply to a million problems: slow, and nothing new
  const Result<ShapeList> list = parse_shape_list(text_of(bytes), "fuzz.toml");
  if (!list) {
    require(list.error().message.starts_with("fuzz.toml"));
    return;
  }
  for (const ListedProblem& listed : list->problems) require(listed.problem.validate().ok());
  for (const Plan& plan : list->plans) require(plan.validate().ok());
  for (const OverlapPlan& plan : list->overlap_plans) require(plan.validate().ok());
  if (list->problems.size() > 1000) return;
  const Result<ShapeList> again = parse_shape_list(to_toml(*list), "again.toml");
  require(again.ok() && again->problems == list->problems && again->plans == list->plans &&
          again->overlap_plans == list->overlap_plans);
}

void fuzz_safetensors(std::span<const std::byte> bytes) {
  // The header alone, as its reader gets it: the first eight bytes stand for the size of the data behind it.
  if (bytes.size() < 8) return;
  std::uint64_t data_bytes = 0;
  std::memcpy(&data_bytes, bytes.data(), sizeof data_bytes);
  Result<io::Header> header = io::parse_header(text_of(bytes.subspan(8)));
  if (!header) {
    require(!header.error().message.empty());
    return;
  }
  if (!io::check_layout(*header, data_bytes)) return;
  std::uint64_t end = 0;
  for (const io::HeaderTensor& tensor : header->tensors) {
    require(tensor.begin == end && tensor.end >= tensor.begin && tensor.end <= data_bytes);
    end = tensor.end;
  }
  require(end == data_bytes);
}

void fuzz_decision_table(std::span<const std::byte> bytes) {
  std::string text(text_of(bytes));
  for (int attempt = 0; attempt < 8; ++attempt) {
    const Result<DecisionTable> table = parse_decision_table(text, "fuzz.json");
    if (table) {
      const Result<DecisionTable> again = parse_decision_table(to_json(*table), "again.json");
      require(again.ok() && again->decisions == table->decisions && again->measurements == table->measurements);
      require(diff(*table, *again).empty());
      return;
    }
    require(table.error().code == ErrorCode::invalid_argument &&
            table.error().message.starts_with("fuzz.json is no decision table"));
    if (!put_digest_right(text, table.error().message)) return;
  }
}

void fuzz_expression(std::span<const std::byte> bytes) {
  const std::string failure = fuzz::check_expression(text_of(bytes));
  if (!failure.empty()) (void)std::fprintf(stderr, "%s\n", failure.c_str());
  require(failure.empty());
}

}  // namespace ordo::test
