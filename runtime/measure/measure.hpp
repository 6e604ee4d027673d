// Times of launches, measured as a MeasurementPolicy says. The one place where ordo measures: the tuner, `ordo bench` and the
// suite use it. What it measures, and by which clock, is behind an interface, so that tests need no GPU.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <vector>

#include "ordo/error.hpp"
#include "ordo/measurement_policy.hpp"

namespace ordo::measure {

/// Launches that ran back to back.
struct Batches {
  std::vector<double> ms;           ///< of one launch, one figure a batch
  std::optional<double> clock_mhz;  ///< of the SMs, while they ran
  std::optional<double> watts;
};

/// Subjects (launches of something) and a clock.
class ORDO_API Stand {
 public:
  Stand() = default;
  Stand(const Stand&) = delete;
  Stand& operator=(const Stand&) = delete;
  virtual ~Stand() = default;

  /// Milliseconds since some fixed point.
  virtual double now_ms() = 0;
  /// Lets the device be idle for so long.
  virtual void rest(double ms);
  /// Launches subject `subject` `batches` times `launches` times without a pause, and waits for them.
  virtual Result<Batches> run(std::size_t subject, int batches, int launches) = 0;
};

/// One round of one subject.
struct Sample {
  double ms_median = 0;  ///< of one launch; median over batches
  double ms_min = 0;
  int launches = 0;  ///< measured
  std::optional<double> clock_mhz, watts;
};

/// The median; the mean of the middle two of an even number. `values` is not empty.
ORDO_API double median(std::vector<double> values);

/// One sample for several rounds: median of medians, minimum of minima, means of clocks and watts. `rounds` is not empty.
ORDO_API Sample combined(const std::vector<Sample>& rounds);

/// In which order round `round` measures subjects 0 .. `subjects`-1: at random, and in the round after that backwards; the same
/// in every process. A card that power limits makes up, over some tenths of a second, for what the subject before drew: in one
/// and the same order those that follow a slow one would always run at higher clocks.
ORDO_API std::vector<std::size_t> order_of_round(int round, std::size_t subjects);

/// Measures rounds of the subjects of a stand, each after the warm-up that the policy asks for.
class ORDO_API Measuring {
 public:
  /// The stand must outlive it.
  Measuring(Stand& stand, const MeasurementPolicy& policy) : stand_(stand), policy_(policy) {}

  /// One round; of at least `fewest_launches`.
  Result<Sample> round(std::size_t subject, int fewest_launches = 0);

  /// All rounds of the policy, in which the subjects take turns (order_of_round): for each subject its rounds combined. Ends at
  /// the first failure.
  Result<std::vector<Sample>> rounds(const std::vector<std::size_t>& subjects);
  /// The same, but a subject that fails only takes no part in later rounds.
  std::vector<Result<Sample>> rounds_of_each(const std::vector<std::size_t>& subjects);

  /// Milliseconds of one launch at the clocks of a card that was idle: the median of 7 times three launches, after 25 ms of rest
  /// each.
  Result<double> burst(std::size_t subject);

 private:
  Result<double> warm_up(std::size_t subject, double warm_ms);

  Stand& stand_;
  MeasurementPolicy policy_;
  std::set<std::size_t> warmed_;
  std::optional<double> last_end_ms_;
};

}  // namespace ordo::measure
