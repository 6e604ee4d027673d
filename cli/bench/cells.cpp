#include "cli/bench/cells.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace ordo::cli {
namespace {

constexpr std::int64_t kTokens = 16384, kHidden = 2048;

bool matches(const std::string& name, std::string_view filter) {
  if (filter.empty()) return true;
  while (!filter.empty()) {
    const std::size_t comma = filter.find(',');
    const std::string_view part = filter.substr(0, comma);
    if (!part.empty() && name.find(part) != std::string::npos) return true;
    filter.remove_prefix(comma == std::string_view::npos ? filter.size() : comma + 1);
  }
  return false;
}

std::string name_of(std::string_view kind, const AttentionBackward& p) {
  return fmt::format("{}hd{}-{}-{}", kind, p.head_dim, to_string(p.mask), p.seqlen_q);
}

}  // namespace

std::vector<Cell> cells(const std::string& filter) {
  std::vector<Cell> all;
  for (const std::int64_t head_dim : {64, 128})
    for (const Mask mask : {Mask::full, Mask::causal})
      for (std::int64_t length = 512; length <= kTokens; length *= 2) {
        const AttentionBackward p{.batch = kTokens / length,
                                  .seqlen_q = length,
                                  .seqlen_k = length,
                                  .heads = kHidden / head_dim,
                                  .kv_heads = kHidden / head_dim,
                                  .head_dim = head_dim,
                                  .mask = mask};
        all.push_back({name_of("", p), p});
      }
  AttentionBackward p{
      .batch = 1, .seqlen_q = 8192, .seqlen_k = 8192, .heads = 32, .kv_heads = 8, .head_dim = 128, .mask = Mask::causal};
  all.push_back({name_of("gqa4-", p), p});
  p.kv_heads = 4;
  all.push_back({name_of("gqa8-", p), p});
  p.kv_heads = 32;
  all.push_back({name_of("mha32-", p), p});
  std::erase_if(all, [&](const Cell& cell) { return !matches(cell.name, filter); });
  return all;
}

AttentionBackward sibling(const AttentionBackward& problem) {
  AttentionBackward p = problem;
  p.batch = 1;
  p.seqlen_q = p.seqlen_k = std::min<std::int64_t>(problem.seqlen_q - 12, 1000);  // not a multiple of any tile
  p.kv_heads = problem.group() == 1 ? 4 : 1;
  p.heads = p.kv_heads * problem.group();
  return p;
}

}  // namespace ordo::cli
