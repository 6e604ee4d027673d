#include "codegen/cost/registers.hpp"

#include <algorithm>

#include "codegen/generate/config.hpp"

namespace ordo::cost {
namespace {

constexpr int kConsumerThreads = 256;
constexpr int kBlockKeys = 128;  // keys whose scores are in registers at once: 64 a warpgroup

/// What ptxas adds to the accumulators, read off the probe (see README.md): row statistics in flight (8 loads of two, and 4 more
/// where the scores of a block begin beside the products of the one before); then descriptors, barriers, thread and loop state.
int fragments_of(const Plan& plan) { return plan.tile_kv > kBlockKeys ? 20 : 16; }
constexpr int kAddressing = 22;

/// A budget that holds everything but the schedule's state; below, ptxas serialises wgmma and spills.
int fewest_of(const Plan& plan) { return plan.tile_kv > kBlockKeys ? 218 : 217; }

/// Values of the walk that live over a step of the consumer's loop: Q tile, first tile of the query head, steps left for the
/// head, unit; shift has its wave and wraps, alternate its direction.
int schedule_words(Schedule schedule) { return schedule == Schedule::ascending || schedule == Schedule::descending ? 4 : 7; }

/// Below this the loader's walk does not fit: 24, FlashAttention-3's producer, spills.
constexpr int kFewestProducerRegisters = 32;

/// Spill bytes for each register that is missing, stores and loads: two stores and two loads of a value.
constexpr int kBytesMissing = 16;

}  // namespace

Registers predict_registers(const Plan& plan) {
  Registers r;
  r.accumulators = 2 * plan.tile_kv * plan.head_dim / kConsumerThreads + 2 * plan.tile_q * kBlockKeys / kConsumerThreads;
  r.fragments = fragments_of(plan);
  r.addressing = kAddressing;
  if (plan.schedule_state == ScheduleState::consumer) r.schedule = schedule_words(plan.schedule);
  r.total = r.accumulators + r.fragments + r.schedule + r.shape + r.addressing;
  const attention_backward::Config config = device_config(plan);
  r.budget = attention_backward::consumer_registers_of(config);
  r.spill_bytes = kBytesMissing * std::max(0, fewest_of(plan) + r.schedule - r.budget);
  r.spill_bytes += kBytesMissing * std::max(0, kFewestProducerRegisters - attention_backward::producer_registers_of(config));
  return r;
}

}  // namespace ordo::cost
