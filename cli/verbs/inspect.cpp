// ordo inspect: what the cache holds.
#include <algorithm>
#include <memory>
#include <tuple>

#include "cache/store.hpp"
#include "cli/options.hpp"
#include "cli/report.hpp"
#include "cli/stores.hpp"
#include "cli/verbs/verbs.hpp"
#include "runtime/compiler.hpp"

namespace ordo::cli {
namespace {

struct InspectOptions : Options {
  std::string key;
  bool list = false;
};

KernelReport report_of(const cache::Entry& entry) {
  KernelReport report;
  report.name = entry.name;
  report.key = entry.key;
  report.cache_hit = true;
  report.arch = entry.arch;
  report.launch_registers = entry.registers;
  report.spill_bytes = entry.spill_bytes;
  report.stack_bytes = entry.stack_bytes;
  report.shared_bytes = entry.shared_bytes;
  report.barriers = entry.barriers;
  report.compile_ms = entry.compile_ms;
  report.cubin_sha256 = entry.sha256;
  return report;
}

std::vector<KernelReport> reports_of(const std::vector<cache::Entry>& entries) {
  std::vector<KernelReport> reports;
  reports.reserve(entries.size());
  for (const cache::Entry& entry : entries) reports.push_back(report_of(entry));
  return reports;
}

// The kernels of the plan that the options describe, as this machine would take them from the cache.
Result<std::vector<cache::Entry>> find_plan(const cache::Store& store, const Choice& made) {
  auto sources = generate(made.choice.plan, made.target);
  if (!sources) return sources.error();
  const Result<Compiler> compiler = Compiler::open();
  if (!compiler) note("NVRTC cannot be used here; showing what its newest version compiled.");
  std::vector<cache::Entry> entries;
  for (const KernelSource& source : *sources) {
    const auto flags = Compiler::flags(source.arch);
    auto found = compiler ? store.get(cache::kernel_key(source.text, flags, compiler->version().text(), source.arch))
                          : store.newest(cache::source_key(source.text, flags, source.arch));
    if (!found) return found.error();
    if (!*found) {
      return Error{
          ErrorCode::cache,
          fmt::format(
              "kernel '{}' of this plan is not in the cache {}; ordo compile with the same options puts it there. The plan: {}",
              source.name, store.path(), to_text(made.choice.plan))};
    }
    entries.push_back(std::move(**found));
  }
  return entries;
}

Result<std::vector<cache::Entry>> find_key(const cache::Store& store, const std::string& prefix) {
  auto entries = store.list();
  if (!entries) return entries.error();
  std::erase_if(*entries, [&](const cache::Entry& entry) { return !entry.key.starts_with(prefix); });
  if (entries->size() == 1) return *entries;
  return Error{ErrorCode::invalid_argument, fmt::format("{} keys in the cache {} begin with '{}'; ordo inspect --list shows them",
                                                        entries->size(), store.path(), prefix)};
}

void print_entries(const cache::Store& store, const std::vector<cache::Entry>& entries) {
  const std::vector<KernelReport> reports = reports_of(entries);
  print("cache         {}\n", store.path());
  if (reports.empty()) {
    print("              empty\n");
    return;
  }
  std::string plan;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].plan + entries[i].toolchain == plan) continue;
    plan = entries[i].plan + entries[i].toolchain;
    print("plan          {}\ncompiled by   {} for {}\n\n", entries[i].plan, entries[i].toolchain, entries[i].arch);
    std::vector<KernelReport> of_plan;
    for (std::size_t j = i; j < entries.size(); ++j) {
      if (entries[j].plan + entries[j].toolchain == plan) of_plan.push_back(reports[j]);
    }
    print_kernels(of_plan);
    print("\n");
  }
}

Result<int> inspect(const InspectOptions& options) {
  std::optional<Choice> made;
  if (!options.list && options.key.empty()) {
    if (options.family.empty())
      return Error{ErrorCode::invalid_argument, "name what to inspect: attention-backward with a shape or plan, --key or --list"};
    auto chosen = choose(options);
    if (!chosen) return chosen.error();
    made = *chosen;
  }
  auto store = open_cache(options.cache);
  if (!store) return store.error();
  auto entries = options.list ? store->list() : made ? find_plan(*store, *made) : find_key(*store, options.key);
  if (!entries) return entries.error();
  // Kernels of one plan side by side; those of a plan that was asked for keep its order, main first.
  if (!made) {
    std::sort(entries->begin(), entries->end(), [](const cache::Entry& a, const cache::Entry& b) {
      return std::tie(a.plan, a.toolchain, a.name) < std::tie(b.plan, b.toolchain, b.name);
    });
  }
  if (!options.json) {
    print_entries(*store, *entries);
    return kOk;
  }
  const std::vector<KernelReport> reports = reports_of(*entries);
  Json json;
  if (options.list) {
    json["kernels"] = Json::array();
    for (const KernelReport& report : reports) json["kernels"].push_back(cli::to_json(report));
  } else {
    json = kernels_json(reports);
  }
  for (std::size_t i = 0; i < entries->size(); ++i) {
    json["kernels"][i]["plan"] = (*entries)[i].plan;
    json["kernels"][i]["toolchain"] = (*entries)[i].toolchain;
  }
  json["cache_file"] = store->path();
  print_json(json);
  return kOk;
}

}  // namespace

Verb add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* verb = app.add_subcommand("inspect", "Show the resources of cached kernels");
  verb->add_option("family", options->family, "What to look for: attention-backward")
      ->type_name("FAMILY")
      ->check(CLI::IsMember({"attention-backward"}));
  auto* key = verb->add_option("--key", options->key, "One kernel, by the beginning of its key")->type_name("HEX");
  verb->add_flag("--list", options->list, "Every kernel")->excludes(key);
  add_shape(*verb, *options);
  add_plan(*verb, *options);
  add_target(*verb, *options);
  add_device(*verb, *options, "Of the plan for this GPU");
  add_cache(*verb, *options);
  add_json(*verb, *options);
  verb->footer(
      "Example:\n  ordo inspect attention-backward --seqlen 8192 --heads 32 --kv-heads 8 --mask causal --target h200 --cache "
      "kernels.db");
  return {verb, [options] { return inspect(*options); }};
}

}  // namespace ordo::cli
