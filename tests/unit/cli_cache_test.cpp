// The verbs around the cache: precompile, cache, manifest, explain-miss.
#include <algorithm>

#include "cache/store.hpp"
#include "runtime/compiler.hpp"
#include "tests/unit/command.hpp"

namespace ordo::test {
namespace {

bool has_nvrtc() {
  const Result<Compiler> opened = Compiler::open();
  if (!opened) MESSAGE("skipped, no NVRTC: ", opened.error().message);
  return opened.ok();
}

void write_list(const CommandFolder& folder, const std::string& name, const std::string& more = "") {
  write_file(folder.file(name),
             "name = \"Tiny\"\n[[attention-backward]]\nheads = 4\nkv_heads = 2\nhead_dim = 64\ntensor_parallel = [1, 2]\nseqlen "
             "= [128, 512]\n" +
                 more);
}

}  // namespace

TEST_CASE("cli precompile: a complete file, the same bytes every time, resumed where it was broken off, and checked") {
  if (!has_nvrtc()) return;
  const CommandFolder folder;
  write_list(folder, "list.toml", "accumulate = [\"ordered\", \"exact\"]\n");
  const std::string list = folder.file("list.toml"), file = folder.file("kernels.db");
  Outcome check = ordo_command(folder, {"precompile", list, "--cache", file, "--check"});
  CHECK(check.code == 3);  // no file yet
  const Json made =
      json_of(ordo_command(folder, {"precompile", list, "--target", "h200,h100", "--cache", file, "--jobs", "2", "--json"}));
  CHECK(made["kernels"] == made["compiled"]);
  CHECK(made["kernels"] == made["entries"]);
  CHECK(made["kernels"].get<int>() >= 4);
  CHECK_FALSE(fs::exists(file + ".partial"));
  const std::string first = slurp(file);

  check = ordo_command(folder, {"precompile", list, "--target", "h200,h100", "--cache", file, "--check"});
  CHECK(check.code == 0);
  check = ordo_command(folder, {"precompile", list, "--cache", file, "--check", "--toolchain", "NVRTC 12.8.61"});
  CHECK(check.code == 1);
  CHECK(check.out.find("missing main") != std::string::npos);
  write_list(folder, "more.toml", "mask = \"causal\"\n");
  const Outcome lacks =
      ordo_command(folder, {"precompile", list, folder.file("more.toml"), "--cache", file, "--check", "--json"});
  CHECK(lacks.code == 1);
  CHECK(Json::parse(lacks.out)["missing"].size() > 0);

  // Nothing to do: the file is not touched.
  const auto written = fs::last_write_time(file);
  CHECK(json_of(ordo_command(folder, {"precompile", list, "--cache", file, "--json"}))["compiled"] == 0);
  CHECK(fs::last_write_time(file) == written);

  // From a part of it, by another number of jobs.
  const std::string again = folder.file("again.db");
  {
    Result<cache::Store> whole = cache::Store::open(file), part = cache::Store::open(again + ".partial");
    REQUIRE(whole);
    REQUIRE(part);
    const auto entries = whole->list();
    REQUIRE(entries);
    REQUIRE(part->put(**whole->get(entries->back().key)));
  }
  const Json resumed =
      json_of(ordo_command(folder, {"precompile", list, "--target", "h200,h100", "--cache", again, "--jobs", "1", "--json"}));
  CHECK(resumed["compiled"].get<int>() == made["compiled"].get<int>() - 1);
  CHECK(slurp(again) == first);

  // A run finds everything there, and a machine without NVRTC too.
  const Outcome compiled = ordo_command(folder,
                                        {"compile", "attention-backward", "--seqlen", "128", "--heads", "4", "--kv-heads", "2",
                                         "--head-dim", "64", "--target", "h200", "--cache", file, "--json"},
                                        {"ORDO_NVRTC=" + folder.file("nowhere")});
  CHECK(json_of(compiled)["cache"] == "hit");
}

TEST_CASE("cli precompile: the plans of a decision table, and every kernel in the file itself whatever layers there are") {
  if (!has_nvrtc()) return;
  const CommandFolder folder;
  write_list(folder, "list.toml");
  const std::string list = folder.file("list.toml"), table = folder.file("plans.json");
  REQUIRE(ordo_command(folder, {"tuning", "export", "--shapes", list, "--target", "h200", "-o", table}).code == 0);
  const Json made = json_of(ordo_command(folder, {"precompile", "--tuning", table, "--cache", folder.file("k.db"), "--json"}));
  CHECK(made["plans"].get<int>() >= 1);
  CHECK(made["kernels"].get<int>() >= 2);
  CHECK(made["kernels"] == made["entries"]);
  const Outcome other =
      ordo_command(folder, {"precompile", "--tuning", table, "--target", "h100", "--cache", folder.file("o.db")});
  CHECK(other.code == 2);
  CHECK(other.err.find("is for h200") != std::string::npos);
  const Outcome neither = ordo_command(folder, {"precompile", "--cache", folder.file("o.db")});
  CHECK(neither.code == 2);
  CHECK(neither.err.find("--tuning") != std::string::npos);

  const Json again = json_of(ordo_command(folder, {"precompile", "--tuning", table, "--cache", folder.file("again.db"), "--json"},
                                          {"ORDO_CACHE_LAYERS=" + folder.file("k.db")}));
  CHECK(again["entries"] == made["entries"]);
  CHECK(slurp(folder.file("again.db")) == slurp(folder.file("k.db")));
}

TEST_CASE("cli precompile: what is wrong is said, with the line of the list") {
  const CommandFolder folder;
  write_file(folder.file("bad.toml"), "[[attention-backward]]\nheads = 4\nseqlen = 0\n");
  Outcome outcome = ordo_command(folder, {"precompile", folder.file("bad.toml"), "--cache", folder.file("k.db")});
  CHECK(outcome.code == 2);
  CHECK(outcome.err.find("bad.toml:3") != std::string::npos);
  outcome = ordo_command(folder, {"precompile", folder.file("absent.toml"), "--cache", folder.file("k.db")});
  CHECK(outcome.code == 3);
  write_list(folder, "list.toml");
  outcome =
      ordo_command(folder, {"precompile", folder.file("list.toml"), "--cache", folder.file("k.db"), "--target", "h200,h300"});
  CHECK(outcome.code == 2);
  CHECK(outcome.err.find("h300") != std::string::npos);
  CHECK(ordo_command(folder, {"precompile", folder.file("list.toml")}).code == 2);
  CHECK(ordo_command(folder, {"precompile", folder.file("list.toml"), "--cache", folder.file("k.db"), "--jobs", "0"}).code == 2);
  CHECK_FALSE(fs::exists(folder.file("k.db")));
}

TEST_CASE("cli: every list that is shipped is read and planned") {
  const CommandFolder folder;
  int lists = 0;
  for (const auto& file : fs::directory_iterator(ORDO_MODELS)) {
    if (file.path().extension() != ".toml") continue;
    ++lists;
    CAPTURE(file.path().string());
    // Without a compiler: an empty cache lacks everything.
    REQUIRE(cache::Store::open(folder.file("empty.db")));
    const Outcome outcome = ordo_command(folder, {"precompile", file.path().string(), "--target", "h200,h100,h20", "--cache",
                                                  folder.file("empty.db"), "--check", "--toolchain", "NVRTC 13.0.88", "--json"});
    CHECK(outcome.code == 1);
    CHECK(Json::parse(outcome.out)["kernels"].get<int>() >= 2);
  }
  CHECK(lists >= 8);
}

TEST_CASE("cli cache: list, show, export, merge, import, diff, verify, gc, stats") {
  if (!has_nvrtc()) return;
  unsetenv("SOURCE_DATE_EPOCH");  // with it, a finished file's kernels have that date
  const CommandFolder folder;
  const std::string own = folder.file("cache.db"), out = folder.file("out.db");
  CHECK(ordo_command(folder, "cache list").code == 3);
  CHECK(ordo_command(folder, "cache").code == 2);
  json_of(ordo_command(folder, "compile attention-backward --seqlen 128 --head-dim 64 --target h200 --json"));
  const Json listed = json_of(ordo_command(folder, "cache list --json"));
  REQUIRE(listed["entries"].size() == 2);
  CHECK(ordo_command(folder, "cache list").out.find("NVRTC ") != std::string::npos);
  const std::string key = listed["entries"][0]["key"];
  const Json shown =
      json_of(ordo_command(folder, {"cache", "show", key.substr(0, 20), "--cubin", folder.file("k.cubin"), "--json"}));
  CHECK(shown["key"] == key);
  CHECK(shown["flags"].get<std::string>().find("--gpu-architecture=sm_90a") != std::string::npos);
  CHECK(shown["templates"].get<std::string>().size() == 64);
  CHECK(slurp(folder.file("k.cubin")).substr(1, 3) == "ELF");
  CHECK(shown["cubin_bytes"].get<std::size_t>() == fs::file_size(folder.file("k.cubin")));
  CHECK(shown["file_bytes"].get<std::size_t>() < fs::file_size(folder.file("k.cubin")));
  CHECK(ordo_command(folder, "cache show zz").code == 2);

  CHECK(ordo_command(folder, {"cache", "export", out}).code == 0);
  CHECK(ordo_command(folder, {"cache", "diff", own, out}).code == 0);
  CHECK(ordo_command(folder, {"cache", "verify", "--cache", out}).code == 0);
  CHECK(ordo_command(folder, "cache list").out.find("  never  ") == std::string::npos);
  CHECK(ordo_command(folder, {"cache", "list", "--cache", out}).out.find("  never  ") != std::string::npos);
  const std::string exported = slurp(out);
  CHECK(ordo_command(folder, {"cache", "export", out}).code == 0);
  CHECK(slurp(out) == exported);

  const std::string all = folder.file("all.db");
  CHECK(json_of(ordo_command(folder, {"cache", "merge", out, "--cache", all, "--json"}))[0]["added"] == 2);
  CHECK(json_of(ordo_command(folder, {"cache", "import", own, "--cache", all, "--json"}))[0]["present"] == 2);
  {  // the same key with other bytes, and one that is new
    Result<cache::Store> store = cache::Store::open(out);
    cache::Entry entry = **store->get(key);
    REQUIRE(store->erase(key));
    entry.sha256 = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
    entry.bytes = {std::byte{'a'}};
    REQUIRE(store->put(entry));
    entry.key = "new";
    REQUIRE(store->put(entry));
  }
  Outcome merged = ordo_command(folder, {"cache", "import", out, "--cache", all});
  CHECK(merged.code == 3);
  CHECK(merged.err.find(key) != std::string::npos);
  merged = ordo_command(folder, {"cache", "merge", out, "--cache", all});
  CHECK(merged.code == 1);
  CHECK(merged.out.find("1 added, 1 there already, 1 conflicts, 0 damaged") != std::string::npos);
  CHECK(merged.out.find("conflict " + key) != std::string::npos);
  const Outcome diff = ordo_command(folder, {"cache", "diff", own, all});
  CHECK(diff.code == 1);
  CHECK(diff.out.find("> new") != std::string::npos);

  {
    Result<cache::Store> store = cache::Store::open(all);
    REQUIRE(store->erase("new"));
  }
  const Json gc = json_of(ordo_command(folder, {"cache", "gc", "--cache", all, "--limit", "0", "--json"}));
  CHECK(gc["after"]["entries"] == 2);
  CHECK(ordo_command(folder, {"cache", "gc", "--limit", "much"}).code == 2);
  const Json stats = json_of(ordo_command(folder, "cache stats --json"));
  CHECK(stats["counters"]["ordo_compiles_total"] == 2);
  CHECK(stats["sizes"]["entries"] == 2);
  CHECK(stats["toolchains"].size() == 1);
  const Outcome text = ordo_command(folder, "cache stats --prometheus");
  CHECK(text.out.find("# TYPE ordo_compiles_total counter\nordo_compiles_total 2\n") != std::string::npos);
  CHECK(text.out.find("# TYPE ordo_cache_entries gauge\nordo_cache_entries 2\n") != std::string::npos);
}

TEST_CASE("cli manifest: what a run asked for is a list that precompile takes") {
  if (!has_nvrtc()) return;
  const CommandFolder folder;
  const std::string run = folder.file("run.toml"), list = folder.file("list.toml");
  for (const char* seqlen : {"128", "128", "512"}) {
    const Outcome outcome =
        ordo_command(folder, {"compile", "attention-backward", "--seqlen", seqlen, "--head-dim", "64", "--target", "h200"},
                     {"ORDO_MANIFEST=" + run});
    CHECK(outcome.code == 0);
  }
  CHECK(ordo_command(folder, {"manifest", run, "--name", "A run", "--output", list}).code == 0);
  CHECK(slurp(list).find("name = \"A run\"") == 0);
  const Json made = json_of(ordo_command(folder, {"precompile", list, "--cache", folder.file("kernels.db"), "--json"}));
  CHECK(made["plans"] == 2);
  CHECK(ordo_command(folder, {"precompile", list, "--cache", folder.file("cache.db"), "--check"}).code == 0);
  const Outcome from_cache = ordo_command(folder, "manifest --from-cache");
  CHECK(from_cache.code == 0);
  CHECK(from_cache.out.find("[[plan]]") != std::string::npos);
  CHECK(ordo_command(folder, "manifest").code == 2);
}

TEST_CASE("cli explain-miss: the nearest entry and what differs") {
  if (!has_nvrtc()) return;
  const CommandFolder folder;
  const std::string shape = " attention-backward --seqlen 512 --head-dim 64 --mask causal --target h200 ";
  Outcome outcome = ordo_command(folder, "explain-miss" + shape);
  CHECK(outcome.code == 1);
  CHECK(outcome.out.find("nothing like it") != std::string::npos);
  json_of(ordo_command(folder, "compile" + shape + "--json"));
  CHECK(ordo_command(folder, "explain-miss" + shape).code == 0);
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words("explain-miss" + shape);
    all.insert(all.end(), more.begin(), more.end());
    return ordo_command(folder, all);
  };
  outcome = with({"--toolchain", "NVRTC 13.0.48"});
  CHECK(outcome.code == 1);
  CHECK(outcome.out.find("toolchain     NVRTC 13.0.48 / NVRTC ") != std::string::npos);
  outcome = with({"--schedule", "ascending", "--json"});
  CHECK(outcome.code == 1);
  const Json main = Json::parse(outcome.out)["kernels"][0];
  CHECK_FALSE(main["hit"].get<bool>());
  const bool names_schedule =
      std::any_of(main["differences"].begin(), main["differences"].end(), [](const Json& d) { return d["what"] == "schedule"; });
  CHECK(names_schedule);
}

}  // namespace ordo::test
