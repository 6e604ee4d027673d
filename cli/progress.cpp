#include "cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace ordo::cli {

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), terminal_(::isatty(STDERR_FILENO) == 1), start_(Clock::now()), last_(start_) {}

ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::clear() {
  if (drawn_) (void)std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

void ProgressBar::update(double share) {
  using std::chrono::milliseconds;
  if (!terminal_) return;
  const Clock::time_point now = Clock::now();
  if (now - start_ < milliseconds(1000) || now - last_ < milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  const std::string line = progress_line(label_, share, std::chrono::duration<double>(now - start_).count());
  (void)std::fputs(("\r\x1b[K" + line).c_str(), stderr);
  (void)std::fflush(stderr);
}

std::string progress_line(const std::string& label, double share, double elapsed_seconds) {
  constexpr int kCells = 24;
  share = std::clamp(share, 0.0, 1.0);
  const int filled = static_cast<int>(std::floor(share * kCells));
  std::string left;
  if (share > 0) {
    const double seconds = elapsed_seconds * (1 - share) / share;
    left = seconds < 90 ? fmt::format(", {:.0f} s left", seconds) : fmt::format(", {:.0f} min left", seconds / 60);
  }
  return fmt::format("{} [{}{}] {:.0f} %{}", label, std::string(static_cast<std::size_t>(filled), '#'),
                     std::string(static_cast<std::size_t>(kCells - filled), '-'), share * 100, left);
}

}  // namespace ordo::cli
