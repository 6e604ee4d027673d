#include "cli/options.hpp"

#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>

#include "cli/report.hpp"
#include "codegen/cost/model.hpp"
#include "codegen/schedule/proof.hpp"
#include "runtime/calibration.hpp"
#include "runtime/device.hpp"

namespace ordo::cli {
namespace {

constexpr std::int64_t kDefaultLength = 4096;

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// A plan file is one line of text beside comments.
Result<std::string> read_plan_file(const std::string& path) {
  constexpr std::uintmax_t kLargest = 65536;
  std::error_code reason;
  if (!std::filesystem::is_regular_file(path, reason)) {
    return Error{ErrorCode::invalid_plan,
                 fmt::format("--plan '{}' is neither a plan's text (\"attention-backward dtype=...\") nor a file", path)};
  }
  if (const auto size = std::filesystem::file_size(path, reason); reason || size > kLargest) {
    return Error{ErrorCode::io, fmt::format("--plan {}: {}", path, reason ? reason.message() : "too large for a plan")};
  }
  std::ifstream file(path);
  std::string text, line;
  while (std::getline(file, line)) {
    if (!line.empty() && line.front() != '#') text += line + ' ';
  }
  if (file.bad() || !file.eof()) return Error{ErrorCode::io, fmt::format("--plan {}: cannot be read", path)};
  return text;
}

Result<int> parse_device(const std::string& text) {
  const auto index = parse_integer(text);
  if (!index || *index < 0 || *index > 1 << 20) {
    return Error{ErrorCode::invalid_argument, fmt::format("--device '{}' is neither cpu nor a device number", text)};
  }
  return static_cast<int>(*index);
}

}  // namespace

const char* const kMaskHelp =
    "full; causal, which aligns to the bottom right; or expr:EXPRESSION over q, k, head, batch, seqlen_q and seqlen_k, e.g. "
    "'expr:k <= q && q - k < 1024' (full)";

const CLI::Validator kInteger(
    [](std::string& text) { return parse_integer(text) ? std::string() : fmt::format("'{}' is not an integer", text); }, "");

CLI::Option* add_family(CLI::App& verb, Options& options) {
  return verb.add_option("family", options.family, "What to compute: attention-backward")
      ->required()
      ->type_name("FAMILY")
      ->check(CLI::IsMember({"attention-backward"}));
}

void add_shape(CLI::App& verb, Options& options) {
  const auto size = [&](const std::string& name, std::optional<std::int64_t>& value, const std::string& help) {
    verb.add_option(name, value, help)->type_name("N")->check(kInteger)->group("Shape");
  };
  size("--batch", options.batch, "Batch size (1)");
  size("--seqlen", options.seqlen, fmt::format("Length of queries and keys ({}), in place of the two below", kDefaultLength));
  size("--seqlen-q", options.seqlen_q, "Length of queries, with --seqlen-k");
  size("--seqlen-k", options.seqlen_k, "Length of keys, with --seqlen-q");
  size("--heads", options.heads, "Query heads (1)");
  size("--kv-heads", options.kv_heads, "Key and value heads (as many as query heads)");
  size("--head-dim", options.head_dim, "Elements of a head: 64 or 128 (128)");
  verb.add_option("--mask", options.mask, kMaskHelp)->type_name("MASK")->group("Shape");
  verb.add_option("--dtype", options.dtype, "bf16 or fp16 (bf16)")->type_name("TYPE")->group("Shape");
}

void add_plan(CLI::App& verb, Options& options) {
  auto* schedule = verb.add_option("--schedule", options.schedule,
                                   "ascending, descending, arrival, shift (full), alternate or symmetric_shift (causal)")
                       ->type_name("NAME");
  auto* accumulate = verb.add_option("--accumulate", options.accumulate, "ordered, exact or atomic (ordered)")->type_name("NAME");
  auto* state = verb.add_option("--schedule-state", options.schedule_state,
                                "Which warps work out the next Q tile and its turn: producer or consumer (producer)")
                    ->type_name("WARPS");
  auto* fixed = verb.add_flag("--static-shape", options.static_shape, "Bake the shape into the kernels");
  auto* plan = verb.add_option("--plan", options.plan, "A plan's text, or a file that holds it, in place of the planner's choice")
                   ->type_name("PLAN");
  plan->excludes(schedule)->excludes(accumulate)->excludes(state)->excludes(fixed);
  for (CLI::Option* option : {schedule, accumulate, state, fixed, plan}) option->group("Plan");
}

void add_allow_spills(CLI::App& verb, Options& options) {
  verb.add_flag("--allow-spills", options.allow_spills, "Take kernels whose registers spill, which are otherwise refused")
      ->group("Plan");
}

void add_target(CLI::App& verb, Options& options) {
  verb.add_option("--target", options.target,
                  "GPU to plan for: h100, h200, h800, h20 or sm_90a:SMS (the device; h200 without one)")
      ->type_name("NAME")
      ->group("Plan");
}

void add_device(CLI::App& verb, Options& options, const std::string& help) {
  verb.add_option("--device", options.device, help)->type_name("cpu|N");
}

void add_cache(CLI::App& verb, Options& options) {
  verb.add_option("--cache", options.cache,
                  "Cache file ($ORDO_CACHE, else $XDG_CACHE_HOME/ordo/cache.db, else ~/.cache/ordo/cache.db)")
      ->type_name("FILE");
}

void add_json(CLI::App& verb, Options& options) {
  verb.add_flag("--json", options.json, "Print JSON, and nothing else, on standard output");
}

Result<AttentionBackward> resolve_problem(const Options& options, const std::optional<Plan>& plan) {
  if (options.seqlen && (options.seqlen_q || options.seqlen_k)) {
    return Error{ErrorCode::invalid_argument,
                 "--seqlen sets both lengths: give it alone, or --seqlen-q and --seqlen-k in its place"};
  }
  if (options.seqlen_q.has_value() != options.seqlen_k.has_value()) {
    return Error{ErrorCode::invalid_argument, "--seqlen-q and --seqlen-k go together; --seqlen sets both"};
  }
  const Plan base = plan.value_or(Plan{});
  AttentionBackward problem;
  problem.batch = options.batch.value_or(1);
  problem.seqlen_q = options.seqlen_q.value_or(options.seqlen.value_or(kDefaultLength));
  problem.seqlen_k = options.seqlen_k.value_or(options.seqlen.value_or(kDefaultLength));
  if (options.heads) {
    problem.heads = *options.heads;
  } else if (__builtin_mul_overflow(options.kv_heads.value_or(1), std::int64_t{base.group}, &problem.heads)) {
    problem.heads = std::numeric_limits<std::int64_t>::max();  // refused below
  }
  problem.kv_heads = options.kv_heads.value_or(base.group > 1 ? problem.heads / base.group : problem.heads);
  problem.head_dim = options.head_dim.value_or(base.head_dim);
  problem.mask = base.mask;
  problem.dtype = base.dtype;
  if (options.mask) {
    auto mask = parse_mask(*options.mask);
    if (!mask) return mask.error();
    problem.mask = *mask;
  }
  if (options.dtype) {
    auto dtype = parse_dtype(*options.dtype);
    if (!dtype) return dtype.error();
    problem.dtype = *dtype;
  }
  if (auto valid = problem.validate(); !valid) return valid.error();
  return problem;
}

Result<std::optional<Plan>> resolve_given_plan(const Options& options) {
  if (!options.plan) return std::optional<Plan>();
  std::string text = *options.plan;
  if (!text.starts_with("attention-backward ")) {
    auto read = read_plan_file(text);
    if (!read) return read.error();
    text = *read;
  }
  auto plan = parse_plan(text);
  if (!plan) return plan.error();
  return std::optional(*plan);
}

Result<Target> resolve_target(const Options& options) {
  if (options.target) return parse_target(*options.target);
  if (options.device && *options.device != "cpu") {
    auto index = parse_device(*options.device);
    if (!index) return index.error();
    return target_of_device(*index);
  }
  if (!options.device) {
    if (const auto device = current_device()) {
      auto target = target_of_device(*device);
      if (target) return target;
      note(target.error().message + " Planning for h200.");
    }
  }
  return parse_target("h200");
}

Result<std::optional<int>> resolve_device(const Options& options) {
  if (options.device) {
    if (*options.device == "cpu") return std::optional<int>();
    auto index = parse_device(*options.device);
    if (!index) return index.error();
    if (auto target = target_of_device(*index); !target) return target.error();
    return std::optional(*index);
  }
  const auto device = current_device();
  if (!device) return std::optional<int>();
  if (auto target = target_of_device(*device); !target) {
    note(target.error().message + " Using the CPU.");
    return std::optional<int>();
  }
  return std::optional(*device);
}

Result<int> resolve_gpu(const Options& options, const std::string& what) {
  auto device = resolve_device(options);
  if (!device) return device.error();
  if (*device) return **device;
  return Error{ErrorCode::no_device,
               what + " works on a GPU, and there is none that ordo has kernels for (ordo doctor says what there is)"};
}

Result<PlanRequest> request_of(const Options& options) {
  PlanRequest request;
  request.static_shape = options.static_shape;
  if (options.schedule) {
    auto schedule = parse_schedule(*options.schedule);
    if (!schedule) return schedule.error();
    request.schedule = *schedule;
  }
  if (options.accumulate) {
    auto accumulate = parse_accumulate(*options.accumulate);
    if (!accumulate) return accumulate.error();
    request.accumulate = *accumulate;
  }
  if (options.schedule_state) {
    auto state = parse_schedule_state(*options.schedule_state);
    if (!state) return state.error();
    request.schedule_state = *state;
  }
  return request;
}

Result<Choice> choose_plan(const Options& options, const AttentionBackward& problem, const std::optional<Plan>& given) {
  Choice out{problem, {}, {}};
  auto request = request_of(options);
  if (!request) return request.error();
  auto target = resolve_target(options);
  if (!target) return target.error();
  out.target = *target;
  request->constants = usable_calibration(calibration_path(out.target), out.target, note);
  if (!given) {
    auto choice = make_plan(problem, out.target, *request);
    if (!choice) return choice.error();
    out.choice = *choice;
    return out;
  }
  if (auto fits = check_fit(problem, *given); !fits) return fits.error();
  out.choice.plan = *given;
  const cost::Registers registers = cost::predict_registers(*given);
  out.choice.predicted_ms = (request->constants ? cost::predict(problem, *given, out.target, *request->constants)
                                                : cost::predict(problem, *given, out.target))
                                .ms;
  out.choice.predicted_registers = registers.total;
  out.choice.reason = "given with --plan";
  out.choice.candidates.push_back({*given, out.choice.predicted_ms, registers.total, registers.spill_bytes, out.choice.reason});
  return out;
}

Result<Choice> choose(const Options& options) {
  auto plan = resolve_given_plan(options);
  if (!plan) return plan.error();
  auto problem = resolve_problem(options, *plan);
  if (!problem) return problem.error();
  return choose_plan(options, *problem, *plan);
}

KernelBuilderOptions builder_options(const Options& options) {
  KernelBuilderOptions out;
  out.cache_path = options.cache;
  out.allow_spills = options.allow_spills;
  out.warn = [](const std::string& text) { fmt::print(stderr, "warning: {}\n", text); };
  return out;
}

Result<Engine> make_engine(const Options& options, const Target& target) {
  EngineOptions engine;
  engine.cache_path = options.cache;
  engine.allow_spills = options.allow_spills;
  engine.warn = [](const std::string& text) { fmt::print(stderr, "warning: {}\n", text); };
  engine.target = target;
  return Engine::create(std::move(engine));
}

}  // namespace ordo::cli
