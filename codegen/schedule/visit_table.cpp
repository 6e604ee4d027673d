#include "codegen/schedule/visit_table.hpp"

#include <fmt/format.h>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "codegen/expression/mask_tiles.hpp"
#include "codegen/schedule/proof.hpp"

namespace ordo {
namespace {

using expression::MaskTiles;
using expression::Visible;
using schedule::Geometry;

/// Slices of keys that a unit holds; the last unit may have fewer.
struct Slices {
  int first, end;
};
Slices slices_of(const Geometry& g, const MaskTiles& tiles, int unit) {
  const int each = g.unit_kv / expression::kSliceKeys;
  return {unit * each, std::min((unit + 1) * each, tiles.slices())};
}

TileKind kind_of(const Geometry& g, const MaskTiles& tiles, int unit, int q) {
  const Slices slices = slices_of(g, tiles, unit);
  bool any = false, all = true;
  for (int slice = slices.first; slice < slices.end; ++slice) {
    const Visible visible = tiles.at(slice, q);
    any = any || visible != Visible::none;
    all = all && visible == Visible::all;
  }
  return !any ? TileKind::none : all ? TileKind::full : TileKind::diagonal;
}

/// What a visit sees, as schedule.cuh lays it out. Slices beyond the keys see nothing.
std::uint32_t seen_word(const Geometry& g, const MaskTiles& tiles, int unit, int q) {
  const int each = g.unit_kv / expression::kSliceKeys;
  std::uint32_t word = 0;
  for (int i = 0; i < each; ++i) {
    const int slice = unit * each + i;
    const Visible visible = slice < tiles.slices() ? tiles.at(slice, q) : Visible::none;
    if (visible != Visible::all) word |= 1u << i;
    if (visible == Visible::none) word |= 1u << (schedule::kHiddenShift + i);
  }
  return word;
}

/// Units add in the order of their numbers, whatever their tiles.
Result<ArrivalTable> in_order(const Geometry& g, const std::function<TileKind(int, int)>& mask, bool down) {
  if (auto fits = check_table_size(g, 0); !fits) return fits.error();
  ArrivalTable table;
  table.units = g.units;
  table.q_tiles = g.q_tiles;
  std::vector<std::uint32_t> begins, visits;
  std::vector<int> added(static_cast<std::size_t>(g.q_tiles));
  const auto first = static_cast<std::uint32_t>(2 + g.units + g.units + 1);
  for (int unit = 0; unit < g.units; ++unit) {
    begins.push_back(first + static_cast<std::uint32_t>(visits.size()));
    for (int i = 0; i < g.q_tiles; ++i) {
      const int q = down ? g.q_tiles - 1 - i : i;
      if (mask(unit, q) != TileKind::none) visits.push_back(schedule::pack_visit({q, added[static_cast<std::size_t>(q)]++}));
    }
  }
  if (auto fits = check_table_size(g, static_cast<std::int64_t>(visits.size())); !fits) return fits.error();
  begins.push_back(first + static_cast<std::uint32_t>(visits.size()));
  table.words = {1, 1};
  table.words.resize(2 + static_cast<std::size_t>(g.units));
  std::iota(table.words.begin() + 2, table.words.end(), 0u);
  table.words.insert(table.words.end(), begins.begin(), begins.end());
  table.words.insert(table.words.end(), visits.begin(), visits.end());
  table.words.push_back(0);  // the kernels read ahead
  return table;
}

}  // namespace

bool reads_table(const Plan& plan) { return plan.arrival.has_value() || plan.mask.expression() != nullptr; }

std::function<TileKind(int unit, int q)> mask_of(const AttentionBackward& problem, const Plan& plan) {
  if (problem.mask.expression() == nullptr) return {};
  const auto tiles = std::make_shared<const MaskTiles>(problem, plan.tile_q);
  return [tiles, g = make_geometry(problem, plan)](int unit, int q) { return kind_of(g, *tiles, unit, q); };
}

void add_mask(const AttentionBackward& problem, const Plan& plan, ArrivalTable& table) {
  if (problem.mask.expression() == nullptr) return;
  const Geometry g = make_geometry(problem, plan);
  const MaskTiles tiles(problem, plan.tile_q);
  std::vector<std::uint32_t> contributors(static_cast<std::size_t>(g.q_tiles)), seen;
  const bool flips = table.patterns() > 1;
  for (int pattern = 0; pattern < table.patterns(); ++pattern) {
    for (int unit = 0; unit < g.units; ++unit) {
      const std::uint32_t* begins = schedule::arrival_begins(g, table.words.data(), {0, unit, flips && pattern == 1});
      const std::uint32_t of_first_head = (begins[1] - begins[0]) / table.words[1];
      for (std::uint32_t i = begins[0]; i < begins[1]; ++i) {
        const int q = schedule::unpack_visit(table.words[i]).q;
        seen.push_back(seen_word(g, tiles, unit, q));
        if (pattern == 0 && i - begins[0] < of_first_head) ++contributors[static_cast<std::size_t>(q)];
      }
    }
  }
  table.words.insert(table.words.end(), contributors.begin(), contributors.end());
  table.words.insert(table.words.end(), seen.begin(), seen.end());
  table.words.push_back(0);  // the kernels read ahead here too
}

Result<ArrivalTable> table_of(const AttentionBackward& problem, const Plan& plan) {
  if (plan.arrival) return arrival_of(problem, plan);
  auto table = in_order(make_geometry(problem, plan), mask_of(problem, plan), plan.schedule == Schedule::descending);
  if (table) add_mask(problem, plan, *table);
  return table;
}

}  // namespace ordo
