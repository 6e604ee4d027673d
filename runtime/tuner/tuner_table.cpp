// Decision tables out of a tuner, and back into one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "codegen/schedule/proof.hpp"
#include "ordo/tuner.hpp"
#include "runtime/tuner/tuner_impl.hpp"

namespace ordo {
namespace {

MeasuredRound round_of(const cache::Measurement& m) {
  return {m.problem,     m.plan,  m.kernels,  m.policy,    m.on.target, m.on.device, m.on.driver, m.on.toolchain,
          m.on.sm_count, m.round, m.launches, m.ms_median, m.ms_min,    m.clock_mhz, m.watts};
}

cache::Measurement measurement_of(const MeasuredRound& m) {
  return {m.problem,  m.plan,      m.kernels,   {m.target, m.device, m.sm_count, m.driver, m.toolchain},
          m.policy,   m.round,     m.ms_median, m.ms_min,
          m.launches, m.clock_mhz, m.watts};
}

/// Texts that read, a plan that fits, figures that can be.
Result<void> check_round(const MeasuredRound& m) {
  const auto problem = parse_problem(m.problem);
  if (!problem) return problem.error();
  const auto plan = parse_plan(m.plan);
  if (!plan) return plan.error();
  if (auto fits = check_fit(*problem, *plan); !fits) return fits;
  const auto policy = parse_measurement_policy(m.policy);
  if (!policy) return policy.error();
  const bool possible = std::isfinite(m.ms_median) && m.ms_min > 0 && m.ms_min <= m.ms_median && m.launches > 0 && m.round >= 0 &&
                        m.round < policy->rounds;
  if (possible) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("a measurement of {} cannot be: round {}, {} launches, median {} ms, minimum {} ms", m.problem,
                           m.round, m.launches, m.ms_median, m.ms_min)};
}

/// The accumulations that a table is to hold for a problem.
std::vector<Accumulate> modes_of(const std::vector<cache::Measurement>& rows, const TuneOptions& options, bool asked_for) {
  if (options.request.accumulate || asked_for) return {options.request.accumulate.value_or(Accumulate::ordered)};
  std::set<Accumulate> modes;
  for (const cache::Measurement& row : rows)
    if (const auto plan = parse_plan(row.plan)) modes.insert(plan->accumulate);
  return {modes.begin(), modes.end()};
}

}  // namespace

Result<DecisionTable> Tuner::table(std::span<const AttentionBackward> problems, const TuneOptions& options) {
  if (auto ours = impl_->process.check("This Tuner"); !ours) return ours.error();
  std::set<std::string> texts;
  for (const AttentionBackward& problem : problems) {
    if (auto valid = problem.validate(); !valid) return valid.error();
    texts.insert(to_text(problem));
  }
  if (problems.empty())
    for (std::string& text : impl_->log.problems()) texts.insert(std::move(text));
  DecisionTable out{impl_->engine.target(), {}, {}};
  for (const std::string& text : texts) {
    const auto problem = parse_problem(text);
    if (!problem) continue;  // by a newer ordo, which knows more kinds
    const std::vector<cache::Measurement> rows = impl_->log.of(text);
    for (const Accumulate mode : modes_of(rows, options, !problems.empty())) {
      TuneOptions asked = options;
      asked.request.accumulate = mode;
      auto best = query(*problem, asked);
      if (!best) return best.error();
      if (problems.empty() && best->source != PlanSource::measured) continue;  // measured elsewhere only
      out.decisions.push_back(
          {*problem, best->plan, order_fingerprint(*problem, best->plan), best->source, best->ms, best->reason});
    }
    for (const cache::Measurement& row : rows)
      if (!impl_->device.here || row.on == *impl_->device.here) out.measurements.push_back(round_of(row));
  }
  std::sort(out.decisions.begin(), out.decisions.end(), [](const Decision& a, const Decision& b) {
    return std::pair(to_text(a.problem), to_string(a.plan.accumulate)) <
           std::pair(to_text(b.problem), to_string(b.plan.accumulate));
  });
  return out;
}

Result<std::vector<std::string>> Tuner::import_table(const DecisionTable& table, const TuneOptions& options) {
  if (auto ours = impl_->process.check("This Tuner"); !ours) return ours.error();
  std::vector<cache::Measurement> rows;
  std::set<std::string> elsewhere;
  const std::string target = to_text(impl_->engine.target());
  for (const MeasuredRound& round : table.measurements) {
    if (auto ok = check_round(round); !ok) return ok.error();
    rows.push_back(measurement_of(round));
    const cache::MeasuredOn& on = rows.back().on;
    if (impl_->device.here ? !(on == *impl_->device.here) : on.target != target)
      elsewhere.insert(fmt::format("{} ({} SMs), driver {}, {}", on.device, on.sm_count, on.driver, on.toolchain));
  }
  impl_->log.put(rows);
  impl_->forget();
  std::vector<std::string> notes;
  notes.reserve(elsewhere.size());
  for (const std::string& where : elsewhere)
    notes.push_back(fmt::format("measurements on {} are kept, but not used here", where));
  for (const Decision& decision : table.decisions) {
    TuneOptions asked = options;
    asked.request.accumulate = decision.plan.accumulate;
    const auto best = query(decision.problem, asked);
    if (best && !(best->plan == decision.plan))
      notes.push_back(fmt::format("{}: the table says\n  {}\nbut here ({}) it is\n  {}", to_text(decision.problem),
                                  to_text(decision.plan), to_string(best->source), to_text(best->plan)));
  }
  return notes;
}

}  // namespace ordo
