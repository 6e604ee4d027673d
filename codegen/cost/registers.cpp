#include "codegen/cost/registers.hpp"

#include <algorithm>

#include "codegen/generate/config.hpp"

namespace ordo::cost {
namespace {

constexpr int kConsumerThreads = 256;
constexpr int kBlockKeys = 128;  // keys whose scores are in registers at once: 64 a warpgroup

bool two_blocks(const Plan& plan) { return plan.tile_kv > kBlockKeys; }

// What ptxas adds to the accumulators, read off the probe (see README.md).

/// Row statistics in flight: 8 loads of two, and 4 more where the scores of a block begin beside the products of the one before.
int fragments_of(const Plan& plan) { return two_blocks(plan) ? 20 : 16; }

/// Descriptors, barriers, thread coordinates, loop state. In a cluster a warpgroup has one slice of dQ over both KV tiles; alone
/// it has its slices in turn, and with two blocks their offsets as well.
int addressing_of(const Plan& plan) { return plan.cluster == 2 ? 14 : two_blocks(plan) ? 22 : 18; }

/// The first rows that see a block's keys, where they follow from lengths that are no constants; what a mask by expression
/// evaluates; the row scale of `exact` and its like.
int shape_of(const Plan& plan) {
  int words = 0;
  if (plan.mask == Mask::causal && !plan.static_shape) words += 2;
  if (plan.accumulate == Accumulate::exact) words += 4;
  return words;
}

/// Values of the walk that live over a step of the consumer's loop: Q tile, first tile of the query head, steps left for the
/// head, unit; shift has its wave and wraps, alternate its direction, symmetric_shift its pair and where the triangle begins,
/// arrival a pointer, the word read ahead and the member.
int schedule_words(Schedule schedule) {
  switch (schedule) {
    case Schedule::ascending:
    case Schedule::descending:
      return 4;
    case Schedule::shift:
    case Schedule::alternate:
    case Schedule::symmetric_shift:
    case Schedule::arrival:
      return 7;
  }
  return 7;
}

/// A budget that holds everything but the schedule's state; below, ptxas serialises wgmma and spills.
int fewest_of(const Plan& plan) { return two_blocks(plan) ? 218 : 217; }

/// Besides, for arrival in the consumers with two blocks: the visits are loaded inside the loop, and there its two bodies leave
/// nothing that could be reloaded instead.
constexpr int kTableRegisters = 8;
int table_of(const Plan& plan) {
  const bool in_consumer = plan.schedule_state == ScheduleState::consumer && plan.schedule == Schedule::arrival;
  return in_consumer && two_blocks(plan) ? kTableRegisters : 0;
}

/// Below this the loader's walk does not fit: 24, FlashAttention-3's producer, spills.
constexpr int kFewestProducerRegisters = 32;

/// Spill bytes for each register that is missing, stores and loads: two stores and two loads of a value.
constexpr int kBytesMissing = 16;

}  // namespace

Registers predict_registers(const Plan& plan) {
  Registers r;
  r.accumulators = 2 * plan.tile_kv * plan.head_dim / kConsumerThreads + 2 * plan.tile_q * kBlockKeys / kConsumerThreads;
  r.fragments = fragments_of(plan);
  r.addressing = addressing_of(plan);
  r.shape = shape_of(plan);
  if (plan.schedule_state == ScheduleState::consumer) r.schedule = schedule_words(plan.schedule);
  r.total = r.accumulators + r.fragments + r.schedule + r.shape + r.addressing;
  const attention_backward::Config config = device_config(plan);
  r.budget = attention_backward::consumer_registers_of(config);
  r.spill_bytes = kBytesMissing * std::max(0, fewest_of(plan) + r.schedule + table_of(plan) - r.budget);
  r.spill_bytes += kBytesMissing * std::max(0, kFewestProducerRegisters - attention_backward::producer_registers_of(config));
  return r;
}

}  // namespace ordo::cost
