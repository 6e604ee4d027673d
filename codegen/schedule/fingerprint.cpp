#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "codegen/hash/sha256.hpp"
#include "codegen/schedule/proof.hpp"
#include "codegen/schedule/rules.hpp"
#include "codegen/schedule/visit_table.hpp"

namespace ordo {
namespace {

/// Hash of what one walk does: for each item, in dispatch order, its Q tiles and its turn at each. Of the turns only the order
/// counts, and nothing in `exact`, where integer sums do not depend on it.
std::string walk_hash(const schedule::Geometry& g, const ScheduleRules& rules, bool flipped, bool with_ranks) {
  std::string item_hashes;
  std::vector<std::int32_t> words;
  // Three query heads show how alternate walks any number of them.
  const int heads = g.kind == schedule::Kind::alternate ? g.heads : rules.members();
  for (int place = 0; place < schedule::walk_items(g); ++place) {
    words.clear();
    for (ItemWalk walk(rules, rules.item(0, place, flipped), 0, heads); !walk.done(); walk.advance(rules)) {
      words.push_back(walk.at().item.unit);
      words.push_back(walk.at().q);
      if (with_ranks) words.push_back(rules.rank(walk.at()));
    }
    item_hashes += sha256_hex(std::as_bytes(std::span(words)));
  }
  return sha256_hex(item_hashes);
}

}  // namespace

std::string order_fingerprint(const AttentionBackward& problem, const Plan& plan) {
  schedule::Geometry g = make_geometry(problem, plan);
  if (g.kind == schedule::Kind::alternate) g.heads = std::min(g.heads, 3);
  Result<ArrivalTable> table{ArrivalTable{}};
  if (reads_table(plan)) table = table_of(problem, plan);
  if (!table) return "";
  const ScheduleRules rules(g, reads_table(plan) ? table->words.data() : nullptr);
  std::string text = fmt::format(
      "order 1 head_dim={} tile_q={} tile_kv={} cluster={} group={} accumulate={} units={} q_tiles={} ", plan.head_dim,
      plan.tile_q, plan.tile_kv, plan.cluster, plan.group, to_string(plan.accumulate), g.units, g.q_tiles);
  const bool with_ranks = plan.accumulate == Accumulate::ordered;
  text += walk_hash(g, rules, false, with_ranks);
  // Which walks are flipped follows from the size of the groups.
  if (rules.patterns() > 1 && g.head_group < g.walks) {
    text += fmt::format(" head_group={} {}", g.head_group, walk_hash(g, rules, true, with_ranks));
  }
  return sha256_hex(text).substr(0, 16);
}

}  // namespace ordo
