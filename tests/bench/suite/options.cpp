#include "tests/bench/suite/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace ordo::bench {
namespace {

constexpr int kBadUsage = 2;

Result<std::vector<Accumulate>> parse_list(const std::string& text) {
  std::vector<Accumulate> out;
  for (const std::string& part : CLI::detail::split(text, ',')) {
    auto one = parse_accumulate(part);
    if (!one) return one.error();
    out.push_back(*one);
  }
  return out;
}

}  // namespace

Parsed parse(int argc, char** argv) {
  Parsed parsed;
  Options& o = parsed.options;
  std::string accumulate, plans = "best";
  if (const char* cache = std::getenv("ORDO_CACHE")) o.cache = cache;
  CLI::App app{"Times attention backward over the suite's cells, sustained, and prints CSV"};
  app.add_option("--warm-ms", o.warm_ms, "Launches before each case, milliseconds (300)")->check(CLI::Range(0.0, 60000.0));
  app.add_option("--first-warm-ms", o.first_warm_ms, "Launches before the first case, milliseconds (2000)")
      ->check(CLI::Range(0.0, 60000.0));
  app.add_option("--measure-ms", o.measure_ms, "Measured launches of each case, milliseconds (300)")
      ->check(CLI::Range(1.0, 60000.0));
  app.add_option("--cells", o.cells, "Only cells whose name holds one of these comma-separated parts, e.g. hd128-full,gqa4");
  app.add_option("--accumulate", accumulate, "Comma-separated (atomic,ordered,exact)");
  app.add_option("--plans", plans, "best: the planner's choice; all: every schedule and cluster size (best)")
      ->check(CLI::IsMember({"best", "all"}));
  app.add_flag("--static", o.static_shape, "Bake the shape into the kernels");
  app.add_option("--set", o.edits, "key=value put into the text of every plan, e.g. stages=3; may be repeated");
  app.add_flag("!--no-checks", o.checks, "Leave same_bits and max_rel_err empty");
  app.add_option("--csv", o.csv, "File for the CSV (stdout)");
  app.add_option("--cache", o.cache, "Cache file for compiled kernels ($ORDO_CACHE; memory only)");
  app.add_flag("--list", o.list, "Print the cells and plans and measure nothing; needs no GPU");
  app.add_flag("--overheads", o.overheads, "Instead: host time of a launch over bare launches, and of a cache hit");
  app.add_option("--cache-hit", o.cache_hit, "Used by --overheads")->group("");
  app.footer("Example:\n  ordo_bench_suite --cells hd128-full-16384 --accumulate ordered --plans all");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    parsed.status = app.exit(error) == 0 ? 0 : kBadUsage;
    return parsed;
  }
  o.all_plans = plans == "all";
  if (!accumulate.empty()) {
    auto list = parse_list(accumulate);
    if (!list) {
      fmt::print(stderr, "{}\n", list.error().message);
      parsed.status = kBadUsage;
      return parsed;
    }
    o.accumulate = *std::move(list);
  }
  parsed.run = true;
  return parsed;
}

Result<Plan> edited(const Plan& plan, const std::vector<std::string>& edits) {
  std::string text = to_text(plan);
  for (const std::string& edit : edits) {
    const std::size_t equals = edit.find('=');
    const std::string key = fmt::format(" {}=", edit.substr(0, equals));
    const std::size_t at = text.find(key);
    if (equals == std::string::npos || at == std::string::npos)
      return Error{ErrorCode::invalid_argument, fmt::format("--set {}: a plan has no such key; its text is\n{}", edit, text)};
    const std::size_t end = text.find(' ', at + 1);
    text.replace(at + 1, (end == std::string::npos ? text.size() : end) - at - 1, edit);
  }
  return parse_plan(text);
}

}  // namespace ordo::bench
