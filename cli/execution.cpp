#include "cli/execution.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "cli/progress.hpp"
#include "runtime/measure/workbench.hpp"

namespace ordo::cli {
namespace {

using reference::HostGradients;

bool equal(const HostGradients& a, const HostGradients& b) { return a.dq == b.dq && a.dk == b.dk && a.dv == b.dv; }

// once(repeat) gives the gradients of one run.
template <class Once>
Result<Execution> repeat(std::string device, int repeats, const Once& once) {
  Execution out;
  out.device = std::move(device);
  out.repeats = std::max(repeats, 1);
  out.same_bits = true;
  for (int i = 0; i < out.repeats; ++i) {
    Result<HostGradients> got = once(i);
    if (!got) return got.error();
    if (i == 0) {
      out.gradients = *std::move(got);
    } else {
      out.same_bits = out.same_bits && equal(*got, out.gradients);
    }
  }
  return out;
}

}  // namespace

Result<void> check_memory(const AttentionBackward& problem) {
  const auto elements = [&](std::int64_t length, std::int64_t heads) {
    return static_cast<double>(problem.batch) * static_cast<double>(length) * static_cast<double>(heads) *
           static_cast<double>(problem.head_dim);
  };
  // Bytes an element: three (two) 16-bit inputs, fp32 sums, two sets of 16-bit gradients, fp64 gradients.
  const double needed = elements(problem.seqlen_q, problem.heads) * (3 * 2 + 4 + 2 * 2 + 8) +
                        elements(problem.seqlen_k, problem.kv_heads) * 2 * (2 + 4 + 2 * 2 + 8);
  const double there = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (needed <= there || there <= 0) return {};
  return Error{ErrorCode::unsupported, fmt::format("this problem needs about {} of memory on the host; the machine has {}",
                                                   bytes_text(needed), bytes_text(there))};
}

Result<void> complete_inputs(const Options& options, std::optional<int> device, const AttentionBackward& problem, float scale,
                             reference::HostInputs& inputs) {
  if (!inputs.o.empty() && !inputs.lse.empty()) return {};
  reference::HostInputs fresh;
  fresh.q = inputs.q, fresh.k = inputs.k, fresh.v = inputs.v;
  if (device) {
    auto bench = measure::Workbench::open(*device, builder_options(options));
    if (!bench) return bench.error();
    auto forward = bench->forward(problem);
    if (!forward) return forward.error();
    auto uploaded = measure::DeviceProblem::upload(problem, scale, fresh, bench->stream().get());
    if (!uploaded) return uploaded.error();
    if (auto ok = uploaded->run_forward(*forward); !ok) return ok;
    if (auto ok = uploaded->download_forward(fresh); !ok) return ok;
  } else {
    reference::forward(problem, scale, fresh);
  }
  if (inputs.o.empty()) inputs.o = std::move(fresh.o);
  if (inputs.lse.empty()) inputs.lse = std::move(fresh.lse);
  return {};
}

Result<std::optional<DeviceContext>> hold_context(std::optional<int> device) {
  std::optional<DeviceContext> held;
  if (!device) return held;
  auto context = DeviceContext::open(*device);
  if (!context) return context.error();
  held.emplace(*std::move(context));
  return held;
}

Result<Execution> execute_repeatedly(std::optional<int> device, const Choice& made, const AttentionBackwardKernel* kernel,
                                     float scale, const reference::HostInputs& inputs, int repeats, int threads) {
  if (device) {
    if (kernel == nullptr) return Error{ErrorCode::toolchain, "a GPU needs the compiled kernels"};
    auto context = DeviceContext::open(*device);
    if (!context) return context.error();
    auto stream = Stream::create();
    if (!stream) return stream.error();
    auto problem = measure::DeviceProblem::upload(made.problem, scale, inputs, stream->get());
    if (!problem) return problem.error();
    if (auto reserved = problem->reserve(*kernel); !reserved) return reserved.error();
    ProgressBar bar("repeats");
    return repeat(context->facts().name, repeats, [&](int i) -> Result<HostGradients> {
      bar.update(static_cast<double>(i) / repeats);
      if (auto poisoned = problem->poison(); !poisoned) return poisoned.error();
      if (auto launched = problem->launch(*kernel); !launched) return launched.error();
      return problem->download();
    });
  }
  const int all = threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return repeat(fmt::format("cpu ({} threads)", all), repeats, [&](int i) {
    // Another number of threads each time, so that equal bits mean something: all, one fewer, ..., half, all, ...
    const int fewer = i % (all - all / 2);
    ProgressBar bar(fmt::format("CPU executor, run {} of {}", i + 1, repeats));
    return reference::execute(made.problem, made.choice.plan, scale, inputs, all == 1 ? i % 3 + 1 : all - fewer,
                              [&](double share) { bar.update(share); });
  });
}

reference::CheckResult compare_with_fp64(const Choice& made, float scale, const reference::HostInputs& inputs,
                                         const HostGradients& gradients, bool on_gpu) {
  ProgressBar bar("fp64 reference");
  const auto where = on_gpu ? reference::NonFinite::may_spread : reference::NonFinite::where_they_belong;
  return reference::compare(made.problem, scale, inputs, gradients, where, [&](double share) { bar.update(share); });
}

std::optional<ExactReport> report_exact(const Choice& made, float scale, const reference::HostInputs& inputs,
                                        const HostGradients& gradients) {
  if (made.choice.plan.accumulate != Accumulate::exact) return std::nullopt;
  return ExactReport{reference::largest_probability_sum(made.problem, scale, inputs),
                     reference::exact_bound_over_actual(made.problem, scale, inputs, gradients)};
}

Json exact_json(const std::optional<ExactReport>& exact) {
  if (!exact) return {};
  const auto number = [](double x) { return std::isfinite(x) ? Json(x) : Json(); };
  return {{"probability_sum", number(exact->probability_sum)}, {"bound_over_actual", number(exact->bound_over_actual)}};
}

void print_exact(const std::optional<ExactReport>& exact) {
  if (!exact) return;
  print("fixed point   bounds are {:.2g} times dq; probabilities of a row add up to at most {:.4g}: {}\n",
        exact->bound_over_actual, exact->probability_sum, exact->safe() ? "ok" : "TOO MUCH (the LSE does not belong to q and k)");
}

Result<AttentionBackwardKernel> prepare_kernel(const Options& options, const Choice& made, Flavour flavour) {
  auto engine = make_engine(options, made.target);
  if (!engine) return engine.error();
  return engine->prepare(made.choice.plan, flavour);
}

}  // namespace ordo::cli
