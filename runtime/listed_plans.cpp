#include "runtime/listed_plans.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/compiler.hpp"

namespace ordo {

Result<std::vector<Plan>> plans_of(const ShapeList& list, const PlanChooser& choose, std::size_t candidates) {
  std::vector<Plan> all;
  std::set<std::string> seen;
  const auto add = [&](const Plan& plan) {
    if (seen.insert(to_text(plan)).second) all.push_back(plan);
  };
  for (const Plan& plan : list.plans) add(plan);
  for (const ListedProblem& listed : list.problems) {
    const Result<PlanChoice> choice = choose(listed.problem, listed.request);
    if (!choice) return Error{choice.error().code, fmt::format("{} ({})", choice.error().message, to_text(listed.problem))};
    add(choice->plan);
    for (std::size_t i = 1; i < std::min(candidates, choice->candidates.size()); ++i) add(choice->candidates[i].plan);
  }
  return all;
}

Result<Completeness> check_completeness(const std::vector<cache::Store>& stores, const std::vector<Plan>& plans,
                                        const std::vector<OverlapPlan>& overlap_plans, const Target& target,
                                        const std::string& toolchain) {
  Completeness result;
  std::set<std::string> seen;
  const auto look = [&](const KernelSource& source, const std::string& plan) -> Result<void> {
    const std::string key = cache::kernel_key(source.text, Compiler::flags(source.arch), toolchain, source.arch);
    if (!seen.insert(key).second) return {};
    result.kernels.emplace_back(key, plan);
    bool found = false;
    for (const cache::Store& store : stores) {
      const Result<std::optional<cache::Entry>> entry = store.get(key);
      if (!entry) return entry.error();
      found = found || *entry;
    }
    if (!found) result.missing.push_back({source.name, key, plan});
    return {};
  };
  for (const Plan& plan : plans) {
    const Result<std::vector<KernelSource>> sources = generate(plan, target);
    if (!sources) return sources.error();
    for (const KernelSource& source : *sources) {
      if (auto ok = look(source, to_text(plan)); !ok) return ok.error();
    }
  }
  for (const OverlapPlan& plan : overlap_plans) {
    const Result<KernelSource> source = generate(plan, target);
    if (!source) return source.error();
    if (auto ok = look(*source, to_text(plan)); !ok) return ok.error();
  }
  return result;
}

}  // namespace ordo
