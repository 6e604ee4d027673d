// MeasurementPolicy: how a kernel's time is measured. Part of what a stored measurement is known by.
#pragma once

#include <string>
#include <string_view>

#include "ordo/error.hpp"

namespace ordo {

/// Sustained: a card that is limited by power runs 5 .. 15 % faster just after it was idle, so every figure follows launches that
/// have warmed it up. Several candidates are measured in interleaved rounds, so that what drifts, drifts for all.
struct MeasurementPolicy {
  double first_warm_ms = 2000;  ///< launches before the first measurement
  double warm_ms = 300;         ///< before the first round of each candidate, and after a pause
  double round_warm_ms = 50;    ///< before every later round
  double measure_ms = 300;      ///< measured time of a candidate, over all rounds
  int rounds = 3;
  bool cold_l2 = false;  ///< every launch finds an L2 full of other data, as between the layers of a model

  /// Times at least 0 and at most 600000, at least one of measure_ms; 1 .. 100 rounds.
  [[nodiscard]] ORDO_API Result<void> validate() const;
  friend bool operator==(const MeasurementPolicy&, const MeasurementPolicy&) = default;
};

/// Canonical text: "measurement first_warm_ms=2000 warm_ms=300 round_warm_ms=50 measure_ms=300 rounds=3 cold_l2=0".
ORDO_API std::string to_text(const MeasurementPolicy& policy);

/// Reads canonical text back; a key may be missing (its default), none may be unknown or repeated. Validates.
ORDO_API Result<MeasurementPolicy> parse_measurement_policy(std::string_view text);

}  // namespace ordo
