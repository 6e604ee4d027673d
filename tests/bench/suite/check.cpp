#include "tests/bench/suite/check.hpp"

#include <algorithm>

namespace ordo::bench {

Result<bool> same_bits(Subject& subject) {
  constexpr int kRepeats = 5;
  std::uint64_t differing = 0;
  for (int i = 0; i <= kRepeats; ++i) {
    if (auto ok = subject.launch_poisoned(static_cast<std::uint8_t>(0xff - 50 * i)); !ok) return ok.error();
    if (i == 0) {
      if (auto ok = subject.problem().keep_bits(); !ok) return ok.error();
      continue;
    }
    auto words = subject.problem().differing_words();
    if (!words) return words.error();
    differing += *words;
  }
  return differing == 0;
}

Result<Accuracy> accuracy(Device& device, test::GpuProblem& problem, const AttentionBackwardKernel& kernel) {
  auto subject = Subject::create(device, problem, kernel);
  if (!subject) return subject.error();
  if (auto ok = device.context.synchronize(); !ok) return ok.error();  // the reference runs on another stream
  if (auto ok = subject->launch_poisoned(0xff); !ok) return ok.error();
  auto deviations = problem.compare();
  if (!deviations) return deviations.error();
  Accuracy result{.max_relative_error = 0, .within = true};
  for (const test::Deviation& deviation : *deviations) {
    result.max_relative_error = std::max(result.max_relative_error, deviation.relative);
    result.within = result.within && deviation.within();
  }
  return result;
}

}  // namespace ordo::bench
