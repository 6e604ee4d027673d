// A progress bar with the time that is left, for jobs that take long.
#pragma once

#include <chrono>
#include <string>

namespace ordo::cli {

/// Draws on standard error, only if that is a terminal, only from the second second on, and clears itself at the end.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `share` of the work done, in [0, 1]. Cheap: draws at most ten times a second.
  void update(double share);
  /// Takes the bar off the terminal, for other output; update() draws it again.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_, last_;
};

/// The line that is drawn, e.g. "fp64 reference [#####-----] 50 %, 12 s left". Pure.
std::string progress_line(const std::string& label, double share, double elapsed_seconds);

}  // namespace ordo::cli
