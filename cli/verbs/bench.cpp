// ordo bench: time on a GPU, by CUDA events.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include "cli/execution.hpp"
#include "cli/gpu_problem.hpp"
#include "cli/nvml.hpp"
#include "cli/options.hpp"
#include "cli/report.hpp"
#include "cli/verbs/verbs.hpp"
#include "runtime/reference/numbers.hpp"

namespace ordo::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions : Options {
  double warmup_seconds = 0.3;
  std::int64_t repeats = 0;
  std::uint64_t seed = 0;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// O and LSE as a forward would give them for standard normal q, k and v, without its cost: S is standard normal, so that
// LSE = ln(keys) + 1/2 in the mean, and O is a mean of `keys` values, weighted by exp(S). Time and power depend on little more.
void make_up_forward(const AttentionBackward& p, reference::HostInputs& inputs) {
  const std::int64_t shift = p.seqlen_k - p.seqlen_q;
  inputs.lse.resize(static_cast<std::size_t>(p.batch * p.heads * p.seqlen_q));
  for (std::size_t i = 0; i < inputs.lse.size(); ++i) {
    const std::int64_t row = static_cast<std::int64_t>(i) % p.seqlen_q;
    const std::int64_t keys = p.mask == Mask::causal ? std::clamp<std::int64_t>(row + shift + 1, 0, p.seqlen_k) : p.seqlen_k;
    inputs.lse[i] = keys == 0 ? -std::numeric_limits<float>::infinity() : std::log(static_cast<float>(keys)) + 0.5f;
  }
  inputs.o = inputs.d_o;
  const auto size = static_cast<float>(std::sqrt(std::exp(1.0) / static_cast<double>(p.seqlen_k)));
  std::rotate(inputs.o.begin(), inputs.o.begin() + static_cast<std::ptrdiff_t>(inputs.o.size() / 3), inputs.o.end());
  for (std::uint16_t& bits : inputs.o) bits = reference::narrow(p.dtype, reference::widen(p.dtype, bits) * size);
}

reference::HostInputs make_inputs(const AttentionBackward& problem, float scale, std::uint64_t seed) {
  constexpr double kLargestForward = 2e11;  // a second or two on two cores
  reference::HostInputs inputs = reference::random_operands(problem, seed);
  if (problem.flops() < kLargestForward) {
    reference::forward(problem, scale, inputs);
  } else {
    make_up_forward(problem, inputs);
  }
  return inputs;
}

// What was measured.
struct Timing {
  std::vector<double> ms;
  std::vector<GpuState> states;  ///< sampled while it ran
  [[nodiscard]] double median() const {
    std::vector<double> sorted = ms;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t half = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  }
  [[nodiscard]] double minimum() const { return *std::min_element(ms.begin(), ms.end()); }
};

// Launches for at least `seconds` and returns the time of one launch, in seconds.
Result<double> warm_up(GpuProblem& problem, double seconds) {
  const Clock::time_point start = Clock::now();
  int launches = 0, batch = 1;
  double elapsed = 0;
  do {
    for (int i = 0; i < batch; ++i) {
      if (auto launched = problem.launch(); !launched) return launched.error();
    }
    if (auto done = problem.synchronize(); !done) return done.error();
    launches += batch;
    elapsed = seconds_since(start);
    batch = std::clamp(static_cast<int>(0.02 * launches / elapsed), 1, 1000);
  } while (elapsed < seconds);
  return elapsed / launches;
}

Result<Timing> measure(GpuProblem& problem, std::size_t repeats, const std::optional<Nvml>& nvml) {
  std::vector<Event> events;
  for (std::size_t i = 0; i <= repeats; ++i) {
    auto event = Event::create();
    if (!event) return event.error();
    events.push_back(*std::move(event));
  }
  if (auto recorded = events[0].record(problem.stream()); !recorded) return recorded.error();
  for (std::size_t i = 1; i <= repeats; ++i) {
    if (auto launched = problem.launch(); !launched) return launched.error();
    if (auto recorded = events[i].record(problem.stream()); !recorded) return recorded.error();
  }
  Timing out;
  for (;;) {
    const auto done = events.back().done();
    if (!done) return done.error();
    if (*done) break;
    if (nvml) {
      if (const auto state = nvml->state()) out.states.push_back(*state);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (std::size_t i = 1; i <= repeats; ++i) {
    auto ms = events[i].milliseconds_since(events[i - 1]);
    if (!ms) return ms.error();
    out.ms.push_back(*ms);
  }
  return out;
}

template <class Member>
double mean(const std::vector<GpuState>& states, Member member) {
  double sum = 0;
  for (const GpuState& state : states) sum += static_cast<double>(state.*member);
  return sum / static_cast<double>(states.size());
}

void report(const BenchOptions& options, const Choice& made, const DeviceFacts& device, const Timing& timing) {
  const double median = timing.median(), tflops = made.problem.flops() / median * 1e-9;
  const bool sampled = !timing.states.empty();
  if (options.json) {
    print_json({{"problem", to_text(made.problem)},
                {"plan", to_text(made.choice.plan)},
                {"device", device.name},
                {"ms_median", median},
                {"ms_min", timing.minimum()},
                {"tflops", tflops},
                {"repeats", timing.ms.size()},
                {"warmup_seconds", options.warmup_seconds},
                {"sm_clock_mhz", sampled ? Json(mean(timing.states, &GpuState::sm_clock_mhz)) : Json()},
                {"memory_clock_mhz", sampled ? Json(mean(timing.states, &GpuState::memory_clock_mhz)) : Json()},
                {"watts", sampled ? Json(mean(timing.states, &GpuState::watts)) : Json()}});
    return;
  }
  print("problem       {}\nplan          {}\ndevice        {}\n", to_text(made.problem), to_text(made.choice.plan), device.name);
  print("time          {:.4f} ms median, {:.4f} ms min, of {} launches after {:g} s of warm-up\n", median, timing.minimum(),
        timing.ms.size(), options.warmup_seconds);
  print("speed         {:.0f} TFLOP/s (predicted {:.0f})\n", tflops, made.problem.flops() / made.choice.predicted_ms * 1e-9);
  if (sampled) {
    print("clocks        {:.0f} MHz SM, {:.0f} MHz memory, {:.0f} W\n", mean(timing.states, &GpuState::sm_clock_mhz),
          mean(timing.states, &GpuState::memory_clock_mhz), mean(timing.states, &GpuState::watts));
  }
}

Result<int> bench(const BenchOptions& options) {
  auto made = choose(options);
  if (!made) return made.error();
  if (auto fits = check_memory(made->problem); !fits) return fits.error();
  auto device = resolve_device(options);
  if (!device) return device.error();
  if (!*device)
    return Error{
        ErrorCode::no_device,
        "ordo bench times kernels on a GPU, and there is none that ordo has kernels for (ordo doctor says what there is)"};
  auto prepared = prepare_kernel(options, *made);
  if (!prepared) return prepared.error();
  const float scale = 1 / std::sqrt(static_cast<float>(made->problem.head_dim));
  auto problem = GpuProblem::create(**device, made->problem, scale, make_inputs(made->problem, scale, options.seed));
  if (!problem) return problem.error();
  if (auto used = problem->use(*prepared); !used) return used.error();
  auto one = warm_up(*problem, options.warmup_seconds);
  if (!one) return one.error();
  const std::int64_t repeats =
      options.repeats > 0 ? options.repeats : std::clamp<std::int64_t>(static_cast<std::int64_t>(1.0 / *one), 10, 2000);
  auto timing = measure(*problem, static_cast<std::size_t>(repeats), Nvml::open(**device));
  if (!timing) return timing.error();
  report(options, *made, problem->facts(), *timing);
  return kOk;
}

}  // namespace

Verb add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* verb = app.add_subcommand("bench", "Time the whole backward on a GPU");
  add_family(*verb, *options);
  add_shape(*verb, *options);
  add_plan(*verb, *options);
  add_target(*verb, *options);
  add_device(*verb, *options, "Which GPU (the current one)");
  verb->add_option("--warmup", options->warmup_seconds, "Seconds of launches before the measurement (0.3)")
      ->check(CLI::Range(0.0, 600.0))
      ->type_name("S");
  verb->add_option("--repeats", options->repeats, "Launches that are timed (about a second of them)")
      ->check(kInteger)
      ->check(CLI::Range(1, 1000000))
      ->type_name("N");
  verb->add_option("--seed", options->seed, "Seed of the inputs (0)")->check(CLI::NonNegativeNumber)->type_name("N");
  add_cache(*verb, *options);
  add_json(*verb, *options);
  verb->footer(
      "Example:\n  ordo bench attention-backward --seqlen 16384 --heads 16 --head-dim 128 --mask causal --json\n"
      "The card is limited by power: it runs faster just after it was idle. A sustained figure needs the warm-up.");
  return {verb, [options] { return bench(*options); }};
}

}  // namespace ordo::cli
