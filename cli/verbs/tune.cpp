// ordo tune: measures plans for a shape, or for a list of them, and keeps what it measured.
#include <atomic>
#include <csignal>
#include <memory>

#include "cli/options.hpp"
#include "cli/progress.hpp"
#include "cli/report.hpp"
#include "cli/tuning_report.hpp"
#include "cli/verbs/verbs.hpp"
#include "ordo/shape_list.hpp"
#include "ordo/tuner.hpp"

namespace ordo::cli {
namespace {

struct TuneVerbOptions : TuningOptions {
  std::optional<std::string> shapes;
};

std::atomic<bool> stop_asked{false};

/// While it lives, an interrupt (Ctrl-C) asks to stop after the measurement under way; a second one ends the process as usual.
class StopOnInterrupt {
 public:
  StopOnInterrupt() { std::signal(SIGINT, &handle); }
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;
  ~StopOnInterrupt() { std::signal(SIGINT, SIG_DFL); }

 private:
  static void handle(int /*signal*/) {
    stop_asked = true;
    std::signal(SIGINT, SIG_DFL);
  }
};

Result<std::vector<ListedProblem>> problems_of(const TuneVerbOptions& options) {
  auto request = request_of(options);
  if (!request) return request.error();
  if (!options.shapes) {
    auto problem = resolve_problem(options, std::nullopt);
    if (!problem) return problem.error();
    return std::vector<ListedProblem>{{*problem, *request}};
  }
  auto list = read_shape_list(*options.shapes);
  if (!list) return list.error();
  for (ListedProblem& listed : list->problems) {  // the command line wins
    if (request->schedule) listed.request.schedule = request->schedule;
    if (request->accumulate) listed.request.accumulate = request->accumulate;
    listed.request.static_shape = listed.request.static_shape || request->static_shape;
  }
  return list->problems;
}

Json json_of(const AttentionBackward& problem, const Target& target, const TuneResult& result) {
  Json json = tuned_json(problem, target, result.best);
  json["candidates"] = result.candidates;
  json["rounds_measured"] = result.measured;
  json["rounds_reused"] = result.reused;
  json["stopped"] = result.stopped;
  json["failed"] = result.failed;
  return json;
}

void print_result(const AttentionBackward& problem, const Target& target, const TuneResult& result) {
  print_tuned(problem, target, result.best);
  print("measured      {} rounds now, {} were there, of {} candidates{}\n", result.measured, result.reused, result.candidates,
        result.stopped ? "; stopped before the end, tune again to go on" : "");
  for (const std::string& failed : result.failed) print("not measured  {}\n", failed);
}

Result<int> tune(const TuneVerbOptions& options) {
  auto problems = problems_of(options);
  if (!problems) return problems.error();
  if (auto device = resolve_gpu(options, "ordo tune"); !device) return device.error();
  auto tuner = open_tuner(options);
  if (!tuner) return tuner.error();
  auto target = resolve_target(options);
  if (!target) return target.error();
  auto asked = tune_options(options);
  if (!asked) return asked.error();
  const StopOnInterrupt stop;
  Json results = Json::array();
  bool stopped = false, failed = false;
  for (std::size_t i = 0; i < problems->size() && !stopped; ++i) {
    const ListedProblem& listed = (*problems)[i];
    asked->request = listed.request;
    ProgressBar bar(problems->size() == 1 ? "tuning" : fmt::format("tuning {} of {}", i + 1, problems->size()));
    auto result = tuner->tune(listed.problem, *asked, [&](const TuneProgress& progress) {
      if (progress.doing.starts_with("waiting")) note(progress.doing);
      bar.update(progress.share);
      return !stop_asked;
    });
    bar.clear();
    if (!result) return result.error();
    stopped = result->stopped;
    failed = failed || !result->failed.empty();
    if (options.json)
      results.push_back(json_of(listed.problem, *target, *result));
    else
      print_result(listed.problem, *target, *result);
  }
  if (options.json) print_json(options.shapes ? results : results.front());
  return stopped || failed ? kFailedCheck : kOk;
}

}  // namespace

Verb add_tune(CLI::App& app) {
  auto options = std::make_shared<TuneVerbOptions>();
  CLI::App* verb = app.add_subcommand("tune", "Measure plans for a shape or a list of shapes, and keep what was measured");
  add_family(*verb, *options);
  add_shape(*verb, *options);
  verb->add_option("--shapes", options->shapes, "TOML list of shapes, as models/README.md describes, in place of one shape")
      ->type_name("FILE");
  add_tuning(*verb, *options);
  add_measuring(*verb, *options);
  add_target(*verb, *options);
  add_device(*verb, *options, "Which GPU (the current one)");
  add_cache(*verb, *options);
  add_json(*verb, *options);
  verb->footer(
      "Examples:\n  ordo tune attention-backward --seqlen 8192 --heads 32 --kv-heads 8 --mask causal\n"
      "  ordo tune attention-backward --shapes models/llama3-8b.toml --same-bits\n"
      "What is measured already is not measured again. Ctrl-C loses nothing: tune again to go on.");
  return {verb, [options] { return tune(*options); }};
}

}  // namespace ordo::cli
