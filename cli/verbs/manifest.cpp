// ordo manifest: what runs asked for, as one list for precompile.
#include <algorithm>
#include <memory>
#include <set>

#include "cli/options.hpp"
#include "cli/report.hpp"
#include "cli/stores.hpp"
#include "cli/text_file.hpp"
#include "cli/verbs/verbs.hpp"
#include "ordo/shape_list.hpp"

namespace ordo::cli {
namespace {

struct ManifestOptions {
  std::vector<std::string> files;
  std::string cache, output, name;
  bool from_cache = false;
};

/// Appends what `more` has beyond `all`.
template <class Item>
void add_new(std::vector<Item>& all, const std::vector<Item>& more) {
  for (const Item& item : more) {
    if (std::find(all.begin(), all.end(), item) == all.end()) all.push_back(item);
  }
}
void add(ShapeList& all, const ShapeList& more) {
  add_new(all.problems, more.problems);
  add_new(all.plans, more.plans);
  add_new(all.overlap_plans, more.overlap_plans);
}

/// The plans of a cache file's entries, sorted.
Result<ShapeList> plans_of_cache(const std::string& path) {
  const auto store = open_cache(path);
  if (!store) return store.error();
  const auto entries = store->list();
  if (!entries) return entries.error();
  std::set<std::string> texts;
  for (const cache::Entry& entry : *entries) texts.insert(entry.plan);
  ShapeList list;
  for (const std::string& text : texts) {
    const auto take = [](const auto& plan, auto& plans) {
      if (plan)
        plans.push_back(*plan);
      else
        note(fmt::format("an entry's plan is passed over: {}", plan.error().message));
    };
    if (text.starts_with("overlap-plan"))
      take(parse_overlap_plan(text), list.overlap_plans);
    else
      take(parse_plan(text), list.plans);
  }
  return list;
}

Result<int> write_list(const ManifestOptions& options) {
  ShapeList all;
  all.name = options.name;
  for (const std::string& file : options.files) {
    const auto list = read_shape_list(file);
    if (!list) return list.error();
    add(all, *list);
  }
  if (options.from_cache || !options.cache.empty()) {
    const auto list = plans_of_cache(options.cache);
    if (!list) return list.error();
    add(all, *list);
  }
  if (all.plans.empty() && all.overlap_plans.empty() && all.problems.empty())
    return Error{ErrorCode::invalid_argument, "name the files that ORDO_MANIFEST recorded, or a cache with --from-cache"};
  const std::string text = to_toml(all);
  if (options.output.empty()) {
    print("{}", text);
    return kOk;
  }
  if (auto ok = write_text(options.output, text); !ok) return ok.error();
  return kOk;
}

}  // namespace

Verb add_manifest(CLI::App& app) {
  auto options = std::make_shared<ManifestOptions>();
  CLI::App* verb = app.add_subcommand("manifest", "Make one list for precompile of what runs asked for");
  verb->add_option("files", options->files, "Files that runs with ORDO_MANIFEST=FILE recorded, and other lists")
      ->type_name("FILE");
  verb->add_flag("--from-cache", options->from_cache, "The plans of the cache's kernels too");
  verb->add_option("--cache", options->cache, "The same of this cache file")->type_name("FILE");
  verb->add_option("--name", options->name, "The list's name")->type_name("TEXT");
  verb->add_option("--output", options->output, "File to write (standard output)")->type_name("FILE");
  verb->footer(
      "Example:\n  ordo manifest run.toml --output list.toml   # after ORDO_MANIFEST=run.toml ./train\n"
      "  ordo precompile list.toml --target h200 --cache kernels.db");
  return {verb, [options] { return write_list(*options); }};
}

}  // namespace ordo::cli
