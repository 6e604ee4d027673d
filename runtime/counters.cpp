#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "ordo/prepare.hpp"

namespace ordo {
namespace {

struct Metric {
  std::string_view name, help, type = "counter";
};

constexpr std::array<Metric, 9> metrics{{
    {"ordo_cache_hits_total", "Kernels found in the cache, by layer."},
    {"ordo_cache_misses_total", "Kernels that no layer of the cache had."},
    {"ordo_compiles_total", "Kernels compiled."},
    {"ordo_compile_failures_total", "Compiles that failed or were cancelled."},
    {"ordo_compiles_shared_total", "Misses that another process or thread compiled meanwhile."},
    {"ordo_compile_seconds_total", "Time spent in the compiler."},
    {"ordo_compile_wait_seconds_total", "Time spent waiting for other compiles."},
    {"ordo_cache_entries", "Kernels in the cache file.", "gauge"},
    {"ordo_cache_file_bytes", "Size of the cache file.", "gauge"},
}};

}  // namespace

std::map<std::string, double> named(const CacheCounters& c) {
  return {{"ordo_cache_hits_total{layer=\"memory\"}", static_cast<double>(c.memory_hits)},
          {"ordo_cache_hits_total{layer=\"local\"}", static_cast<double>(c.local_hits)},
          {"ordo_cache_hits_total{layer=\"shipped\"}", static_cast<double>(c.shipped_hits)},
          {"ordo_cache_misses_total", static_cast<double>(c.misses)},
          {"ordo_compiles_total", static_cast<double>(c.compiles)},
          {"ordo_compile_failures_total", static_cast<double>(c.compile_failures)},
          {"ordo_compiles_shared_total", static_cast<double>(c.shared_compiles)},
          {"ordo_compile_seconds_total", c.compile_seconds},
          {"ordo_compile_wait_seconds_total", c.wait_seconds}};
}

std::string prometheus_text(const std::map<std::string, double>& values) {
  std::string text;
  std::string_view last;
  for (const auto& [name, value] : values) {  // sorted, so that the series of one metric are together
    const std::string_view metric = std::string_view(name).substr(0, name.find('{'));
    if (metric != last) {
      const auto* const known = std::find_if(metrics.begin(), metrics.end(), [&](const Metric& m) { return m.name == metric; });
      if (known != metrics.end()) text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", metric, known->help, metric, known->type);
      last = metric;
    }
    text += fmt::format("{} {}\n", name, value);
  }
  return text;
}

}  // namespace ordo
