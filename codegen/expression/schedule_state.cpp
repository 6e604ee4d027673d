#include "codegen/expression/schedule_state.hpp"

#include <string>
#include <utility>

#include "codegen/expression/parse.hpp"

namespace ordo::expression {
namespace {

using schedule::Kind;

// Definitions are named as the functions of schedule.cuh.

/// first_q(unit) under a causal mask.
std::string first_q(const std::string& name, const std::string& unit) {
  return name + " = min(max(" + unit + " * unit_kv - (seqlen_k - seqlen_q), 0) / tile_q, q_tiles);";
}

constexpr const char* kContributors =
    "last_key = min((tile + 1) * tile_q, seqlen_q) - 1 - seqlen_q + seqlen_k;"
    "contributors = last_key < 0 ? 0 : min(last_key / unit_kv + 1, units);";

// symmetric_shift: the pair of the unit, its wave, and the first Q tile that every long unit of the wave sees.
const std::string kPair =
    "pair = min(unit, units - 1 - unit);"
    "wave_first = pair - pair % wave;"
    "wave_end = min(wave_first + wave, (units + 1) / 2);" +
    first_q("common", "(wave_end - 1)");

struct Texts {
  std::string start_q, next_q, rank;
};

Texts symmetric_shift() {
  const std::string start = "common + stride * (unit % wave)";
  return {kPair + "down == 1 ? q_tiles - 1 : " + start,
          kPair + first_q("first", "unit") + "start = " + start + ";" +
              "turned = tile + 1 == q_tiles ? common : tile + 1;"
              "down == 1 ? tile - 1 : tile < common ? tile + 1 : turned == start ? first : turned",
          kPair + kContributors +
              "in_wave = wave_end - wave_first;"
              "shorts = units / 2;"
              "before = min(contributors, wave_first) + max(min(wave_first, shorts) - (units - contributors), 0);"
              "turn = min((tile - common) / stride, in_wave - 1) - (pair - wave_first);"
              "unit != pair ? before + in_wave + min(wave_end, shorts) - 1 - pair"
              " : tile < common ? before + min(contributors, wave_end) - 1 - pair"
              " : before + (turn < 0 ? turn + in_wave : turn)"};
}

std::optional<Texts> texts_of(Kind kind, bool causal) {
  const std::string first = causal ? first_q("first", "unit") + "first" : "0";
  switch (kind) {
    case Kind::ascending:
      return Texts{first, "tile + 1", "unit"};
    case Kind::descending:
      return Texts{"q_tiles - 1", "tile - 1", "unit"};
    case Kind::shift:
      return Texts{"stride * (unit % wave)", "tile + 1 == q_tiles ? 0 : tile + 1",
                   "first = unit - unit % wave;"
                   "in_wave = min(wave, units - first);"
                   "turn = min(tile / stride, in_wave - 1) - (unit - first);"
                   "first + (turn < 0 ? turn + in_wave : turn)"};
    case Kind::alternate:
      return Texts{first_q("first", "unit") + "down == 1 ? q_tiles - 1 : first", "down == 1 ? tile - 1 : tile + 1",
                   std::string(kContributors) + "down == 1 ? unit : contributors - 1 - unit"};
    case Kind::symmetric_shift:
      return symmetric_shift();
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<ScheduleState> schedule_state(Kind kind, bool causal) {
  const std::optional<Texts> texts = texts_of(kind, causal);
  if (!texts) return std::nullopt;
  const auto read = [](const std::string& text) { return *parse(text, Scope::schedule, Type::integer); };
  return ScheduleState{read(texts->start_q), read(texts->next_q), read(texts->rank)};
}

Domain known_geometry(const schedule::Geometry& g) {
  Domain known;
  known.set(Variable::seqlen_q, g.seqlen_q);
  known.set(Variable::seqlen_k, g.seqlen_k);
  known.set(Variable::q_tiles, g.q_tiles);
  known.set(Variable::units, g.units);
  known.set(Variable::tile_q, g.tile_q);
  known.set(Variable::unit_kv, g.unit_kv);
  known.set(Variable::wave, g.wave);
  known.set(Variable::stride, g.stride);
  known[Variable::tile] = {0, g.q_tiles - 1};
  known[Variable::unit] = {0, g.units - 1};
  known[Variable::down] = {0, 1};
  return known;
}

}  // namespace ordo::expression
