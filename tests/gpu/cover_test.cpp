// Gradients against fp64 over a cover of shapes and plans.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "tests/gpu/cells.hpp"
#include "tests/gpu/gpu.hpp"

namespace ordo::test {
namespace {

constexpr std::array kOutputs{"dq", "dk", "dv"};

struct Outcome {
  std::string failure;  ///< empty: passed
  double worst = 0;     ///< error over allowed error
};

Outcome failed(const std::string& what) { return {.failure = what}; }

Outcome check_cell(Gpu& device, const Cell& cell, const AttentionBackwardKernel& kernel, std::uint64_t seed) {
  auto problem = GpuProblem::create(device.reference, cell.problem, seed, true);
  if (!problem) return failed(problem.error().message);
  auto run = Run::create(device, *problem, kernel);
  if (!run) return failed(run.error().message);
  if (auto ran = (*run)(*problem, 0); !ran) return failed(ran.error().message);
  auto deviations = problem->compare();
  if (!deviations) return failed(deviations.error().message);
  Outcome outcome;
  for (std::size_t i = 0; i < kOutputs.size(); ++i) {
    const Deviation& d = (*deviations)[i];
    if (d.allowed > 0) outcome.worst = std::max(outcome.worst, d.relative / d.allowed);
    if (!d.within())
      outcome.failure +=
          fmt::format("{}: error {:.2e}, allowed {:.2e}, {:g} not finite; ", kOutputs[i], d.relative, d.allowed, d.non_finite);
  }
  if (!outcome.failure.empty() || cell.plan.accumulate == Accumulate::atomic) return outcome;

  if (auto kept = problem->keep_bits(); !kept) return failed(kept.error().message);
  if (auto ran = (*run)(*problem, seed + 1); !ran) return failed("repeat: " + ran.error().message);
  const auto differing = problem->differing_words();
  if (!differing) return failed(differing.error().message);
  if (*differing != 0) outcome.failure = fmt::format("a repeat differs in {} words", *differing);
  return outcome;
}

/// The cover, or with $ORDO_COVER_LARGEST only its cells of no longer sequences: for slow tools such as compute-sanitizer.
std::vector<Cell> cells_to_run(const Target& target, std::vector<std::string>& errors) {
  std::vector<Cell> cells = cover_cells(target, errors);
  if (const char* largest = std::getenv("ORDO_COVER_LARGEST"))
    std::erase_if(cells, [&](const Cell& cell) {
      return std::max(cell.problem.seqlen_q, cell.problem.seqlen_k) > std::strtoll(largest, nullptr, 10);
    });
  return cells;
}

std::vector<Plan> plans_of(const std::vector<Cell>& cells) {
  std::vector<Plan> plans;
  for (const Cell& cell : cells) plans.push_back(cell.plan);
  return plans;
}

}  // namespace

TEST_CASE("gradients match fp64 over a cover of shapes and plans") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  std::vector<std::string> errors;
  const std::vector<Cell> cells = cells_to_run(device->target(), errors);
  for (const std::string& error : errors) fmt::print("{}\n", error);
  CHECK(errors.empty());

  Stopwatch compile_time;
  int failures = 0;
  Kernels kernels;
  {
    const Deadline deadline("compiling the cover", 300);
    kernels = prepare_all(device->engine, plans_of(cells), failures);
  }
  fmt::print("cover: {} cells, {} plans prepared in {:.1f} s\n", cells.size(), kernels.size(), compile_time.seconds());

  Stopwatch time;
  double worst = 0;
  std::string worst_cell;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const auto kernel = kernels.find(to_text(cells[i].plan));
    if (kernel == kernels.end()) continue;  // counted by prepare_all
    const std::string text = describe(cells[i].problem, cells[i].plan);
    const Deadline deadline(text);
    const Outcome outcome = check_cell(*device, cells[i], kernel->second, i);
    if (!outcome.failure.empty()) {
      if (++failures <= 25) fmt::print("FAILED {}\n  {}\n", text, outcome.failure);
      check_context(*device, text);
    } else if (outcome.worst > worst) {
      worst = outcome.worst;
      worst_cell = text;
    }
  }
  fmt::print("cover: {} failed, {:.1f} s; closest to its bound of those that passed ({:.2f} of it): {}\n", failures,
             time.seconds(), worst, worst_cell);
  CHECK(failures == 0);
}

// See precompile(): ORDO_CACHE=kernels.db ordo_gpu_tests --no-skip --test-case="precompile the*"
TEST_CASE("precompile the cover" * doctest::skip()) {
  const Target target = must(parse_target("h200"));
  std::vector<std::string> errors;
  const std::vector<Cell> cells = cells_to_run(target, errors);
  for (const std::string& error : errors) fmt::print("{}\n", error);
  CHECK(errors.empty());
  precompile(target, plans_of(cells));
}

}  // namespace ordo::test
