#include "tests/gpu/cells.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tests/gpu/cover.hpp"
#include "tests/gpu/plans.hpp"

namespace ordo::test {
namespace {

constexpr std::array<std::int64_t, 9> kLengths{1, 7, 64, 100, 129, 512, 1000, 2048, 4096};
constexpr int kFewWorkers = 7;
constexpr std::int64_t kTileKv = 128;

enum Factor { mask, schedule, accumulate, form, dtype, heads, seqlen_q, seqlen_k, static_shape, walks, workers };

CoverRequest request() {
  const int lengths = static_cast<int>(kLengths.size());
  CoverRequest out{{2, kScheduleLevels, 3, 3, 2, 3, lengths, lengths, 2, 2, 2}, {}};
  out.add_all_pairs();
  out.interactions.push_back({mask, schedule, accumulate, form});  // every kernel
  out.interactions.push_back({mask, schedule, accumulate, heads});
  out.interactions.push_back({mask, schedule, accumulate, seqlen_q});
  out.interactions.push_back({mask, schedule, accumulate, seqlen_k});
  out.interactions.push_back({mask, seqlen_q, seqlen_k});
  out.interactions.push_back({accumulate, seqlen_q, seqlen_k});
  out.interactions.push_back({form, seqlen_q, seqlen_k});
  return out;
}

/// Heads and batch. `many`: more items than an SM count of CTAs takes at once, as far as the fp64 reference stays affordable.
void set_heads(AttentionBackward& p, int kind, bool many, std::int64_t unit_kv) {
  constexpr std::int64_t kManyItems = 300, kPairs = std::int64_t{1} << 25, kLargeShape = std::int64_t{1} << 21;
  const bool large = p.seqlen_q * p.seqlen_k >= kLargeShape;
  const std::array<std::array<std::int64_t, 2>, 3> counts{
      {{large ? 2 : 3, large ? 2 : 3}, {large ? 4 : 8, large ? 1 : 2}, {3, 1}}};
  p.heads = counts[static_cast<std::size_t>(kind)][0];
  p.kv_heads = counts[static_cast<std::size_t>(kind)][1];
  const std::int64_t pairs = p.seqlen_q * p.seqlen_k * p.heads;
  const std::int64_t items = p.kv_heads * ((p.seqlen_k + unit_kv - 1) / unit_kv);
  const std::int64_t wanted = many ? (kManyItems + items - 1) / items : 2;
  p.batch = std::clamp<std::int64_t>(std::min(wanted, kPairs / pairs), 1, 512);
}

/// The device, or one of few SMs, so that a worker does many items and `ordered` waits often.
Target target_of(const Target& device, bool few, Schedule schedule, const AttentionBackward& p, int cluster) {
  if (!few) return device;
  Target target = device;
  target.sm_count = kFewWorkers;
  if (schedule == Schedule::alternate) {  // a walk must be resident whole
    const int units = static_cast<int>((p.seqlen_k + kTileKv * cluster - 1) / (kTileKv * cluster));
    target.sm_count = std::clamp(units * cluster, kFewWorkers, device.sm_count);
  }
  return target;
}

}  // namespace

std::vector<Cell> cover_cells(const Target& target, std::vector<std::string>& errors) {
  std::vector<Cell> cells;
  for (const Levels& level : cover(request())) {
    AttentionBackward p;
    p.mask = level[mask] == 0 ? Mask::full : Mask::causal;
    p.dtype = level[dtype] == 0 ? DType::bf16 : DType::fp16;
    p.head_dim = level[form] == 0 ? 64 : 128;
    const int cluster = level[form] == 2 ? 2 : 1;
    p.seqlen_q = kLengths[static_cast<std::size_t>(level[seqlen_q])];
    p.seqlen_k = kLengths[static_cast<std::size_t>(level[seqlen_k])];
    set_heads(p, level[heads], level[walks] == 1, kTileKv * cluster);
    const Schedule how = schedule_of(p.mask, level[schedule]);
    const Target where = target_of(target, level[workers] == 1, how, p, cluster);
    auto plan = plan_with(p, where, how, static_cast<Accumulate>(level[accumulate]), cluster, level[static_shape] == 1);
    if (plan) {
      cells.push_back({p, *std::move(plan)});
    } else {
      errors.push_back(fmt::format("no plan for {} schedule={}: {}", to_text(p), to_string(how), plan.error().message));
    }
  }
  return cells;
}

}  // namespace ordo::test
