// Predicted registers and spills against ptxas, for a pairwise cover of the kernels and some that spill.
#include <doctest/doctest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/audit.hpp"
#include "runtime/compiler.hpp"
#include "tests/gpu/cover.hpp"
#include "tests/gpu/plans.hpp"

namespace ordo {
namespace {

/// {kernel, mask, schedule, accumulation, group and element type, schedule_state, baked shape}
const std::vector<int> kKinds{3, 2, test::kScheduleLevels, 3, 2, 2, 2};

Plan plan_of(const test::Levels& level) {
  Plan plan;
  plan.head_dim = level[0] == 2 ? 64 : 128;
  plan.cluster = level[0] == 0 ? 2 : 1;
  plan.tile_kv = plan.head_dim == 128 ? 128 : 256;
  plan.mask = level[1] == 0 ? Mask::full : Mask::causal;
  plan.schedule = test::schedule_of(plan.mask, level[2]);
  if (plan.schedule == Schedule::arrival) plan.arrival = Arrival{};
  plan.accumulate = static_cast<Accumulate>(level[3]);
  plan.group = level[4] == 0 ? 1 : 4;
  plan.dtype = level[4] == 0 ? DType::bf16 : DType::fp16;
  plan.schedule_state = static_cast<ScheduleState>(level[5]);
  if (level[6] == 1) plan.static_shape = StaticShape{4, 4096, 4096, 8};
  return plan;
}

/// One plan in `stride` of the cover, and of those that spill one that is short of registers for consumers and one for the
/// producer. `ordo audit` goes through all of them, in minutes.
std::vector<Plan> audited_plans(std::size_t stride) {
  test::CoverRequest request{kKinds, {}};
  request.add_all_pairs();
  std::vector<Plan> plans;
  const auto cover = test::cover(request);
  for (std::size_t i = 0; i < cover.size(); i += stride) plans.push_back(plan_of(cover[i]));
  std::set<int> seen;
  for (const Plan& plan : spilling_plans())
    if (seen.insert(plan.consumer_registers).second) plans.push_back(plan);
  return plans;
}

}  // namespace

TEST_CASE("audit: the plans that are audited exist") {
  std::set<std::string> texts;
  for (const std::vector<Plan>& plans : {support_matrix(), spilling_plans()})
    for (const Plan& plan : plans) {
      const auto valid = plan.validate();
      CHECK_MESSAGE(valid.ok(), to_text(plan));
      CHECK_MESSAGE(texts.insert(to_text(plan)).second, "twice: ", to_text(plan));
    }
  CHECK(support_matrix().size() >= 216);
  CHECK(spilling_plans().size() >= 8);
}

TEST_CASE("audit: registers within ten of ptxas' and spills foretold") {
  if (const auto nvrtc = Compiler::open(); !nvrtc) {
    MESSAGE("skipped, no NVRTC: ", nvrtc.error().message);
    return;
  }
  KernelBuilderOptions options;
  options.memory_cache_only = true;
  options.allow_spills = true;
  KernelBuilder builder(std::move(options));
  const auto target = parse_target("h200");
  REQUIRE(target);
#ifdef ORDO_SANITIZER  // what takes the time is NVRTC, which is not instrumented
  constexpr std::size_t kStride = 1000;
#else
  constexpr std::size_t kStride = 7;
#endif
  int spilling = 0;
  for (const Plan& plan : audited_plans(kStride)) {
    const auto row = audit(plan, *target, builder);
    REQUIRE_MESSAGE(row.ok(), (row ? "" : row.error().message));
    CAPTURE(to_text(plan));
    CAPTURE(row->predicted_registers);
    CAPTURE(row->actual_registers);
    CAPTURE(row->predicted_spill_bytes);
    CAPTURE(row->actual_spill_bytes);
    CHECK(row->registers_agree());
    CHECK(row->spill_agrees());
    spilling += row->actual_spill_bytes != 0 ? 1 : 0;
  }
  CHECK(spilling >= 2);
}

}  // namespace ordo
