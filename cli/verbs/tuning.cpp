// ordo tuning: decision tables, which ranks compare by their hash.
#include <memory>

#include "cli/text_file.hpp"
#include "cli/tuning_report.hpp"
#include "cli/verbs/verbs.hpp"
#include "ordo/shape_list.hpp"

namespace ordo::cli {
namespace {

struct TableOptions : TuningOptions {
  std::optional<std::string> shapes, output;
  std::string file, other;
};

Result<DecisionTable> own_table(const TableOptions& options) {
  auto asked = tune_options(options);
  if (!asked) return asked.error();
  auto tuner = open_tuner(options);
  if (!tuner) return tuner.error();
  std::vector<AttentionBackward> problems;
  if (options.shapes) {
    auto list = read_shape_list(*options.shapes);
    if (!list) return list.error();
    for (const ListedProblem& listed : list->problems) problems.push_back(listed.problem);
  } else if (options.seqlen || options.seqlen_q || options.heads) {
    auto problem = resolve_problem(options, std::nullopt);
    if (!problem) return problem.error();
    problems.push_back(*problem);
  }
  return tuner->table(problems, *asked);
}

Result<int> export_table(const TableOptions& options) {
  auto table = own_table(options);
  if (!table) return table.error();
  if (!options.output) {
    print("{}", to_json(*table));
    return kOk;
  }
  if (auto written = write_text(*options.output, to_json(*table)); !written) return written.error();
  note(fmt::format("{} decisions, {} measured rounds, hash {}", table->decisions.size(), table->measurements.size(),
                   table_hash(*table)));
  return kOk;
}

Result<int> import_table(const TableOptions& options) {
  auto table = read_decision_table(options.file);
  if (!table) return table.error();
  auto asked = tune_options(options);
  if (!asked) return asked.error();
  auto tuner = open_tuner(options);
  if (!tuner) return tuner.error();
  auto notes = tuner->import_table(*table, *asked);
  if (!notes) return notes.error();
  if (options.json) {
    print_json({{"decisions", table->decisions.size()}, {"measurements", table->measurements.size()}, {"notes", *notes}});
    return kOk;
  }
  print("{} measured rounds of {} decisions\n", table->measurements.size(), table->decisions.size());
  for (const std::string& remark : *notes) note(remark);
  return kOk;
}

Result<int> hash_table(const TableOptions& options) {
  auto table = options.file.empty() ? own_table(options) : read_decision_table(options.file);
  if (!table) return table.error();
  if (options.json)
    print_json({{"hash", table_hash(*table)}, {"decisions", table->decisions.size()}});
  else
    print("{}\n", table_hash(*table));
  return kOk;
}

Result<int> diff_tables(const TableOptions& options) {
  auto first = read_decision_table(options.file);
  if (!first) return first.error();
  auto second = options.other.empty() ? own_table(options) : read_decision_table(options.other);
  if (!second) return second.error();
  const std::vector<std::string> lines = diff(*first, *second);
  if (options.json) {
    print_json({{"same", lines.empty()}, {"differences", lines}});
  } else {
    for (const std::string& line : lines) print("{}\n", line);
    if (lines.empty()) print("the same plans, hash {}\n", table_hash(*first));
  }
  return lines.empty() ? kOk : kFailedCheck;
}

/// What names the measurements that a table is made from.
void add_own(CLI::App& verb, TableOptions& options) {
  add_tuning(verb, options);
  add_measuring(verb, options);
  add_target(verb, options);
  add_device(verb, options, "Measurements on this GPU (the current one; without a GPU the newest for --target)");
  add_cache(verb, options);
}

}  // namespace

Verb add_tuning_verb(CLI::App& app) {
  auto options = std::make_shared<TableOptions>();
  CLI::App* verb = app.add_subcommand("tuning", "Decision tables: which plan for which shape, as files that ranks compare");
  verb->require_subcommand(1);

  CLI::App* exported = verb->add_subcommand("export", "Write the decisions for all shapes that were tuned, or for those named");
  exported->add_option("-o,--output", options->output, "Where to (standard output)")->type_name("FILE");
  exported->add_option("--shapes", options->shapes, "The shapes of a TOML list, tuned or not")->type_name("FILE");
  add_shape(*exported, *options);
  add_own(*exported, *options);

  CLI::App* imported = verb->add_subcommand("import", "Take over the measurements of a table");
  imported->add_option("file", options->file, "What export has written")->required()->type_name("FILE");
  add_own(*imported, *options);
  add_json(*imported, *options);

  CLI::App* hashed = verb->add_subcommand("hash", "The hash of a table's decisions, or of those that export would write");
  hashed->add_option("file", options->file, "What export has written")->type_name("FILE");
  add_own(*hashed, *options);
  add_json(*hashed, *options);

  CLI::App* compared = verb->add_subcommand("diff", "Shapes whose plans differ; exit code 1 if there are any");
  compared->add_option("file", options->file, "A table")->required()->type_name("FILE");
  compared->add_option("other", options->other, "Another (what export would write)")->type_name("FILE");
  add_own(*compared, *options);
  add_json(*compared, *options);

  verb->footer(
      "Examples:\n  ordo tuning export -o plans.json\n  ordo tuning export --shapes models/llama3-8b.toml -o plans.json\n"
      "  ordo tuning hash plans.json\n"
      "An engine with lock_file = plans.json (C++: EngineOptions) uses exactly these plans.");
  return {verb, [=]() -> Result<int> {
            if (exported->parsed()) return export_table(*options);
            if (imported->parsed()) return import_table(*options);
            return hashed->parsed() ? hash_table(*options) : diff_tables(*options);
          }};
}

}  // namespace ordo::cli
