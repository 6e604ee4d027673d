// A Stand of several ranks, which launch the same subjects as often as each other, and count the slowest.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "ordo/peers.hpp"
#include "runtime/measure/measure.hpp"

namespace ordo::measure {

/// Replaces each value by the largest of any rank's. Collective; the number of values is the same on all ranks.
using Largest = std::function<Result<void>(std::vector<double>& values)>;

/// Largest over the ranks of a communicator, which must outlive it.
ORDO_API Largest largest_over(Communicator& communicator);

/// Clock and times are the largest of any rank's, so that whoever measures with it decides the same on all ranks; clocks and
/// watts are this rank's. An error on one rank is an error on all.
class ORDO_API RankStand : public Stand {
 public:
  /// Both must outlive it.
  RankStand(Stand& mine, Largest largest) : mine_(mine), largest_(std::move(largest)) {}

  double now_ms() override;
  void rest(double ms) override { mine_.rest(ms); }
  Result<Batches> run(std::size_t subject, int batches, int launches) override;

 private:
  Stand& mine_;
  Largest largest_;
  std::optional<Error> failure_;  ///< of now_ms()
};

}  // namespace ordo::measure
