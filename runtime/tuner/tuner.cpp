#include "ordo/tuner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "cache/store.hpp"
#include "codegen/hash/sha256.hpp"
#include "codegen/schedule/proof.hpp"
#include "runtime/device.hpp"
#include "runtime/tuner/candidates.hpp"
#include "runtime/tuner/session.hpp"
#include "runtime/tuner/tuner_impl.hpp"

namespace ordo {
namespace {

constexpr std::size_t kMostAnswers = 10000;  // that are kept: some 20 MB

std::string answer_key(const AttentionBackward& problem, const TuneOptions& o) {
  return fmt::format("{}|{}|{}|{:d}|{:d}|{}|{}|{}", to_text(problem),
                     o.request.schedule ? to_string(*o.request.schedule) : std::string_view(),
                     o.request.accumulate ? to_string(*o.request.accumulate) : std::string_view(), o.request.static_shape,
                     o.same_bits, o.most_candidates, o.margin, to_text(o.policy));
}

Result<void> check_options(const TuneOptions& options) {
  if (options.most_candidates < 1)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("most_candidates is {}; it must be at least 1", options.most_candidates)};
  if (!(options.margin >= 0 && options.margin < 1))
    return Error{ErrorCode::invalid_argument, fmt::format("margin is {}; it must be within 0 and 1", options.margin)};
  return options.policy.validate();
}

bool satisfies(const Plan& plan, const PlanRequest& request) {
  return plan.accumulate == request.accumulate.value_or(Accumulate::ordered) &&
         (!request.schedule || plan.schedule == *request.schedule) && (!request.static_shape || plan.static_shape.has_value());
}

/// The plan of a row, if it answers the request.
std::optional<Plan> acceptable(const AttentionBackward& problem, const std::string& text, const PlanRequest& request,
                               const std::string& fingerprint) {
  const auto plan = parse_plan(text);
  if (!plan || !satisfies(*plan, request) || !check_fit(problem, *plan)) return std::nullopt;
  if (!fingerprint.empty() && order_fingerprint(problem, *plan) != fingerprint) return std::nullopt;
  return *plan;
}

std::string describe(const cache::MeasuredOn& on) {
  return fmt::format("{} ({} SMs), driver {}, {}", on.device, on.sm_count, on.driver, on.toolchain);
}

measure::Sample sample_of(const cache::Measurement& row) {
  measure::Sample sample;
  sample.ms_median = row.ms_median;
  sample.ms_min = row.ms_min;
  sample.launches = row.launches;
  if (row.clock_mhz > 0) sample.clock_mhz = row.clock_mhz;
  if (row.watts > 0) sample.watts = row.watts;
  return sample;
}

RankedPlan ranked(const tuner::Measured& measured, double predicted_ms) {
  const measure::Sample all = measure::combined(measured.rounds);
  return {
      measured.plan,     PlanSource::measured,      all.ms_median,        predicted_ms, static_cast<int>(measured.rounds.size()),
      measured.spread(), all.clock_mhz.value_or(0), all.watts.value_or(0)};
}

double predicted_of(const std::vector<Candidate>& candidates, const Plan& plan) {
  const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) { return c.plan == plan; });
  return found == candidates.end() ? 0 : found->predicted_ms;
}

TunedPlan measured_answer(const std::vector<tuner::Measured>& measured, const std::vector<Candidate>& candidates, double margin) {
  const tuner::Decision decision = tuner::decide(measured, candidates.front().plan, margin);
  TunedPlan out;
  out.plan = measured[decision.winner].plan;
  out.source = PlanSource::measured;
  out.ms = measured[decision.winner].ms();
  out.reason = decision.reason;
  for (const std::size_t i : decision.ranking)
    out.ranking.push_back(ranked(measured[i], predicted_of(candidates, measured[i].plan)));
  return out;
}

/// Candidates by the neighbours' corrections where there are any, else by the model. The planner's choice stays where it is
/// within the margin of the best.
TunedPlan estimated_answer(const AttentionBackward& problem, const Target& target, const std::vector<Candidate>& candidates,
                           const std::vector<tuner::Neighbour>& neighbours, double margin) {
  TunedPlan out;
  const auto preferred = tuner::interpolate(problem, candidates.front().plan, target, neighbours);
  for (const Candidate& candidate : candidates) {
    const auto ms = preferred ? tuner::interpolate(problem, candidate.plan, target, neighbours) : std::nullopt;
    RankedPlan entry;
    entry.plan = candidate.plan;
    entry.source = ms ? PlanSource::interpolated : PlanSource::predicted;
    entry.ms = ms.value_or(candidate.predicted_ms);
    entry.predicted_ms = candidate.predicted_ms;
    out.ranking.push_back(entry);
  }
  out.source = preferred ? PlanSource::interpolated : PlanSource::predicted;
  const RankedPlan* chosen = &out.ranking.front();
  if (preferred) {
    for (const RankedPlan& entry : out.ranking)
      if (entry.source == PlanSource::interpolated && entry.ms < chosen->ms) chosen = &entry;
    if (out.ranking.front().ms <= chosen->ms * (1 + margin)) chosen = &out.ranking.front();
  }
  out.plan = chosen->plan;
  out.ms = chosen->ms;
  out.reason = preferred ? "predictions, corrected by the measured times of neighbouring problems"
                         : "the cost model's choice; nothing near this problem has been measured";
  std::stable_sort(out.ranking.begin(), out.ranking.end(), [](const RankedPlan& a, const RankedPlan& b) {
    return std::pair(a.source == PlanSource::predicted, a.ms) < std::pair(b.source == PlanSource::predicted, b.ms);
  });
  return out;
}

std::string cache_path_of(const EngineOptions& options) {
  if (options.memory_cache_only) return {};
  return options.cache_path.empty() ? cache::default_path().value_or("") : options.cache_path;
}

}  // namespace

Tuner::Impl::Impl(Engine made_for, tuner::Device its_device)
    : engine(std::move(made_for)), device(std::move(its_device)), log(cache_path_of(engine.options()), engine.options().warn) {}

void Tuner::Impl::forget() {
  const std::scoped_lock lock(mutex);
  answers.clear();
}

std::string Tuner::Impl::kernels_of(Plan plan) {
  plan.workers = plan.head_group = plan.shift_stride = 1;  // of these the sources know nothing
  const std::string text = to_text(plan);
  {
    const std::scoped_lock lock(mutex);
    if (const auto found = digests.find(text); found != digests.end()) return found->second;
  }
  std::string digest;
  if (const auto sources = generate(plan, engine.target())) {
    std::string all;
    for (const KernelSource& source : *sources) all += sha256_hex(source.text);
    digest = sha256_hex(all);
  }
  const std::scoped_lock lock(mutex);
  return digests.emplace(text, std::move(digest)).first->second;
}

Result<std::vector<Candidate>> Tuner::Impl::candidates(const AttentionBackward& problem, const TuneOptions& options) const {
  tuner::Pruning pruning;
  pruning.most = options.most_candidates;
  if (options.same_bits) {
    auto choice = make_plan(problem, engine.target(), options.request);
    if (!choice) return choice.error();
    pruning.fingerprint = order_fingerprint(problem, choice->plan);
  }
  return tuner::candidates(problem, engine.target(), options.request, pruning);
}

tuner::Usable Tuner::Impl::usable(const AttentionBackward& problem, const TuneOptions& options, const std::string& fingerprint) {
  std::vector<cache::Measurement> rows = log.of(to_text(problem));
  tuner::Usable out;
  if (rows.empty()) return out;
  std::optional<cache::MeasuredOn> where = device.here;
  if (!where) {  // the newest that was measured for this target
    const std::string target = to_text(engine.target());
    for (const cache::Measurement& row : rows)
      if (row.on.target == target) where = row.on;
    if (where) out.notes.push_back(fmt::format("no GPU here: measured on {}", describe(*where)));
  }
  std::set<cache::MeasuredOn> elsewhere;
  int other_kernels = 0;
  std::map<std::string, std::optional<Plan>> plans;                         // by text
  std::map<std::string, std::map<std::string, tuner::Measured>> by_policy;  // then by plan
  std::string newest;
  for (const cache::Measurement& row : rows) {
    if (!where || !(row.on == *where)) {
      elsewhere.insert(row.on);
      continue;
    }
    auto [entry, fresh] = plans.try_emplace(row.plan);
    if (fresh) entry->second = acceptable(problem, row.plan, options.request, fingerprint);
    const std::optional<Plan>& plan = entry->second;
    if (!plan) continue;
    if (row.kernels != kernels_of(*plan)) {
      ++other_kernels;
      continue;
    }
    tuner::Measured& measured = by_policy[row.policy][row.plan];
    measured.plan = *plan;
    measured.rounds.push_back(sample_of(row));
    newest = row.policy;
  }
  for (const cache::MeasuredOn& on : elsewhere)
    out.notes.push_back(fmt::format("measurements on {} are not used here", describe(on)));
  if (other_kernels > 0)
    out.notes.push_back(fmt::format("{} measured rounds are of other versions of the kernels: not used", other_kernels));
  const std::string asked = to_text(options.policy);
  out.policy = by_policy.contains(asked) ? asked : newest;
  const auto policy = parse_measurement_policy(out.policy);
  if (!policy) return out;
  for (auto& [text, measured] : by_policy[out.policy])
    if (static_cast<int>(measured.rounds.size()) >= policy->rounds) out.complete.push_back(std::move(measured));
  if (out.policy != asked && !out.complete.empty()) out.notes.push_back(fmt::format("measured as: {}", out.policy));
  return out;
}

std::vector<tuner::Neighbour> Tuner::Impl::neighbours(const AttentionBackward& problem, const TuneOptions& options) {
  std::vector<tuner::Neighbour> out;
  for (const std::string& text : log.problems()) {
    const auto other = parse_problem(text);
    const auto far = other ? tuner::distance(problem, *other) : std::nullopt;
    if (!far || *far > tuner::kFarthest) continue;
    tuner::Usable measured = usable(*other, options, "");
    if (!measured.complete.empty()) out.push_back({*other, std::move(measured.complete)});
  }
  return out;
}

Result<TunedPlan> Tuner::Impl::answer(const AttentionBackward& problem, const TuneOptions& options) {
  auto listed = candidates(problem, options);
  if (!listed) return listed.error();
  const std::string fingerprint = options.same_bits ? order_fingerprint(problem, listed->front().plan) : "";
  tuner::Usable measured = usable(problem, options, fingerprint);
  const auto of_candidates =
      static_cast<std::size_t>(std::count_if(listed->begin(), listed->end(), [&](const Candidate& candidate) {
        return std::any_of(measured.complete.begin(), measured.complete.end(),
                           [&](const tuner::Measured& m) { return m.plan == candidate.plan; });
      }));
  // The planner's choice is measured first: without it an interrupted tuning, or one of another planner, says little.
  const bool enough = std::any_of(measured.complete.begin(), measured.complete.end(),
                                  [&](const tuner::Measured& m) { return m.plan == listed->front().plan; });
  TunedPlan out = enough ? measured_answer(measured.complete, *listed, options.margin)
                         : estimated_answer(problem, engine.target(), *listed, neighbours(problem, options), options.margin);
  if (!measured.complete.empty() && of_candidates < listed->size())
    measured.notes.push_back(
        fmt::format("{} of {} candidates are measured: tune again to measure the others", of_candidates, listed->size()));
  out.notes = std::move(measured.notes);
  return out;
}

Tuner::Tuner(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<Tuner> Tuner::create(const Engine& engine) {
  const auto current = current_device();
  return create(engine, current && target_of_device(*current) ? std::optional(*current) : std::nullopt);
}

Result<Tuner> Tuner::create(const Engine& engine, std::optional<int> device) {
  tuner::Device found;
  if (device) {
    if (auto target = target_of_device(*device); !target) return target.error();
    found.here = tuner::measured_on(engine.target(), *device);
    found.open = [engine, index = *device] { return tuner::make_gpu_measurer(engine, index); };
  }
  return Tuner(std::make_shared<Impl>(engine, std::move(found)));
}

Result<TuneResult> Tuner::tune(const AttentionBackward& problem, const TuneOptions& options,
                               const std::function<bool(const TuneProgress&)>& progress) {
  if (auto ours = impl_->process.check("This Tuner"); !ours) return ours.error();
  if (auto ok = check_options(options); !ok) return ok.error();
  auto listed = impl_->candidates(problem, options);
  if (!listed) return listed.error();
  if (!impl_->device.open)
    return Error{ErrorCode::no_device,
                 "Tuning measures on a GPU, and there is none that ordo has kernels for. A query needs none."};
  const std::scoped_lock lock(impl_->tuning);
  if (!impl_->measurer) {
    auto opened = impl_->device.open();
    if (!opened) return opened.error();
    impl_->measurer = *std::move(opened);
  }
  tuner::Job job{problem, {}, {}, options.policy};
  for (const Candidate& candidate : *listed) {
    job.plans.push_back(candidate.plan);
    job.kernels.push_back(impl_->kernels_of(candidate.plan));
  }
  auto outcome = tuner::measure_missing(*impl_->measurer, impl_->log, job, progress);
  impl_->forget();
  if (!outcome) return outcome.error();
  auto best = query(problem, options);
  if (!best) return best.error();
  best->notes.insert(best->notes.end(), outcome->notes.begin(), outcome->notes.end());
  return TuneResult{*std::move(best), static_cast<int>(listed->size()), outcome->measured, outcome->reused,
                    outcome->stopped, std::move(outcome->failed)};
}

Result<TunedPlan> Tuner::query(const AttentionBackward& problem, const TuneOptions& options) {
  if (auto ours = impl_->process.check("This Tuner"); !ours) return ours.error();
  const std::string key = answer_key(problem, options);
  {
    const std::scoped_lock lock(impl_->mutex);
    if (const auto found = impl_->answers.find(key); found != impl_->answers.end()) return found->second;
  }
  if (auto ok = check_options(options); !ok) return ok.error();
  auto answer = impl_->answer(problem, options);
  if (!answer) return answer;
  const std::scoped_lock lock(impl_->mutex);
  if (impl_->answers.size() >= kMostAnswers) impl_->answers.clear();
  impl_->answers.insert_or_assign(key, *answer);
  return answer;
}

void Tuner::refresh() { impl_->forget(); }

}  // namespace ordo
