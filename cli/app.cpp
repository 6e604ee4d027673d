#include "cli/app.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <limits>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/report.hpp"
#include "cli/verbs/verbs.hpp"

namespace ordo::cli {
namespace {

int report_usage(std::string_view problem) {
  fmt::print(stderr, "error: {}\nRun with --help for help.\n", problem);
  return kBadUsage;
}

// CLI11 has its own exit codes; ours are 0 for help and 2 for anything else it says.
int report_usage(const CLI::App& app, const CLI::ParseError& problem) {
  if (problem.get_exit_code() == 0) {  // --help, --version
    (void)app.exit(problem, std::cout, std::cerr);
    std::cout.flush();
    return kOk;
  }
  return report_usage(problem.what());
}

std::vector<Verb> attention_verbs(CLI::App& app) {
  return {add_doctor(app),   add_plan_verb(app),    add_generate(app), add_compile(app),    add_run(app),
          add_check(app),    add_bench(app),        add_inspect(app),  add_simulate(app),   add_tune(app),
          add_query(app),    add_tuning_verb(app),  add_launch(app),   add_precompile(app), add_cache_verb(app),
          add_manifest(app), add_explain_miss(app), add_audit(app),    add_calibrate(app)};
}

// `ordo VERB overlap` takes the sizes of a product and its ranks; the families share no option.
std::vector<Verb> overlap_verbs(CLI::App& app) {
  return {add_plan_overlap(app), add_simulate_overlap(app), add_check_overlap(app), add_bench_overlap(app)};
}

/// Letters to insert, remove or replace between the words.
std::size_t letters_apart(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

/// What to say of `word` where a verb of `app`, which a person types as `typed`, should stand ("": the line ends there); nullopt
/// where it is one, or an option.
std::optional<std::string> not_a_verb(const CLI::App& app, std::string_view typed, std::string_view word) {
  if (word.starts_with('-')) return std::nullopt;
  std::string all, nearest;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string& name = verb->get_name();
    if (name == word) return std::nullopt;
    all += (all.empty() ? "" : ", ") + name;
    if (const std::size_t letters = letters_apart(name, word); letters < least) {
      least = letters;
      nearest = name;
    }
  }
  if (word.empty()) return fmt::format("{} needs a verb: {}", typed, all);
  if (2 * least <= word.size()) return fmt::format("'{}' is not a verb of {}; did you mean '{}'?", word, typed, nearest);
  return fmt::format("'{}' is not a verb of {}; it has: {}", word, typed, all);
}

/// The same of the words of a whole line: a verb's own verbs too (`ordo cache list`).
std::optional<std::string> not_a_verb(const CLI::App& app, const std::vector<std::string_view>& words, bool overlap) {
  const auto word = [&](std::size_t i) { return i < words.size() ? words[i] : std::string_view(); };
  if (auto wrong = not_a_verb(app, overlap ? "ordo VERB overlap" : "ordo", word(1))) return wrong;
  const CLI::App* verb = word(1).starts_with('-') ? nullptr : app.get_subcommand(std::string(word(1)));
  if (verb == nullptr || verb->get_require_subcommand_min() == 0) return std::nullopt;
  return not_a_verb(*verb, "ordo " + verb->get_name(), word(2));
}

/// Whether a line is about overlapped products: `overlap` stands behind the verb, or for verbs of both families behind options
/// (`ordo check --repeats 1 overlap`), unless it is the value of one.
bool names_overlap(const std::vector<std::string_view>& words) {
  if (words.size() < 3 || std::find(words.begin() + 2, words.end(), "overlap") == words.end()) return false;
  if (words[2] == "overlap") return true;
  CLI::App app;
  overlap_verbs(app);
  const auto verbs = app.get_subcommands([&](const CLI::App* verb) { return verb->get_name() == words[1]; });
  if (verbs.empty()) return false;
  for (std::size_t i = 3; i < words.size(); ++i) {
    if (words[i] != "overlap") continue;
    const std::string_view before = words[i - 1];
    if (!before.starts_with('-') || before.find('=') != std::string_view::npos) return true;
    // None: an option of the other family, with a value.
    const CLI::Option* option = verbs.front()->get_option_no_throw(std::string(before));
    if (option != nullptr && option->get_items_expected_max() == 0) return true;
  }
  return false;
}

int run_unguarded(int argc, char** argv) {
  CLI::App app(
      "ordo writes, compiles and runs deterministic attention-backward kernels, and products that overlap their communication, "
      "for Hopper GPUs.",
      "ordo");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("ordo ") + ORDO_VERSION);
  app.footer(
      "Example:\n  ordo check attention-backward --seqlen 1000 --heads 4 --mask causal\n\n"
      "Exit codes: 0 ok, 1 a check failed, 2 bad usage, 3 the environment lacks something.\n"
      "ordo VERB --help has the options of a verb and an example.");
  const std::vector<std::string_view> words(argv, argv + argc);
  const bool overlap = names_overlap(words);
  const std::vector<Verb> verbs = overlap ? overlap_verbs(app) : attention_verbs(app);
  if (auto wrong = not_a_verb(app, words, overlap)) {
    if (overlap) {
      CLI::App others;
      attention_verbs(others);
      const auto all = others.get_subcommands([](const CLI::App*) { return true; });
      if (std::any_of(all.begin(), all.end(), [&](const CLI::App* verb) { return verb->get_name() == argv[1]; }))
        wrong = fmt::format("'{}' does not take overlap: plan, simulate, check and bench do", argv[1]);
    }
    return report_usage(*wrong);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return report_usage(app, problem);
  }
  const auto verb = std::find_if(verbs.begin(), verbs.end(), [](const Verb& v) { return v.command->parsed(); });
  Result<int> result = verb->action();
  return result ? *result : report_error(result.error());
}

}  // namespace

int run(int argc, char** argv) {
  int code = kEnvironment;
  try {
    code = run_unguarded(argc, argv);
  } catch (const std::bad_alloc&) {
    (void)std::fputs("error: not enough memory\n", stderr);
    return kEnvironment;
  } catch (const std::exception& problem) {
    (void)std::fprintf(stderr, "error: %s\n", problem.what());
    return kEnvironment;
  }
  // A full disk or a closed pipe shows when the buffer is written.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    (void)std::fputs("error: standard output cannot be written\n", stderr);
    return kEnvironment;
  }
  return code;
}

}  // namespace ordo::cli
