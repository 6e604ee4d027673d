// ordo run: the gradients of the tensors in a file.
#include <cmath>
#include <memory>
#include <utility>

#include "cli/execution.hpp"
#include "cli/layer_file.hpp"
#include "cli/options.hpp"
#include "cli/report.hpp"
#include "cli/verbs/verbs.hpp"
#include "codegen/schedule/proof.hpp"

namespace ordo::cli {
namespace {

struct RunOptions : Options {
  std::string input, output;
  std::optional<double> scale;
  std::string verify = "auto";
  bool no_compile = false;
  int threads = 0;
};

// Above this the fp64 comparison takes longer than about half a minute on two cores.
constexpr double kLargestVerified = 2e12;

Result<float> resolve_scale(const RunOptions& options, const AttentionBackward& problem) {
  if (!options.scale) return 1 / std::sqrt(static_cast<float>(problem.head_dim));
  const auto scale = static_cast<float>(*options.scale);
  if (scale > 0 && std::isfinite(scale)) return scale;
  return Error{ErrorCode::invalid_argument, fmt::format("--scale is {}; it must be positive and finite in fp32", *options.scale)};
}

Result<Layer> load_layer(const RunOptions& options, const std::optional<Plan>& plan) {
  Mask mask = plan ? plan->mask : Mask::full;
  if (options.mask) {
    auto parsed = parse_mask(*options.mask);
    if (!parsed) return parsed.error();
    mask = *parsed;
  }
  return read_layer(options.input, mask);
}

// O and LSE where the file has them not.
Result<void> complete(const RunOptions& options, std::optional<int> device, const AttentionBackward& problem, float scale,
                      reference::HostInputs& inputs) {
  if (inputs.o.empty() || inputs.lse.empty()) {
    const char* what = !inputs.lse.empty() ? "o is" : !inputs.o.empty() ? "lse is" : "o and lse are";
    note(fmt::format("{} computed from q, k and v{}.", what, device ? " by the generated forward" : " in fp64"));
  }
  return complete_inputs(options, device, problem, scale, inputs);
}

// The kernels of the plan, or why there are none.
struct Compiled {
  std::optional<AttentionBackwardKernel> kernel;
  std::string error;
};

struct Verdict {
  bool verified = false;
  reference::CheckResult errors;
  std::optional<ExactReport> exact;
  [[nodiscard]] bool passed() const { return !verified || (errors.passed() && (!exact || exact->safe())); }
};

Verdict verify(const RunOptions& options, const Choice& made, float scale, const reference::HostInputs& inputs,
               const Execution& execution, bool on_gpu) {
  Verdict out;
  out.verified = options.verify == "yes" || (options.verify == "auto" && made.problem.flops() <= kLargestVerified);
  if (!out.verified) return out;
  out.errors = compare_with_fp64(made, scale, inputs, execution.gradients, on_gpu);
  out.exact = report_exact(made, scale, inputs, execution.gradients);
  const double sum = out.exact ? out.exact->probability_sum : reference::largest_probability_sum(made.problem, scale, inputs);
  if (sum > 1.05) {
    note(fmt::format("the lse does not belong to q, k, --mask {} and --scale {:g}: the probabilities of a row add up to {:.3g}",
                     to_string(made.problem.mask), scale, sum));
  }
  return out;
}

void print_human(const RunOptions& options, const Choice& made, const Compiled& compiled, const Execution& execution,
                 const Verdict& verdict) {
  print("problem       {}\nplan          {}\nwhy           {}\ntarget        {}\n\n", to_text(made.problem),
        to_text(made.choice.plan), made.choice.reason, to_text(made.target));
  if (compiled.kernel) {
    print_kernels(compiled.kernel->reports());
    print("\n");
  }
  print("device        {}\n", execution.device);
  if (verdict.verified) {
    print_errors(verdict.errors);
    print_exact(verdict.exact);
  } else {
    print("error         not computed (--verify yes computes it)\n");
  }
  print("bits          {} in a repeat\n", execution.same_bits ? "the same" : "DIFFERENT");
  print("output        {}\n", options.output);
}

Json json_of(const RunOptions& options, const Choice& made, const Compiled& compiled, const Execution& execution,
             const Verdict& verdict, bool passed) {
  Json json = {{"problem", to_text(made.problem)},
               {"plan", to_text(made.choice.plan)},
               {"reason", made.choice.reason},
               {"target", to_text(made.target)},
               {"fingerprint", order_fingerprint(made.problem, made.choice.plan)},
               {"device", execution.device}};
  json["compile"] = compiled.kernel ? kernels_json(compiled.kernel->reports()) : Json();
  if (!compiled.error.empty()) json["compile_error"] = compiled.error;
  json["max_relative_error"] = verdict.verified ? errors_json(verdict.errors, &reference::GradientError::relative) : Json();
  json["allowed_relative_error"] = verdict.verified ? errors_json(verdict.errors, &reference::GradientError::allowed) : Json();
  json["exact"] = exact_json(verdict.exact);
  json["repeats"] = execution.repeats;
  json["same_bits"] = execution.same_bits;
  json["output"] = options.output;
  json["passed"] = passed;
  return json;
}

Result<int> run_layer(const RunOptions& options) {
  if (options.verify != "auto" && options.verify != "yes" && options.verify != "no") {
    return Error{ErrorCode::invalid_argument, fmt::format("--verify '{}' is not auto, yes or no", options.verify)};
  }
  auto plan = resolve_given_plan(options);
  if (!plan) return plan.error();
  if (auto writable = check_output(options.output, options.input); !writable) return writable.error();
  auto layer = load_layer(options, *plan);
  if (!layer) return layer.error();
  auto scale = resolve_scale(options, layer->problem);
  if (!scale) return scale.error();
  auto made = choose_plan(options, layer->problem, *plan);
  if (!made) return made.error();
  auto device = resolve_device(options);
  if (!device) return device.error();
  if (*device && options.no_compile) return Error{ErrorCode::invalid_argument, "--no-compile is for the CPU: add --device cpu"};

  const auto context = hold_context(*device);
  if (!context) return context.error();
  Compiled compiled;
  if (!options.no_compile) {
    auto prepared = prepare_kernel(options, *made);
    // The CPU executor needs no kernel: what stands in the way of compiling one does not stand in its way.
    if (!prepared && *device) return prepared.error();
    if (prepared) {
      compiled.kernel = *std::move(prepared);
    } else {
      compiled.error = prepared.error().message;
      note(compiled.error);
      note("going on without compiled kernels: the CPU executor needs none.");
    }
  }
  if (auto ok = complete(options, *device, made->problem, *scale, layer->inputs); !ok) return ok.error();
  auto execution = execute_repeatedly(*device, *made, compiled.kernel ? &*compiled.kernel : nullptr, *scale, layer->inputs, 2,
                                      options.threads);
  if (!execution) return execution.error();
  const std::map<std::string, std::string> metadata = {
      {"plan", to_text(made->choice.plan)}, {"fingerprint", order_fingerprint(made->problem, made->choice.plan)},
      {"problem", to_text(made->problem)},  {"scale", fmt::format("{}", *scale)},
      {"device", execution->device},        {"ordo", ORDO_VERSION}};
  if (auto written = write_gradients(options.output, made->problem, execution->gradients, metadata); !written)
    return written.error();

  const Verdict verdict = verify(options, *made, *scale, layer->inputs, *execution, device->has_value());
  const bool bits_fine = execution->same_bits || made->choice.plan.accumulate == Accumulate::atomic;
  const bool passed = bits_fine && verdict.passed();
  if (options.json) {
    print_json(json_of(options, *made, compiled, *execution, verdict, passed));
  } else {
    print_human(options, *made, compiled, *execution, verdict);
  }
  return passed ? kOk : kFailedCheck;
}

}  // namespace

Verb add_run(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* verb = app.add_subcommand("run", "Compute the gradients of the tensors in a safetensors file");
  add_family(*verb, *options);
  verb->add_option("--input", options->input, "Safetensors with q, k, v, do and, if it has them, o and lse")
      ->required()
      ->type_name("FILE");
  verb->add_option("--output", options->output, "Safetensors to write: dq, dk, dv")->required()->type_name("FILE");
  verb->add_option("--mask", options->mask, kMaskHelp)->type_name("MASK");
  verb->add_option("--scale", options->scale, "Softmax scale (1/sqrt(head_dim))")->type_name("X");
  add_device(*verb, *options, "Where to run (the GPU if there is one, else the CPU)");
  verb->add_option("--verify", options->verify, "auto, yes or no: compare with fp64 (auto: unless that takes long)")
      ->type_name("WHEN");
  verb->add_flag("--no-compile", options->no_compile, "On the CPU: do not compile the kernels too");
  verb->add_option("--threads", options->threads, "CPU threads (all)")
      ->check(kInteger)
      ->check(CLI::Range(1, 256))
      ->type_name("N");
  add_plan(*verb, *options);
  add_target(*verb, *options);
  add_cache(*verb, *options);
  add_json(*verb, *options);
  verb->footer(
      "Example:\n  ordo run attention-backward --input examples/data/attention_layer.safetensors --output gradients.safetensors "
      "--mask "
      "causal\n"
      "Shapes and dtype come from the file: q, do, o [batch, seqlen_q, heads, head_dim]; k, v [batch, seqlen_k, kv_heads, "
      "head_dim];\n"
      "lse [batch, heads, seqlen_q], F32.");
  return {verb, [options] { return run_layer(*options); }};
}

}  // namespace ordo::cli
