// Plan: names, canonical text, rules, and whether it fits a problem.
#include "ordo/plan.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "codegen/schedule/proof.hpp"

using namespace ordo;

namespace {

Plan sample() {
  Plan plan;
  plan.dtype = DType::fp16;
  plan.group = 4;
  plan.schedule = Schedule::shift;
  plan.cluster = 2;
  plan.workers = 66;
  plan.shift_stride = 4;
  plan.head_group = 2;
  return plan;
}

AttentionBackward problem_for(const Plan& plan, std::int64_t seqlen_q = 4096, std::int64_t seqlen_k = 4096) {
  AttentionBackward problem;
  problem.batch = 2;
  problem.seqlen_q = seqlen_q;
  problem.seqlen_k = seqlen_k;
  problem.kv_heads = 8;
  problem.heads = problem.kv_heads * plan.group;
  problem.head_dim = plan.head_dim;
  problem.mask = plan.mask;
  problem.dtype = plan.dtype;
  return problem;
}

void check_refused(const Result<void>& result, const std::string& expected, ErrorCode code = ErrorCode::invalid_plan) {
  REQUIRE_FALSE(result);
  CAPTURE(result.error().message);
  CHECK(result.error().code == code);
  CHECK(result.error().message.find(expected) != std::string::npos);
}

void check_invalid(const std::function<void(Plan&)>& change, const std::string& expected) {
  Plan plan = sample();
  change(plan);
  check_refused(plan.validate(), expected);
  // What validate() refuses cannot come in through text or fit a problem either.
  const auto read = parse_plan(to_text(plan));
  CHECK_FALSE(read);
  CHECK_FALSE(check_fit(problem_for(sample()), plan));
}

}  // namespace

TEST_CASE("plan: text round-trips, field by field") {
  const Plan plan = sample();
  CHECK(to_text(plan) ==
        "attention-backward dtype=fp16 head_dim=128 mask=full group=4 schedule=shift accumulate=ordered tile_q=64 tile_kv=128 "
        "stages=2 cluster=2 dq_buffers=1 workers=66 shift_stride=4 head_group=2 arrival=none schedule_state=producer "
        "consumer_registers=0 "
        "static_shape=none");
  CHECK(*parse_plan(to_text(plan)) == plan);
  const auto round_trips = [](const std::function<void(Plan&)>& change) {
    Plan changed = sample();
    change(changed);
    CAPTURE(to_text(changed));
    CHECK(changed != sample());
    const auto read = parse_plan(to_text(changed));
    REQUIRE(read);
    CHECK(*read == changed);
  };
  round_trips([](Plan& p) { p.dtype = DType::bf16; });
  round_trips([](Plan& p) { p.mask = Mask::causal, p.schedule = Schedule::alternate; });
  round_trips([](Plan& p) { p.mask = Mask::causal, p.schedule = Schedule::symmetric_shift; });
  for (const ArrivalVisits visits : {ArrivalVisits::up, ArrivalVisits::down, ArrivalVisits::up_and_down, ArrivalVisits::turn,
                                     ArrivalVisits::rotate, ArrivalVisits::greedy})
    round_trips([&](Plan& p) { p.schedule = Schedule::arrival, p.arrival = Arrival{visits, 1, 2, 3, 4, 5, 6, 7, ~0ull}; });
  round_trips([](Plan& p) { p.group = 1; });
  round_trips([](Plan& p) { p.schedule = Schedule::descending; });
  round_trips([](Plan& p) { p.accumulate = Accumulate::exact; });
  round_trips([](Plan& p) { p.accumulate = Accumulate::atomic; });
  round_trips([](Plan& p) { p.head_dim = 64, p.tile_kv = 256, p.cluster = 1; });
  round_trips([](Plan& p) { p.cluster = 1; });
  round_trips([](Plan& p) { p.cluster = 1, p.dq_buffers = 2; });
  round_trips([](Plan& p) { p.workers = 1024; });
  round_trips([](Plan& p) { p.shift_stride = 64; });
  round_trips([](Plan& p) { p.head_group = 9; });
  round_trips([](Plan& p) { p.schedule_state = ScheduleState::consumer; });
  round_trips([](Plan& p) { p.consumer_registers = 240; });
  round_trips([](Plan& p) { p.static_shape = StaticShape{2, 4096, 5, 8}; });
}

TEST_CASE("plan: a missing key has its default") { CHECK(*parse_plan("attention-backward") == Plan{}); }

TEST_CASE("plan: rules") {
  CHECK(sample().validate());
  check_invalid([](Plan& p) { p.head_dim = 80; }, "head_dim 80");
  check_invalid([](Plan& p) { p.tile_q = 128; }, "tile_q 128");
  check_invalid([](Plan& p) { p.tile_q = 80; }, "tile_q 80");
  check_invalid([](Plan& p) { p.tile_kv = 64; }, "tile_kv 64");
  check_invalid([](Plan& p) { p.head_dim = 64, p.tile_q = 192; }, "tile_q 192");
  check_invalid([](Plan& p) { p.head_dim = 64; }, "tile_kv 128");
  check_invalid([](Plan& p) { p.tile_kv = 256; }, "tile_kv 256");
  check_invalid([](Plan& p) { p.head_dim = 64, p.tile_kv = 256; }, "cluster 2 exists for head_dim 128 only");
  check_invalid([](Plan& p) { p.stages = 3; }, "bytes of shared memory");
  check_invalid([](Plan& p) { p.dq_buffers = 2; }, "bytes of shared memory");
  check_invalid([](Plan& p) { p.group = 0; }, "group is 0");
  check_invalid([](Plan& p) { p.stages = 1; }, "stages is 1");
  check_invalid([](Plan& p) { p.stages = 4; }, "stages is 4");
  check_invalid([](Plan& p) { p.cluster = 0; }, "cluster is 0");
  check_invalid([](Plan& p) { p.cluster = 3; }, "cluster is 3");
  check_invalid([](Plan& p) { p.dq_buffers = 0; }, "dq_buffers is 0");
  check_invalid([](Plan& p) { p.dq_buffers = 4; }, "dq_buffers is 4");
  check_invalid([](Plan& p) { p.workers = 0; }, "workers is 0");
  check_invalid([](Plan& p) { p.workers = 1025; }, "workers is 1025");
  check_invalid([](Plan& p) { p.shift_stride = 0; }, "shift_stride is 0");
  check_invalid([](Plan& p) { p.shift_stride = 65; }, "shift_stride is 65");
  check_invalid([](Plan& p) { p.head_group = 0; }, "head_group is 0");
  check_invalid([](Plan& p) { p.head_group = -3; }, "head_group is -3");
  check_invalid([](Plan& p) { p.mask = Mask::causal; }, "shift is for mask full only");
  check_invalid([](Plan& p) { p.schedule = Schedule::alternate; }, "alternate is for mask causal only");
  check_invalid([](Plan& p) { p.schedule = Schedule::symmetric_shift; }, "symmetric_shift is for mask causal only");
  check_invalid([](Plan& p) { p.schedule = Schedule::arrival; }, "schedule arrival has arrival=none");
  check_invalid([](Plan& p) { p.arrival = Arrival{}; }, "schedule shift has arrival set");
  const auto arrival = [](const std::function<void(Arrival&)>& change, const std::string& expected) {
    check_invalid(
        [&](Plan& p) {
          p.schedule = Schedule::arrival;
          p.arrival = Arrival{};
          change(*p.arrival);
        },
        expected);
  };
  arrival([](Arrival& a) { a.reduce = -1; }, "arrival reduce is -1");
  arrival([](Arrival& a) { a.compute = 1 << 25; }, "arrival compute is 33554432");
  arrival([](Arrival& a) { a.staging = 9; }, "arrival staging is 9");
  arrival([](Arrival& a) { a.visits = static_cast<ArrivalVisits>(9); }, "arrival visits");
  check_invalid([](Plan& p) { p.static_shape = StaticShape{2, 0, 4096, 8}; }, "seqlen_q");
  check_invalid([](Plan& p) { p.schedule = static_cast<Schedule>(17); }, "schedule");
  check_invalid([](Plan& p) { p.schedule_state = static_cast<ScheduleState>(2); }, "schedule_state");
  check_invalid(
      [](Plan& p) {
        p.schedule = Schedule::descending;
        p.mask = *parse_mask("expr:k <= q && q - k < 1024");
        p.schedule_state = ScheduleState::consumer;
      },
      "schedule_state consumer is not for masks by expression");
  check_invalid([](Plan& p) { p.consumer_registers = 160; }, "consumer_registers is 160");
  check_invalid([](Plan& p) { p.consumer_registers = 248; }, "consumer_registers is 248");
  check_invalid([](Plan& p) { p.consumer_registers = 220; }, "multiple of 8");
}

TEST_CASE("plan: texts that are refused") {
  const auto refused = [](const std::string& text, const std::string& expected) {
    CAPTURE(text);
    const auto plan = parse_plan(text);
    REQUIRE_FALSE(plan);
    CAPTURE(plan.error().message);
    CHECK(plan.error().code == ErrorCode::invalid_plan);
    CHECK(plan.error().message.find(expected) != std::string::npos);
  };
  refused("attention-forward", "attention-forward");
  refused("attention-backward schedule=zigzag", "ascending, descending, shift, alternate, symmetric_shift, arrival");
  refused("attention-backward accumulate=fast", "atomic, ordered, exact");
  refused("attention-backward workers=3000000000", "out of range");
  refused("attention-backward workers=66 workers=66", "appears twice");
  refused("attention-backward split_k=2", "no key \"split_k\"");
  for (const char* shape : {"", "2x3", "batch:2", "batch:2,seqlen_q:3,seqlen_k:4", "batch:2,seqlen_q:3,seqlen_k:4,kv_heads:5,x:1",
                            "seqlen_q:3,batch:2,seqlen_k:4,kv_heads:5", "batch:2,seqlen_q:3,seqlen_k:4,kv_heads:"}) {
    refused("attention-backward static_shape=" + std::string(shape), "static_shape");
  }
  refused("attention-backward static_shape=batch:2,seqlen_q:0,seqlen_k:4,kv_heads:5", "out of range");
  const std::string clocks = "compute:1,diagonal:1,partial:1,reduce:1,handover:1,unit:1,staging:1";
  for (const std::string& arrival :
       {std::string("yes"), "visits:up," + clocks, "visits:up," + clocks + ",hash:0123456789abcde",
        "visits:up," + clocks + ",hash:0123456789abcdeg", "visits:up," + clocks + ",hash:0123456789abcdef,",
        "visits:up," + clocks + ",hash:0123456789abcdef,x:1", clocks + ",visits:up,hash:0123456789abcdef"}) {
    refused("attention-backward schedule=arrival arrival=" + arrival, "arrival");
  }
  refused("attention-backward schedule=arrival arrival=visits:sideways," + clocks + ",hash:0123456789abcdef",
          "up, down, up_and_down");
  refused("attention-backward schedule=arrival arrival=visits:up,compute:1e3,diagonal:1", "arrival compute");
}

TEST_CASE("plan: fits only the problem it was made for") {
  const Plan plan = sample();
  CHECK(check_fit(problem_for(plan), plan));
  const auto differs = [&](const std::function<void(AttentionBackward&)>& change, const std::string& expected) {
    AttentionBackward problem = problem_for(plan);
    change(problem);
    REQUIRE(problem.validate());
    check_refused(check_fit(problem, plan), expected);
  };
  differs([](AttentionBackward& p) { p.dtype = DType::bf16; }, "dtype fp16 (asked: bf16)");
  differs([](AttentionBackward& p) { p.head_dim = 64; }, "head_dim 128 (asked: 64)");
  differs([](AttentionBackward& p) { p.mask = Mask::causal; }, "mask full (asked: causal)");
  differs([](AttentionBackward& p) { p.kv_heads = 4; }, "heads/kv_heads 4 (asked: 8)");
  AttentionBackward bad = problem_for(plan);
  bad.seqlen_q = 0;
  check_refused(check_fit(bad, plan), "seqlen_q is 0", ErrorCode::invalid_problem);
}

TEST_CASE("plan: a static shape fits only itself") {
  Plan plan = sample();
  plan.static_shape = StaticShape{2, 4096, 4096, 8};
  CHECK(check_fit(problem_for(plan), plan));
  check_refused(check_fit(problem_for(plan, 4095), plan), "static seqlen_q 4096 (asked: 4095)");
  check_refused(check_fit(problem_for(plan, 4096, 1), plan), "static seqlen_k 4096 (asked: 1)");
  AttentionBackward other = problem_for(plan);
  other.batch = 3;
  check_refused(check_fit(other, plan), "static batch 2 (asked: 3)");
}

TEST_CASE("plan: exact is for up to 32768 keys") {
  Plan plan = sample();
  plan.schedule = Schedule::ascending;
  plan.accumulate = Accumulate::exact;
  CHECK(check_fit(problem_for(plan, 64, 32768), plan));
  check_refused(check_fit(problem_for(plan, 64, 32769), plan), "use accumulate ordered", ErrorCode::unsupported);
}

TEST_CASE("plan: counts that the kernels number with int") {
  Plan plan = sample();
  plan.schedule = Schedule::ascending;
  AttentionBackward problem = problem_for(plan, 1, 257);
  problem.batch = (std::int64_t{1} << 31) / 16;  // * 8 walks * 2 units = 2^31
  check_refused(check_fit(problem, plan), "KV tiles", ErrorCode::unsupported);
  problem.seqlen_k = 256;
  problem.seqlen_q = 65;  // * 32 heads * 2 tiles
  check_refused(check_fit(problem, plan), "Q tiles", ErrorCode::unsupported);
}

TEST_CASE("plan: schedules that wait on later items need their group resident") {
  Plan plan = sample();
  plan.schedule = Schedule::alternate;
  plan.mask = Mask::causal;
  plan.head_group = 4;  // 4 walks * 16 units = 64 of 66
  CHECK(check_fit(problem_for(plan), plan));
  plan.head_group = 5;
  check_refused(check_fit(problem_for(plan), plan), "80 items (head_group 5) wait for each other, but only 66");
  plan.schedule = Schedule::descending;
  CHECK(check_fit(problem_for(plan), plan));
  plan = sample();  // shift cuts its wave to what fits, so it fits for as many walks as there are workers
  plan.workers = 2;
  CHECK(check_fit(problem_for(plan), plan));
  plan.workers = 1;
  check_refused(check_fit(problem_for(plan), plan), "2 items (head_group 2)");
}

TEST_CASE("plan: an order of arrival holds for the lengths and workers it was simulated for") {
  AttentionBackward problem = problem_for(sample());
  const auto target = parse_target("h200");
  REQUIRE(target);
  const auto choice = make_plan(problem, *target, {.schedule = Schedule::arrival, .accumulate = {}, .static_shape = false});
  REQUIRE(choice);
  const Plan plan = choice->plan;
  CHECK(check_fit(problem, plan));
  CHECK(check_fit(problem, *parse_plan(to_text(plan))));
  problem.batch = 5;  // more walks of the same kind
  CHECK(check_fit(problem, plan));
  problem.seqlen_q += 1;
  check_refused(check_fit(problem, plan), "it was made for another problem, or edited");
  problem = problem_for(sample());
  Plan other = plan;
  other.workers = 8;
  check_refused(check_fit(problem, other), "8 workers");
  other = plan;
  other.arrival->hash ^= 1;
  check_refused(check_fit(problem, other), "hash to");
  other = plan;
  other.arrival->visits = ArrivalVisits::down;
  check_refused(check_fit(problem, other), "hash to");
  CHECK(order_fingerprint(problem, plan).size() == 16);
  CHECK(order_fingerprint(problem, other).empty());
}

TEST_CASE("plan: order fingerprints tell orders apart, and nothing else") {
  const Plan plan = sample();
  const AttentionBackward problem = problem_for(plan);
  const std::string base = order_fingerprint(problem, plan);
  CHECK(base.size() == 16);
  const auto with = [&](const std::function<void(Plan&)>& change) {
    Plan changed = plan;
    change(changed);
    return order_fingerprint(problem, changed);
  };
  CHECK(with([](Plan& p) { p.schedule = Schedule::ascending; }) != base);
  CHECK(with([](Plan& p) { p.shift_stride = 1; }) != base);
  CHECK(with([](Plan& p) { p.cluster = 1; }) != base);
  CHECK(with([](Plan& p) { p.accumulate = Accumulate::exact; }) != base);
  CHECK(with([](Plan& p) { p.workers = 8; }) != base);  // waves of 4 where there were 16
  CHECK(with([](Plan& p) { p.workers = 100; }) == base);
  CHECK(with([](Plan& p) { p.stages = 3; }) == base);
  CHECK(with([](Plan& p) { p.schedule = Schedule::ascending, p.workers = 8; }) ==
        with([](Plan& p) { p.schedule = Schedule::ascending, p.head_group = 7; }));
  // In exact the order of adds is free, the order of visits is not.
  const auto exact = [&](Schedule schedule) {
    return with([&](Plan& p) { p.accumulate = Accumulate::exact, p.schedule = schedule; });
  };
  CHECK(exact(Schedule::ascending) != exact(Schedule::descending));
}

TEST_CASE("plan: the fingerprint of alternate knows which walks are flipped") {
  Plan plan = sample();
  plan.schedule = Schedule::alternate;
  plan.mask = Mask::causal;
  plan.head_group = 2;
  Plan other = plan;
  other.head_group = 4;
  CHECK(order_fingerprint(problem_for(plan), plan) != order_fingerprint(problem_for(plan), other));
}
