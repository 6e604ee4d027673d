// Which schedule is best for a shape, and how is that known? Plans are measured with `ordo tune` (or Tuner::tune, on a GPU);
// asking needs no GPU.
//
//   c++ -std=c++20 query_best_schedule.cpp -lordo && ./a.out [seqlen [heads [kv_heads]]]

#include <cstdio>
#include <cstdlib>
#include <string>

#include <ordo/tuner.hpp>

namespace {

int report(const ordo::Error& error) {
  (void)std::fprintf(stderr, "error: %s\n", error.message.c_str());
  return 1;
}

std::string form_of(const ordo::Plan& plan) {
  return std::string(to_string(plan.schedule)) + ", clusters of " + std::to_string(plan.cluster) +
         (plan.static_shape ? ", static" : "");
}

}  // namespace

int main(int argc, char** argv) {
  ordo::AttentionBackward problem;
  problem.seqlen_q = problem.seqlen_k = argc > 1 ? std::atoll(argv[1]) : 8192;
  problem.heads = argc > 2 ? std::atoll(argv[2]) : 32;
  problem.kv_heads = argc > 3 ? std::atoll(argv[3]) : problem.heads;
  problem.mask = ordo::Mask::causal;

  auto engine = ordo::Engine::create();
  if (!engine) return report(engine.error());
  auto tuner = ordo::Tuner::create(*engine);
  if (!tuner) return report(tuner.error());

  // Deterministic training wants the same bits before and after tuning: look among plans that give them only.
  for (const bool same_bits : {false, true}) {
    ordo::TuneOptions options;
    options.same_bits = same_bits;
    const auto best = tuner->query(problem, options);
    if (!best) return report(best.error());
    std::printf("%s\n  best%s: %s, %.3f ms (%s)\n  why: %s\n", to_text(problem).c_str(),
                same_bits ? " with the planner's bits" : "", form_of(best->plan).c_str(), best->ms,
                std::string(to_string(best->source)).c_str(), best->reason.c_str());
    for (const ordo::RankedPlan& next : best->ranking)
      if (!(next.plan == best->plan)) std::printf("  runner-up: %s, %.3f ms\n", form_of(next.plan).c_str(), next.ms);
    for (const std::string& note : best->notes) std::printf("  note: %s\n", note.c_str());
  }
  return 0;
}
