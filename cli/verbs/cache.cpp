// ordo cache: look at cache files, and look after them.
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>

#include "cache/places.hpp"
#include "cache/store.hpp"
#include "cache/transfer.hpp"
#include "cli/options.hpp"
#include "cli/report.hpp"
#include "cli/stores.hpp"
#include "cli/verbs/verbs.hpp"
#include "ordo/prepare.hpp"

namespace ordo::cli {
namespace {

struct CacheOptions {
  std::string cache;
  bool json = false;
  std::string key;                 ///< show
  std::string cubin;               ///< show
  std::vector<std::string> files;  ///< merge, import, diff, export
  std::string toolchain;           ///< export, gc
  std::string limit;               ///< gc
  std::int64_t unused_days = 0;    ///< gc
  bool prometheus = false;         ///< stats
};

/// A finished file's kernels have the stamp of reproducible_time(), 1 where the environment names none: nobody has asked for
/// them.
std::string last_used(std::int64_t seconds) {
  if (seconds <= 1) return "never";
  const std::time_t time = seconds;
  std::tm parts{};
  if (gmtime_r(&time, &parts) == nullptr) return "?";
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

Json to_json(const cache::Entry& e) {
  return {{"key", e.key},
          {"name", e.name},
          {"plan", e.plan},
          {"toolchain", e.toolchain},
          {"arch", e.arch},
          {"flags", e.flags},
          {"templates", e.templates},
          {"source_key", e.source_key},
          {"entry", e.entry},
          {"registers", e.registers},
          {"spill_bytes", e.spill_bytes},
          {"stack_bytes", e.stack_bytes},
          {"shared_bytes", e.shared_bytes},
          {"barriers", e.barriers},
          {"compile_ms", e.compile_ms},
          {"cubin_sha256", e.sha256},
          {"file_bytes", e.file_bytes},
          {"created", e.created},
          {"used", e.used}};
}

Json to_json(const cache::Sizes& s) {
  return {{"entries", s.entries}, {"stored_bytes", s.stored_bytes}, {"used_bytes", s.used_bytes}, {"file_bytes", s.file_bytes}};
}

Json keys_json(const std::vector<cache::Entry>& entries) {
  Json keys = Json::array();
  for (const cache::Entry& entry : entries) keys.push_back(entry.key);
  return keys;
}

Result<int> list(const CacheOptions& options) {
  const auto store = open_cache(options.cache);
  if (!store) return store.error();
  const auto entries = store->list();
  if (!entries) return entries.error();
  if (options.json) {
    Json json{{"cache_file", store->path()}, {"entries", Json::array()}};
    for (const cache::Entry& entry : *entries) json["entries"].push_back(to_json(entry));
    print_json(json);
    return kOk;
  }
  print("{:<18}{:<12}{:<15}{:<8}{:>10}  {:<12}{}\n", "key", "kernel", "toolchain", "arch", "in file", "last used", "plan");
  for (const cache::Entry& e : *entries) {
    print("{:<18}{:<12}{:<15}{:<8}{:>10}  {:<12}{}\n", e.key.substr(0, 16), e.name, e.toolchain, e.arch,
          bytes_text(static_cast<double>(e.file_bytes)), last_used(e.used), e.plan);
  }
  return kOk;
}

/// The one entry whose key begins with `prefix`, with its bytes.
Result<cache::Entry> find_entry(const cache::Store& store, const std::string& prefix) {
  auto entries = store.list();
  if (!entries) return entries.error();
  std::erase_if(*entries, [&](const cache::Entry& entry) { return !entry.key.starts_with(prefix); });
  if (entries->size() != 1) {
    return Error{ErrorCode::invalid_argument, fmt::format("{} keys in the cache {} begin with '{}'; 'ordo cache list' shows them",
                                                          entries->size(), store.path(), prefix)};
  }
  auto entry = store.get(entries->front().key);
  if (!entry) return entry.error();
  if (!*entry) return Error{ErrorCode::cache, fmt::format("entry {} of {} is damaged", entries->front().key, store.path())};
  return **std::move(entry);
}

Result<int> show(const CacheOptions& options) {
  const auto store = open_cache(options.cache);
  if (!store) return store.error();
  const auto entry = find_entry(*store, options.key);
  if (!entry) return entry.error();
  if (!options.cubin.empty()) {
    std::ofstream file(options.cubin, std::ios::binary);
    file.write(reinterpret_cast<const char*>(entry->bytes.data()), static_cast<std::streamsize>(entry->bytes.size()));
    if (!file.flush()) return Error{ErrorCode::io, fmt::format("{} cannot be written", options.cubin)};
  }
  Json json = to_json(*entry);
  json["cubin_bytes"] = entry->bytes.size();
  if (options.json) {
    print_json(json);
    return kOk;
  }
  for (const auto& [name, value] : json.items())
    print("{:<14}{}\n", name, value.is_string() ? value.get<std::string>() : value.dump());
  return kOk;
}

Result<int> export_entries(const CacheOptions& options) {
  const auto store = open_cache(options.cache);
  if (!store) return store.error();
  cache::ExportOptions what;
  what.time = cache::reproducible_time();
  if (!options.toolchain.empty()) what.wanted = [&](const cache::Entry& entry) { return entry.toolchain == options.toolchain; };
  const auto sizes = cache::export_file(*store, options.files.front(), what);
  if (!sizes) return sizes.error();
  if (options.json)
    print_json({{"file", options.files.front()}, {"sizes", to_json(*sizes)}});
  else
    print("{}: {} kernels, {}\n", options.files.front(), sizes->entries, bytes_text(static_cast<double>(sizes->file_bytes)));
  return kOk;
}

/// merge and import: `from` one file after another into the cache, which is made if need be.
Result<int> take_over(const CacheOptions& options, bool all_or_nothing) {
  const std::optional<std::string> place = options.cache.empty() ? cache::default_path() : options.cache;
  if (!place) return Error{ErrorCode::cache, "there is no place for a cache: name one with --cache"};
  auto into = cache::Store::open(*place, {.limit_bytes = cache::default_limit_bytes()});
  if (!into) return into.error();
  Json json = Json::array();
  bool clean = true;
  for (const std::string& file : options.files) {
    const auto from = open_other(file);
    if (!from) return from.error();
    const auto report = all_or_nothing ? cache::import_all(*into, *from) : cache::merge(*into, *from);
    if (!report) return report.error();
    clean = clean && report->conflicts.empty() && report->damaged.empty();
    json.push_back({{"file", file},
                    {"added", report->added},
                    {"present", report->present},
                    {"conflicts", report->conflicts},
                    {"damaged", report->damaged}});
    if (options.json) continue;
    print("{}: {} added, {} there already, {} conflicts, {} damaged\n", file, report->added, report->present,
          report->conflicts.size(), report->damaged.size());
    for (const std::string& key : report->conflicts)
      print("  conflict {}: same key, other bytes; {} keeps its own\n", key, into->path());
    for (const std::string& key : report->damaged) print("  damaged  {}: passed over\n", key);
  }
  if (options.json) print_json(json);
  return clean ? kOk : kFailedCheck;
}

Result<int> diff(const CacheOptions& options) {
  if (options.files.size() != 2) return Error{ErrorCode::invalid_argument, "ordo cache diff needs two files"};
  const auto first = open_other(options.files[0]), second = open_other(options.files[1]);
  if (!first) return first.error();
  if (!second) return second.error();
  const auto found = cache::difference(*first, *second);
  if (!found) return found.error();
  const bool equal = found->only_first.empty() && found->only_second.empty() && found->conflicts.empty();
  if (options.json) {
    print_json({{"same", found->same},
                {"only_first", keys_json(found->only_first)},
                {"only_second", keys_json(found->only_second)},
                {"conflicts", found->conflicts}});
    return equal ? kOk : kFailedCheck;
  }
  for (const auto& [sign, entries] : {std::pair{'<', &found->only_first}, {'>', &found->only_second}}) {
    for (const cache::Entry& e : *entries) print("{} {} {} {} {}\n", sign, e.key.substr(0, 16), e.name, e.toolchain, e.plan);
  }
  for (const std::string& key : found->conflicts) print("! {} same key, other bytes\n", key.substr(0, 16));
  print("{} the same, {} only in {}, {} only in {}, {} conflicts\n", found->same, found->only_first.size(), options.files[0],
        found->only_second.size(), options.files[1], found->conflicts.size());
  return equal ? kOk : kFailedCheck;
}

Result<int> verify(const CacheOptions& options) {
  const auto store = open_cache(options.cache);
  if (!store) return store.error();
  const auto report = store->verify();
  if (!report) return report.error();
  const bool ok = report->damaged.empty() && report->structure == "ok";
  if (options.json) {
    print_json({{"ok", ok}, {"entries", report->entries}, {"damaged", report->damaged}, {"structure", report->structure}});
  } else {
    print("{}: {} intact kernels, {} damaged, SQLite's check: {}\n", store->path(), report->entries, report->damaged.size(),
          report->structure);
    for (const std::string& key : report->damaged) print("  damaged {}\n", key);
  }
  return ok ? kOk : kFailedCheck;
}

Result<int> gc(const CacheOptions& options) {
  auto store = open_cache(options.cache);
  if (!store) return store.error();
  const std::optional<std::int64_t> limit =
      options.limit.empty() ? cache::default_limit_bytes() : cache::parse_size(options.limit);
  if (!limit) return Error{ErrorCode::invalid_argument, fmt::format("--limit '{}' is no size: 500M, 2G, bytes", options.limit)};
  const auto report = store->gc({.limit_bytes = *limit, .unused_days = options.unused_days, .keep_toolchain = options.toolchain});
  if (!report) return report.error();
  if (options.json) {
    print_json({{"removed", report->removed},
                {"damaged", report->damaged},
                {"before", to_json(report->before)},
                {"after", to_json(report->after)}});
  } else {
    print("{}: {} removed, {} damaged removed; {} kernels and {} before, {} kernels and {} now\n", store->path(), report->removed,
          report->damaged, report->before.entries, bytes_text(static_cast<double>(report->before.file_bytes)),
          report->after.entries, bytes_text(static_cast<double>(report->after.file_bytes)));
  }
  return kOk;
}

Result<int> stats(const CacheOptions& options) {
  const auto store = open_cache(options.cache);
  if (!store) return store.error();
  const auto sizes = store->sizes();
  if (!sizes) return sizes.error();
  auto counters = store->counters();
  if (!counters) return counters.error();
  const auto toolchains = store->toolchains();
  if (!toolchains) return toolchains.error();
  if (options.prometheus) {
    (*counters)["ordo_cache_entries"] = static_cast<double>(sizes->entries);
    (*counters)["ordo_cache_file_bytes"] = static_cast<double>(sizes->file_bytes);
    print("{}", prometheus_text(*counters));
    return kOk;
  }
  if (options.json) {
    Json json{
        {"cache_file", store->path()}, {"sizes", to_json(*sizes)}, {"counters", Json::object()}, {"toolchains", Json::object()}};
    for (const auto& [name, value] : *counters) json["counters"][name] = value;
    for (const auto& [library, text] : *toolchains) json["toolchains"][library] = text;
    print_json(json);
    return kOk;
  }
  print("cache         {}\nkernels       {}\ncubins        {} compressed\nfile          {}, {} of it in use\n", store->path(),
        sizes->entries, bytes_text(static_cast<double>(sizes->stored_bytes)), bytes_text(static_cast<double>(sizes->file_bytes)),
        bytes_text(static_cast<double>(sizes->used_bytes)));
  for (const auto& [library, text] : *toolchains) print("toolchain     {} ({})\n", text, library);
  for (const auto& [name, value] : *counters) print("counted       {} {}\n", name, value);
  return kOk;
}

}  // namespace

Verb add_cache_verb(CLI::App& app) {
  auto options = std::make_shared<CacheOptions>();
  CLI::App* verb = app.add_subcommand("cache", "List, verify, merge, export and clean up cache files");
  verb->require_subcommand(1);
  auto action = std::make_shared<std::function<Result<int>()>>();
  const auto add = [&](const char* name, const char* help, Result<int> (*run)(const CacheOptions&)) {
    CLI::App* sub = verb->add_subcommand(name, help);
    if (std::string_view(name) != "diff")
      sub->add_option("--cache", options->cache, "Cache file (the one every verb takes)")->type_name("FILE");
    sub->add_flag("--json", options->json, "Print JSON, and nothing else, on standard output");
    sub->callback([action, options, run] { *action = [options, run] { return run(*options); }; });
    return sub;
  };
  add("list", "Every kernel, by key", list);
  CLI::App* one = add("show", "All that is known of one kernel", show);
  one->add_option("key", options->key, "The beginning of its key")->type_name("HEX")->required();
  one->add_option("--cubin", options->cubin, "Write the cubin to this file")->type_name("FILE");
  CLI::App* out =
      add("export", "Write a finished file to ship: sorted, without counters and stamps, the same bytes for the same kernels",
          export_entries);
  out->add_option("file", options->files, "The file to write")->type_name("FILE")->required()->expected(1);
  out->add_option("--toolchain", options->toolchain, "Only kernels by this one (\"NVRTC 13.0.88\")")->type_name("NAME");
  CLI::App* in = add("import", "Take over finished files, each whole or not at all",
                     [](const CacheOptions& o) { return take_over(o, true); });
  CLI::App* both = add("merge", "Take over what is intact in other files, and say where bytes differ",
                       [](const CacheOptions& o) { return take_over(o, false); });
  for (CLI::App* sub : {in, both}) sub->add_option("files", options->files, "Files to read")->type_name("FILE")->required();
  CLI::App* two = add("diff", "What one file has and the other has not", diff);
  two->add_option("files", options->files, "Two files")->type_name("FILE")->required()->expected(2);
  add("verify", "Read every row and check it", verify);
  CLI::App* clean = add("gc", "Remove damaged kernels, those over the limit, and free pages", gc);
  clean->add_option("--limit", options->limit, "Bytes to stay within, e.g. 500M ($ORDO_CACHE_LIMIT, else 2G; 0: none)")
      ->type_name("SIZE");
  clean->add_option("--unused-days", options->unused_days, "Remove what nobody asked for in so many days")
      ->type_name("N")
      ->check(kInteger);
  clean->add_option("--toolchain", options->toolchain, "Remove kernels by any other")->type_name("NAME");
  CLI::App* numbers = add("stats", "Size, toolchains, and what processes have counted", stats);
  numbers->add_flag("--prometheus", options->prometheus, "In Prometheus' text format");
  verb->footer(
      "Example:\n  ordo cache stats\n  ordo cache export kernels.db --toolchain 'NVRTC 13.0.88'\n  ordo cache merge --cache "
      "all.db a.db b.db\n"
      "merge, diff and verify exit with 1 where something differs or is damaged.");
  return {verb, [action] { return (*action)(); }};
}

}  // namespace ordo::cli
