// ordo check: random inputs against fp64, and the bits over repeats.
#include <cmath>
#include <memory>

#include "cli/execution.hpp"
#include "cli/options.hpp"
#include "cli/report.hpp"
#include "cli/verbs/verbs.hpp"
#include "codegen/schedule/proof.hpp"

namespace ordo::cli {
namespace {

struct CheckOptions : Options {
  std::int64_t repeats = 3;
  std::uint64_t seed = 0;
  int threads = 0;
};

Result<int> check(const CheckOptions& options) {
  auto made = choose(options);
  if (!made) return made.error();
  if (auto fits = check_memory(made->problem); !fits) return fits.error();
  auto device = resolve_device(options);
  if (!device) return device.error();
  const auto context = hold_context(*device);
  if (!context) return context.error();
  std::optional<AttentionBackwardKernel> kernel;
  if (*device) {
    auto prepared = prepare_kernel(options, *made);
    if (!prepared) return prepared.error();
    kernel = *std::move(prepared);
  }
  const float scale = 1 / std::sqrt(static_cast<float>(made->problem.head_dim));
  reference::HostInputs inputs = reference::random_operands(made->problem, options.seed);
  if (auto ok = complete_inputs(options, *device, made->problem, scale, inputs); !ok) return ok.error();
  auto execution = execute_repeatedly(*device, *made, kernel ? &*kernel : nullptr, scale, inputs,
                                      static_cast<int>(options.repeats), options.threads);
  if (!execution) return execution.error();
  const reference::CheckResult result = compare_with_fp64(*made, scale, inputs, execution->gradients, device->has_value());
  const std::optional<ExactReport> exact = report_exact(*made, scale, inputs, execution->gradients);
  // `atomic` promises no bits.
  const bool bits_matter = made->choice.plan.accumulate != Accumulate::atomic;
  const bool passed = result.passed() && (execution->same_bits || !bits_matter) && (!exact || exact->safe());
  if (options.json) {
    print_json({{"problem", to_text(made->problem)},
                {"plan", to_text(made->choice.plan)},
                {"fingerprint", order_fingerprint(made->problem, made->choice.plan)},
                {"device", execution->device},
                {"seed", options.seed},
                {"max_relative_error", errors_json(result, &reference::GradientError::relative)},
                {"allowed_relative_error", errors_json(result, &reference::GradientError::allowed)},
                {"exact", exact_json(exact)},
                {"repeats", execution->repeats},
                {"same_bits", execution->same_bits},
                {"passed", passed}});
  } else {
    print("problem       {}\nplan          {}\ndevice        {}\n", to_text(made->problem), to_text(made->choice.plan),
          execution->device);
    print_errors(result);
    print_exact(exact);
    print("bits          {} over {} repeats{}\n", execution->same_bits ? "the same" : "DIFFERENT", execution->repeats,
          bits_matter ? "" : " (atomic does not promise them)");
    print("{}\n", passed ? "passed" : "FAILED");
  }
  return passed ? kOk : kFailedCheck;
}

}  // namespace

Verb add_check(CLI::App& app) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* verb = app.add_subcommand("check", "Check gradients of random inputs against fp64, and their bits over repeats");
  add_family(*verb, *options);
  add_shape(*verb, *options);
  add_plan(*verb, *options);
  add_allow_spills(*verb, *options);
  add_target(*verb, *options);
  add_device(*verb, *options, "Where to run (the GPU if there is one, else the CPU)");
  verb->add_option("--repeats", options->repeats, "Runs whose bits are compared (3)")
      ->check(kInteger)
      ->check(CLI::Range(1, 1000000))
      ->type_name("N");
  verb->add_option("--seed", options->seed, "Seed of the inputs (0)")->check(CLI::NonNegativeNumber)->type_name("N");
  verb->add_option("--threads", options->threads, "CPU threads (all)")
      ->check(kInteger)
      ->check(CLI::Range(1, 256))
      ->type_name("N");
  add_cache(*verb, *options);
  add_json(*verb, *options);
  verb->footer(
      "ordo check overlap --help is about products and their exchange.\nExample:\n  ordo check attention-backward --seqlen-q "
      "1000 --seqlen-k 2000 --heads 8 --kv-heads 2 --mask causal --repeats "
      "10\n"
      "How far each gradient may be from fp64, in the Frobenius norm: 0.5 % of the gradient; or, where that is more, 1.1 times\n"
      "as far as the plain computation is (fp32, with P and dS rounded to the inputs' type); and a millionth of the sums of\n"
      "magnitudes, for what cancels.");
  return {verb, [options] { return check(*options); }};
}

}  // namespace ordo::cli
