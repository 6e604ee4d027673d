#include "runtime/tuner/decide.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace ordo::tuner {

double Measured::ms() const { return measure::combined(rounds).ms_median; }

double Measured::spread() const {
  const auto [low, high] = std::minmax_element(
      rounds.begin(), rounds.end(), [](const measure::Sample& a, const measure::Sample& b) { return a.ms_median < b.ms_median; });
  return high->ms_median / low->ms_median - 1;
}

Decision decide(const std::vector<Measured>& measured, const Plan& preferred, double margin) {
  Decision out;
  std::vector<double> ms;
  std::vector<std::string> texts;
  for (const Measured& one : measured) {
    ms.push_back(one.ms());
    texts.push_back(to_text(one.plan));
  }
  out.ranking.resize(measured.size());
  std::iota(out.ranking.begin(), out.ranking.end(), 0);
  std::sort(out.ranking.begin(), out.ranking.end(),
            [&](std::size_t a, std::size_t b) { return std::pair(ms[a], texts[a]) < std::pair(ms[b], texts[b]); });
  const std::size_t fastest = out.ranking.front();
  const double limit = ms[fastest] * (1 + margin);
  const auto end = std::find_if(out.ranking.begin(), out.ranking.end(), [&](std::size_t i) { return ms[i] > limit; });
  const auto equals = static_cast<std::size_t>(end - out.ranking.begin());
  if (equals == 1) {
    out.winner = fastest;
    out.reason = measured.size() == 1 ? "the only plan measured"
                                      : fmt::format("fastest of {}, {:.1f} % ahead of the next", measured.size(),
                                                    (ms[out.ranking[1]] / ms[fastest] - 1) * 100);
    return out;
  }
  const auto kept = std::find_if(out.ranking.begin(), end, [&](std::size_t i) { return measured[i].plan == preferred; });
  const auto first =
      std::min_element(out.ranking.begin(), end, [&](std::size_t a, std::size_t b) { return texts[a] < texts[b]; });
  out.winner = kept != end ? *kept : *first;
  out.reason = fmt::format("{} of {} plans are within {:.1f} % of the fastest; {}", equals, measured.size(), margin * 100,
                           kept != end ? "the planner's choice is one of them" : "the first by its text stands for them");
  return out;
}

}  // namespace ordo::tuner
