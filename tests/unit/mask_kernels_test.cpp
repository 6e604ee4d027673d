// Kernels with masks by expression: what the mask adds must fit in registers, the loader's and a consumer's.
#include <doctest/doctest.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ordo/kernel_source.hpp"
#include "ordo/plan.hpp"
#include "runtime/compiler.hpp"
#include "tests/gpu/masks.hpp"

namespace ordo {
namespace {

Plan plan_of(int kernel, Accumulate accumulate, std::string_view mask) {
  Plan plan;
  plan.head_dim = kernel == 2 ? 64 : 128;
  plan.cluster = kernel == 0 ? 2 : 1;
  plan.tile_kv = plan.head_dim == 128 ? 128 : 256;
  plan.accumulate = accumulate;
  plan.dq_buffers = plan.cluster == 2 || accumulate != Accumulate::ordered ? 1 : plan.head_dim == 128 ? 2 : 3;
  const auto parsed = parse_mask(mask);
  REQUIRE_MESSAGE(parsed.ok(), (parsed ? "" : parsed.error().message));
  plan.mask = *parsed;
  return plan;
}

/// Every kernel and accumulation, with the masks of the GPU suite in turn, and so groups, element types, schedules and shapes.
/// `exact` in a cluster once more: there consumers have the fewest registers to spare.
std::vector<Plan> plans() {
  constexpr std::array kGroups{4, 1, 3, 2};
  std::vector<Plan> plans;
  for (int i = 0; i < 9; ++i) {
    Plan plan =
        plan_of(i / 3, static_cast<Accumulate>(i % 3), test::kMaskTexts[static_cast<std::size_t>(i) % test::kMaskTexts.size()]);
    plan.group = kGroups[static_cast<std::size_t>(i) % kGroups.size()];
    plan.dtype = i % 2 == 0 ? DType::bf16 : DType::fp16;
    const std::vector<Schedule> schedules = schedules_of(plan.mask);
    plan.schedule = schedules[static_cast<std::size_t>(i) % schedules.size()];
    if (plan.schedule == Schedule::arrival) plan.arrival = Arrival{};  // what its table holds is not in the kernel
    if (i % 4 == 3) plan.static_shape = StaticShape{2, 1000, 512, 2};
    plans.push_back(plan);
  }
  Plan tight = plan_of(0, Accumulate::exact, "expr:(q+head)%7<3||batch==0&&k%5==1");
  tight.group = 2;
  tight.static_shape = StaticShape{1, 100, 1, 2};
  plans.push_back(tight);
  return plans;
}

}  // namespace

TEST_CASE("mask kernels: no register spills and wgmma runs on") {
  const auto nvrtc = Compiler::open();
  if (!nvrtc) {
    MESSAGE("skipped, no NVRTC: ", nvrtc.error().message);
    return;
  }
  const auto target = parse_target("h200");
  REQUIRE(target);
#ifdef ORDO_SANITIZER  // what takes the time is NVRTC, which is not instrumented
  constexpr std::size_t kStride = 9;
#else
  constexpr std::size_t kStride = 1;
#endif
  const std::vector<Plan> all = plans();
  for (std::size_t i = 0; i < all.size(); i += kStride) {
    const auto sources = generate(all[i], *target);
    REQUIRE_MESSAGE(sources.ok(), (sources ? "" : sources.error().message));
    const auto cubin = nvrtc->compile(sources->front());  // which refuses both
    CHECK_MESSAGE(cubin.ok(), to_text(all[i]), ": ", (cubin ? "" : cubin.error().message));
  }
}

}  // namespace ordo
