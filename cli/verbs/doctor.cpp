// ordo doctor: what this machine has, and what it lacks.
#include <cuda.h>

#include <filesystem>
#include <memory>

#include "cache/store.hpp"
#include "cli/options.hpp"
#include "cli/report.hpp"
#include "cli/verbs/verbs.hpp"
#include "runtime/compiler.hpp"
#include "runtime/device.hpp"

namespace ordo::cli {
namespace {

// One thing that was looked at. `facts` holds "ok" and what is worth knowing; `line` says it to a person.
struct Finding {
  std::string name;
  Json facts;
  std::string line;
};

Finding bad(std::string name, const std::string& why) { return {std::move(name), {{"ok", false}, {"error", why}}, why}; }

std::string cuda_version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

// Beside the driver's and NVRTC's: a report of a mismatch needs all three.
Finding look_at_build() {
  const std::string headers = cuda_version(CUDA_VERSION);
  return {"ordo",
          {{"ok", true}, {"version", ORDO_VERSION}, {"cuda_headers", headers}},
          fmt::format("{}, built with the headers of CUDA {}", ORDO_VERSION, headers)};
}

Finding look_at_driver() {
  const auto count = device_count();
  if (!count) return bad("driver", count.error().message);
  const auto facts = device_facts(0);
  if (!facts) return bad("driver", facts.error().message);
  const std::string version = cuda_version(facts->driver_version);
  return {"driver", {{"ok", true}, {"cuda_version", version}}, fmt::format("CUDA {}", version)};
}

Finding look_at_gpus() {
  const auto count = device_count();
  if (!count) return bad("gpu", "none; planning, compiling and the CPU executor need none");
  Json devices = Json::array();
  std::string line;
  bool usable = false;
  for (int index = 0; index < *count; ++index) {
    const auto facts = device_facts(index);
    if (!facts) return bad("gpu", facts.error().message);
    const auto target = target_of_facts(*facts);
    usable = usable || target;
    devices.push_back({{"index", index},
                       {"name", facts->name},
                       {"compute_capability", fmt::format("{}.{}", facts->cc_major, facts->cc_minor)},
                       {"sm_count", facts->sm_count},
                       {"memory_bytes", facts->memory_bytes},
                       {"target", target ? Json(to_text(*target)) : Json()}});
    line += fmt::format("{}{}: {}, {} SMs, {}", index == 0 ? "" : "; ", index, facts->name, facts->sm_count,
                        target ? fmt::format("target {}", to_text(*target)) : target.error().message);
  }
  return {"gpu", {{"ok", usable}, {"devices", std::move(devices)}}, line};
}

Finding look_at_nvrtc() {
  const auto compiler = Compiler::open();
  if (!compiler) return bad("nvrtc", compiler.error().message);
  const ToolchainVersion& version = compiler->version();
  return {"nvrtc",
          {{"ok", true}, {"version", version.text()}, {"library", version.library}, {"builtins", version.builtins}},
          fmt::format("{} ({}; builtins {})", version.text(), version.library, version.builtins)};
}

Finding look_at_cache(const Options& options) {
  const std::optional<std::string> path = options.cache.empty() ? cache::default_path() : options.cache;
  if (!path)
    return bad("cache", "no place for it: none of ORDO_CACHE, XDG_CACHE_HOME and HOME is set; kernels are kept in memory");
  std::error_code ignored;
  if (!std::filesystem::exists(*path, ignored)) {
    return {"cache",
            {{"ok", true}, {"path", *path}, {"exists", false}, {"entries", 0}},
            fmt::format("{}, made at the first compile", *path)};
  }
  const auto store = cache::Store::open(*path);
  if (!store) return bad("cache", store.error().message);
  const auto entries = store->list();
  if (!entries) return bad("cache", entries.error().message);
  const auto size = std::filesystem::file_size(*path, ignored);
  return {"cache",
          {{"ok", true}, {"path", *path}, {"exists", true}, {"entries", entries->size()}, {"bytes", size}},
          fmt::format("{}, {} kernels, {}", *path, entries->size(), bytes_text(static_cast<double>(size)))};
}

Finding look_at_sqlite() {
  const std::string version = cache::sqlite_version();
  return {"sqlite", {{"ok", true}, {"version", version}}, version};
}

Result<int> examine(const Options& options) {
  Json json;
  for (const Finding& finding :
       {look_at_build(), look_at_driver(), look_at_gpus(), look_at_nvrtc(), look_at_cache(options), look_at_sqlite()}) {
    json[finding.name] = finding.facts;
    if (!options.json) print("{:<8}{:<9}{}\n", finding.name, finding.facts["ok"].get<bool>() ? "ok" : "missing", finding.line);
  }
  if (options.json) print_json(json);
  return kOk;
}

}  // namespace

Verb add_doctor(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("doctor", "Say what this machine has: driver, GPU, NVRTC, cache, SQLite");
  verb->add_option("family", options->family, "Accepted for symmetry with the other verbs")
      ->type_name("FAMILY")
      ->check(CLI::IsMember({"attention-backward"}));
  add_cache(*verb, *options);
  add_json(*verb, *options);
  verb->footer("Example:\n  ordo doctor\nExits with 0 whatever it finds: read the answer.");
  return {verb, [options] { return examine(*options); }};
}

}  // namespace ordo::cli
