// ordo precompile: all kernels that lists of problems need, into one file to ship. Needs no GPU.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>

#include "cache/transfer.hpp"
#include "cli/options.hpp"
#include "cli/progress.hpp"
#include "cli/report.hpp"
#include "cli/stores.hpp"
#include "cli/verbs/verbs.hpp"
#include "ordo/decision_table.hpp"
#include "runtime/compiler.hpp"
#include "runtime/listed_plans.hpp"

namespace ordo::cli {
namespace {

struct PrecompileOptions {
  std::vector<std::string> lists, tables, targets{"h200"};
  std::string cache, toolchain;
  std::int64_t jobs = 0, candidates = 1;
  bool check = false, json = false;
};

/// Plans for one target.
struct Work {
  Target target;
  ShapeList needed = {};  ///< plans alone

  void add(const Plan& plan) { add_new(needed.plans, plan); }
  void add(const OverlapPlan& plan) { add_new(needed.overlap_plans, plan); }
  [[nodiscard]] std::size_t size() const { return needed.plans.size() + needed.overlap_plans.size(); }

 private:
  template <class P>
  static void add_new(std::vector<P>& plans, const P& plan) {
    if (std::find(plans.begin(), plans.end(), plan) == plans.end()) plans.push_back(plan);
  }
};

/// The plans that decision tables hold, for their targets.
Result<void> add_tables(const PrecompileOptions& options, std::vector<Work>& all) {
  for (const std::string& path : options.tables) {
    const auto table = read_decision_table(path);
    if (!table) return table.error();
    const auto work = std::find_if(all.begin(), all.end(), [&](const Work& part) { return part.target == table->target; });
    if (work == all.end()) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{} is for {}, which --target does not name", path, to_text(table->target))};
    }
    for (const Decision& decision : table->decisions) work->add(decision.plan);
  }
  return {};
}

Result<std::vector<Work>> read_work(const PrecompileOptions& options) {
  if (options.lists.empty() && options.tables.empty())
    return Error{ErrorCode::invalid_argument, "name a shape list (models/llama3-8b.toml), or a decision table with --tuning"};
  std::vector<ShapeList> lists;
  for (const std::string& path : options.lists) {
    auto list = read_shape_list(path);
    if (!list) return list.error();
    lists.push_back(*std::move(list));
  }
  std::vector<Work> all;
  for (const std::string& name : options.targets) {
    auto target = parse_target(name);
    if (!target) return target.error();
    Work work{*target};
    for (const ShapeList& list : lists) {
      const auto choose = [&](const AttentionBackward& p, const PlanRequest& r) { return make_plan(p, *target, r); };
      auto plans = plans_of(list, choose, static_cast<std::size_t>(options.candidates));
      if (!plans) return plans.error();
      for (const Plan& plan : *plans) work.add(plan);
      for (const OverlapPlan& plan : list.overlap_plans) work.add(plan);
    }
    all.push_back(std::move(work));
  }
  if (auto ok = add_tables(options, all); !ok) return ok.error();
  return all;
}

/// What the stores have of the kernels that the work needs.
Result<Completeness> look_at(const std::vector<cache::Store>& stores, const std::vector<Work>& work,
                             const std::string& toolchain) {
  Completeness all;
  std::set<std::string> seen;
  for (const Work& part : work) {
    auto found = check_completeness(stores, part.needed.plans, part.needed.overlap_plans, part.target, toolchain);
    if (!found) return found.error();
    for (auto& kernel : found->kernels) {
      if (seen.insert(kernel.first).second) all.kernels.push_back(std::move(kernel));
    }
    for (MissingKernel& missing : found->missing) {
      const auto same = [&](const MissingKernel& other) { return other.key == missing.key; };
      if (std::none_of(all.missing.begin(), all.missing.end(), same)) all.missing.push_back(std::move(missing));
    }
  }
  return all;
}

std::size_t plans_in(const std::vector<Work>& work) {
  std::size_t count = 0;
  for (const Work& part : work) count += part.size();
  return count;
}

Result<std::string> toolchain_of(const PrecompileOptions& options) {
  if (!options.toolchain.empty()) return options.toolchain;
  const auto compiler = Compiler::open();
  if (!compiler) return compiler.error();
  return compiler->version().text();
}

Result<int> check_file(const PrecompileOptions& options, const std::vector<Work>& work) {
  const auto toolchain = toolchain_of(options);
  if (!toolchain) return toolchain.error();
  const auto store = open_cache(options.cache);
  if (!store) return store.error();
  const auto found = look_at({*store}, work, *toolchain);
  if (!found) return found.error();
  if (options.json) {
    Json json{{"complete", found->missing.empty()},
              {"toolchain", *toolchain},
              {"plans", plans_in(work)},
              {"kernels", found->kernels.size()},
              {"missing", Json::array()}};
    for (const MissingKernel& missing : found->missing)
      json["missing"].push_back({{"name", missing.name}, {"key", missing.key}, {"plan", missing.plan}});
    print_json(json);
  } else {
    print("{}: {} of {} kernels for {} plans by {}\n", store->path(), found->kernels.size() - found->missing.size(),
          found->kernels.size(), plans_in(work), *toolchain);
    for (const MissingKernel& missing : found->missing)
      print("missing {:<12}{} {}\n", missing.name, missing.key.substr(0, 16), missing.plan);
  }
  return found->missing.empty() ? kOk : kFailedCheck;
}

volatile std::sig_atomic_t interrupted = 0;
extern "C" void on_interrupt(int) { interrupted = 1; }

/// Ctrl-C and SIGTERM ask for an end instead of making one, while this lives.
class Interruptible {
 public:
  Interruptible() : int_(std::signal(SIGINT, on_interrupt)), term_(std::signal(SIGTERM, on_interrupt)) {}
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
  ~Interruptible() {
    (void)std::signal(SIGINT, int_);
    (void)std::signal(SIGTERM, term_);
  }

 private:
  using Handler = void (*)(int);
  Handler int_, term_;
};

/// Compiles what is missing into `partial`, with what `file` has already as a layer below.
Result<std::size_t> compile_missing(const PrecompileOptions& options, const std::vector<Work>& work, const std::string& file,
                                    const std::string& partial) {
  const Interruptible interruptible;
  std::size_t compiled = 0, before = 0;
  ProgressBar bar("precompile");
  const auto total = static_cast<double>(plans_in(work));
  for (const Work& part : work) {
    EngineOptions engine_options;
    engine_options.cache_path = partial;
    engine_options.cache_limit_bytes = 0;
    engine_options.compile_jobs = static_cast<int>(options.jobs);
    engine_options.max_plans = 1;
    std::error_code ignored;
    if (std::filesystem::exists(file, ignored)) engine_options.cache_layers = {file};
    engine_options.warn = [](const std::string& text) { fmt::print(stderr, "warning: {}\n", text); };
    engine_options.target = part.target;
    auto engine = Engine::create(std::move(engine_options));
    if (!engine) return engine.error();
    PrepareOptions prepare;
    prepare.threads = static_cast<int>(options.jobs);
    prepare.progress = [&](std::size_t done, std::size_t) { bar.update(static_cast<double>(before + done) / total); };
    prepare.cancelled = [] { return interrupted != 0; };
    const auto report = engine->prepare(part.needed, prepare);
    if (!report && report.error().code == ErrorCode::cancelled) {
      return Error{ErrorCode::cancelled,
                   fmt::format("interrupted; what is compiled is in {}, and the same command goes on from there", partial)};
    }
    if (!report) return report.error();
    compiled += report->compiled;
    before += part.size();
  }
  return compiled;
}

/// `file` with what `partial` has beside it; then `partial` is no longer needed.
Result<cache::Sizes> finish(const std::string& file, const std::string& partial, const Completeness& needed) {
  auto store = cache::Store::open(partial, {.access = cache::Access::existing, .limit_bytes = 0});
  if (!store) return store.error();
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) {
    const auto old = open_other(file);
    if (!old) return old.error();
    if (auto merged = cache::merge(*store, *old); !merged) return merged.error();
  }
  cache::ExportOptions what;
  what.time = cache::reproducible_time();
  for (const auto& [key, plan] : needed.kernels) what.plans.emplace(key, plan);
  auto sizes = cache::export_file(*store, file, what);
  if (sizes) std::filesystem::remove(partial, ignored);
  return sizes;
}

Result<int> precompile(const PrecompileOptions& options) {
  const auto work = read_work(options);
  if (!work) return work.error();
  ::unsetenv("ORDO_CACHE_LAYERS");  // the file must hold every kernel itself, also where this machine has them in a layer
  if (options.check) return check_file(options, *work);
  const std::string file = options.cache, partial = file + ".partial";
  const auto compiled = compile_missing(options, *work, file, partial);
  if (!compiled) return compiled.error();

  const auto toolchain = toolchain_of(options);
  if (!toolchain) return toolchain.error();
  std::error_code ignored;
  std::vector<cache::Store> stores;
  for (const std::string& path : {file, partial}) {
    if (!std::filesystem::exists(path, ignored)) continue;
    auto store = open_other(path);
    if (!store) return store.error();
    stores.push_back(*std::move(store));
  }
  const auto found = look_at(stores, *work, *toolchain);
  if (!found) return found.error();
  if (!found->missing.empty()) {
    return Error{ErrorCode::cache, fmt::format("{} kernels were compiled but could not be stored in {}: see the warning above",
                                               found->missing.size(), partial)};
  }
  const bool changed = std::filesystem::exists(partial, ignored);
  stores.clear();
  if (changed) {
    if (auto finished = finish(file, partial, *found); !finished) return finished.error();
  }
  const auto store = open_other(file);
  if (!store) return store.error();
  const auto sizes = store->sizes();
  if (!sizes) return sizes.error();
  if (options.json) {
    print_json({{"file", file},
                {"plans", plans_in(*work)},
                {"kernels", found->kernels.size()},
                {"compiled", *compiled},
                {"entries", sizes->entries},
                {"file_bytes", sizes->file_bytes},
                {"toolchain", *toolchain}});
  } else {
    print("{}: {} plans need {} kernels; {} compiled now by {}; the file has {} kernels, {}\n", file, plans_in(*work),
          found->kernels.size(), *compiled, *toolchain, sizes->entries, bytes_text(static_cast<double>(sizes->file_bytes)));
  }
  return kOk;
}

}  // namespace

Verb add_precompile(CLI::App& app) {
  auto options = std::make_shared<PrecompileOptions>();
  CLI::App* verb = app.add_subcommand("precompile", "Compile all kernels that lists of problems need, into one file to ship");
  verb->add_option("lists", options->lists, "Shape lists, e.g. models/llama3-8b.toml, or what ORDO_MANIFEST recorded")
      ->type_name("FILE");
  verb->add_option("--tuning", options->tables, "Decision tables (ordo tuning export): their plans too")->type_name("FILE");
  verb->add_option("--target", options->targets, "GPUs to plan for, e.g. h200,h100 (h200)")->type_name("NAME")->delimiter(',');
  verb->add_option("--cache", options->cache, "The file to make or to complete")->type_name("FILE")->required();
  verb->add_option("--jobs", options->jobs, "Compiles at once ($ORDO_COMPILE_JOBS, else half of the processors)")
      ->type_name("N")
      ->check(kInteger)
      ->check(CLI::Range(1, 4096));
  verb->add_option("--candidates", options->candidates,
                   "The planner's N best plans for each problem, for a tuner to choose from (1)")
      ->type_name("N")
      ->check(kInteger)
      ->check(CLI::Range(1, 1000));
  verb->add_flag("--check", options->check, "Compile nothing; exit with 1 unless the file has every kernel for this NVRTC");
  verb->add_option("--toolchain", options->toolchain, "With --check: for this NVRTC (\"NVRTC 13.0.88\")")->type_name("NAME");
  verb->add_flag("--json", options->json, "Print JSON, and nothing else, on standard output");
  verb->footer(
      "Example:\n  ordo precompile models/llama3-8b.toml --target h200,h100 --cache kernels.db --jobs 8\n"
      "The file appears when it is complete; until then FILE.partial holds what is done, and the same command goes on from "
      "there.\n"
      "The same lists and NVRTC give the same bytes.");
  return {verb, [options] { return precompile(*options); }};
}

}  // namespace ordo::cli
