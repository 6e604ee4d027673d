#include "runtime/tuner/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <thread>

#include "runtime/measure/measure.hpp"
#include "runtime/tuner/device_lock.hpp"

namespace ordo::tuner {
namespace {

constexpr double kCompileMs = 3000;  // of one plan's kernels on one core: for the share that progress reports

class Session {
 public:
  Session(Measurer& measurer, Log& log, const Job& job, const std::function<bool(const TuneProgress&)>& progress)
      : measurer_(measurer),
        log_(log),
        job_(job),
        progress_(progress),
        problem_(to_text(job.problem)),
        policy_(to_text(job.policy)) {}

  Result<Outcome> run() {
    look_up();
    outcome_.reused = planned() - missing();
    if (missing() == 0) return outcome_;
    std::optional<DeviceLock> lock;
    if (!take(lock)) {
      outcome_.stopped = true;
      return outcome_;
    }
    look_up();  // another process may have measured meanwhile
    outcome_.reused = planned() - missing();
    if (missing() == 0) return outcome_;
    if (auto begun = begin(); !begun) return begun.error();
    if (auto measured = measure_rounds(); !measured) return measured.error();
    return outcome_;
  }

 private:
  [[nodiscard]] int planned() const { return static_cast<int>(job_.plans.size()) * job_.policy.rounds; }
  [[nodiscard]] int missing() const {
    int count = planned();
    for (const std::set<int>& rounds : done_) count -= static_cast<int>(rounds.size());
    return count;
  }

  bool tell(const std::string& doing, double share) { return !progress_ || progress_({doing, std::clamp(share, 0.0, 1.0)}); }

  /// Which rounds of each plan the log holds.
  void look_up() {
    const cache::MeasuredOn where = measurer_.where();
    done_.assign(job_.plans.size(), {});
    for (const cache::Measurement& row : log_.of(problem_)) {
      if (!(row.on == where) || row.policy != policy_ || row.round < 0 || row.round >= job_.policy.rounds) continue;
      for (std::size_t i = 0; i < job_.plans.size(); ++i)
        if (row.plan == to_text(job_.plans[i]) && row.kernels == job_.kernels[i]) done_[i].insert(row.round);
    }
  }

  /// False: the caller gave up waiting.
  bool take(std::optional<DeviceLock>& lock) {
    auto acquired = DeviceLock::acquire(measurer_.device_id(), [&](int holder) {
      return tell(holder == 0 ? "waiting for another process, which measures on this GPU"
                              : fmt::format("waiting for process {}, which measures on this GPU", holder),
                  0);
    });
    if (!acquired) {
      outcome_.notes.push_back(acquired.error().message + ": nothing keeps another process from measuring at the same time");
      return true;
    }
    if (!*acquired) return false;
    lock.emplace(**std::move(acquired));
    return true;
  }

  Result<void> begin() {
    if (const std::string disturbance = measurer_.disturbance(); !disturbance.empty()) outcome_.notes.push_back(disturbance);
    std::vector<Plan> plans;
    for (std::size_t i = 0; i < job_.plans.size(); ++i)
      if (static_cast<int>(done_[i].size()) < job_.policy.rounds) {
        plans.push_back(job_.plans[i]);
        open_.push_back(i);
      }
    const double compile_ms = kCompileMs * static_cast<double>(plans.size()) / std::max(1u, std::thread::hardware_concurrency());
    const double round_ms =
        job_.policy.warm_ms / job_.policy.rounds + job_.policy.round_warm_ms + job_.policy.measure_ms / job_.policy.rounds;
    const double measure_ms = job_.policy.first_warm_ms + round_ms * missing();
    compile_share_ = compile_ms / (compile_ms + measure_ms);
    auto begun = measurer_.begin(job_.problem, plans, job_.policy, [&](double share) {
      const bool go_on = tell("compiling", share * compile_share_);
      if (!go_on) outcome_.stopped = true;
      return go_on;
    });
    if (!begun) return begun.error();
    failed_.assign(plans.size(), false);
    if (outcome_.stopped) return {};
    for (std::size_t i = 0; i < plans.size(); ++i)
      if ((*begun)[i]) fail(i, (*begun)[i]->message);
    if (std::all_of(failed_.begin(), failed_.end(), [](bool failed) { return failed; })) return *(*begun)[0];
    return {};
  }

  void fail(std::size_t index, const std::string& why) {
    failed_[index] = true;
    outcome_.failed.push_back(fmt::format("{}: {}", to_text(job_.plans[open_[index]]), why));
  }

  Result<void> measure_rounds() {
    const int all = missing();
    for (int round = 0; round < job_.policy.rounds; ++round)
      for (const std::size_t i : measure::order_of_round(round, open_.size())) {
        if (failed_[i] || done_[open_[i]].contains(round)) continue;
        const double share = compile_share_ + (1 - compile_share_) * outcome_.measured / all;
        outcome_.stopped = outcome_.stopped || !tell("measuring", share);
        if (outcome_.stopped) return {};
        if (auto ok = measure_one(i, round, all); !ok) return ok;
      }
    tell("measuring", 1);
    return {};
  }

  Result<void> measure_one(std::size_t index, int round, int all) {
    const std::size_t plan = open_[index];
    auto sample = measurer_.round(index);
    if (sample && !(sample->ms_median > 0 && std::isfinite(sample->ms_median)))
      sample = Error{ErrorCode::driver, fmt::format("its time was measured as {} ms", sample->ms_median)};
    if (sample) {
      log_.put({{problem_, to_text(job_.plans[plan]), job_.kernels[plan], measurer_.where(), policy_, round, sample->ms_median,
                 sample->ms_min, sample->launches, sample->clock_mhz.value_or(0), sample->watts.value_or(0)}});
      ++outcome_.measured;
      return {};
    }
    if (const auto alive = measurer_.alive(); !alive)
      return Error{
          alive.error().code,
          fmt::format("The GPU was lost after {} of {} measurements: {} (then: {}) What was measured is kept; tune again, in "
                      "a new process, to go on.",
                      outcome_.measured, all, sample.error().message, alive.error().message)};
    fail(index, sample.error().message);
    return {};
  }

  Measurer& measurer_;
  Log& log_;
  const Job& job_;
  const std::function<bool(const TuneProgress&)>& progress_;
  std::string problem_, policy_;
  std::vector<std::set<int>> done_;  ///< by plan
  std::vector<std::size_t> open_;    ///< plans that the measurer has, by its numbers
  std::vector<bool> failed_;         ///< likewise
  double compile_share_ = 0;
  Outcome outcome_;
};

}  // namespace

Result<Outcome> measure_missing(Measurer& measurer, Log& log, const Job& job,
                                const std::function<bool(const TuneProgress&)>& progress) {
  return Session(measurer, log, job, progress).run();
}

}  // namespace ordo::tuner
