#include "cache/transfer.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "cache/store_impl.hpp"

namespace ordo::cache {
namespace {

constexpr std::size_t batch_entries = 64;  // a transaction: a few MB

/// What a library's build id says is true on every machine; a path is not.
Result<std::map<std::string, std::string>> portable_toolchains(const Store& from) {
  Result<std::map<std::string, std::string>> all = from.toolchains();
  if (all) std::erase_if(*all, [](const auto& entry) { return !entry.first.starts_with("build-id:"); });
  return all;
}

/// Sorts the entries of `from` into the report. `take` gets those that `into` lacks, whole.
template <class Take>
Result<MergeReport> compare(const Store& into, const Store& from, const Take& take) {
  MergeReport report;
  const Result<std::vector<Entry>> ours = into.list(), theirs = from.list();
  if (!ours) return ours.error();
  if (!theirs) return theirs.error();
  const Result<std::vector<std::string>> unreadable = from.damaged();
  if (!unreadable) return unreadable.error();
  report.damaged = *unreadable;
  std::unordered_map<std::string, std::string> known;
  for (const Entry& entry : *ours) known.emplace(entry.key, entry.sha256);
  for (const Entry& listed : *theirs) {
    if (std::binary_search(report.damaged.begin(), report.damaged.end(), listed.key)) continue;
    if (const auto it = known.find(listed.key); it != known.end()) {
      if (it->second == listed.sha256)
        ++report.present;
      else
        report.conflicts.push_back(listed.key);
      continue;
    }
    Result<std::optional<Entry>> whole = from.get(listed.key);
    if (!whole) return whole.error();
    if (!*whole) continue;  // gone meanwhile
    (*whole)->used = now_seconds();
    if (auto ok = take(**std::move(whole)); !ok) return ok.error();
    ++report.added;
  }
  return report;
}

}  // namespace

Result<MergeReport> merge(Store& into, const Store& from) {
  std::vector<Entry> batch;
  const auto flush = [&]() -> Result<void> {
    if (auto ok = into.apply({.entries = batch}); !ok) return ok;
    batch.clear();
    return {};
  };
  Result<MergeReport> report = compare(into, from, [&](Entry entry) -> Result<void> {
    batch.push_back(std::move(entry));
    return batch.size() < batch_entries ? Result<void>() : flush();
  });
  if (!report) return report;
  if (auto ok = flush(); !ok) return ok.error();
  const auto toolchains = portable_toolchains(from);
  if (!toolchains) return toolchains.error();
  if (auto ok = into.apply({.toolchains = *toolchains}); !ok) return ok.error();
  return report;
}

Result<MergeReport> import_all(Store& into, const Store& from) {
  std::vector<Entry> all;
  Result<MergeReport> report = compare(into, from, [&](Entry entry) -> Result<void> {
    all.push_back(std::move(entry));
    return {};
  });
  if (!report) return report;
  const auto refuse = [&](const std::string& key, std::string_view why) {
    return Error{ErrorCode::cache, fmt::format("Nothing was imported from {}: entry {} {}. 'ordo cache merge' takes the others.",
                                               from.path(), key, why)};
  };
  if (!report->damaged.empty()) return refuse(report->damaged.front(), "is damaged");
  if (!report->conflicts.empty()) return refuse(report->conflicts.front(), fmt::format("has other bytes in {}", into.path()));
  const auto toolchains = portable_toolchains(from);
  if (!toolchains) return toolchains.error();
  if (auto ok = into.apply({.entries = all, .toolchains = *toolchains}); !ok) return ok.error();
  return report;
}

std::int64_t reproducible_time() {
  std::int64_t time = 1;
  if (const char* text = std::getenv("SOURCE_DATE_EPOCH"); text != nullptr) {
    const char* const end = text + std::strlen(text);
    if (const auto [stop, error] = std::from_chars(text, end, time); error != std::errc{} || stop != end || time < 1) time = 1;
  }
  return time;
}

Result<Sizes> export_file(const Store& from, const std::string& path, const ExportOptions& options) {
  const Result<std::vector<Entry>> entries = from.list();
  if (!entries) return entries.error();
  const std::string partial = fmt::format("{}.writing-{}", path, ::getpid());
  struct Remove {
    const std::string& file;
    ~Remove() {
      (void)std::remove(file.c_str());
      (void)std::remove((file + "-journal").c_str());
    }
  } remove{partial};
  Result<Sizes> sizes = Sizes{};
  {
    Result<Store> to = Store::open(partial, {.limit_bytes = 0});
    if (!to) return to.error();
    std::vector<Entry> batch;
    for (std::size_t i = 0; i < entries->size(); ++i) {
      const Entry& listed = (*entries)[i];
      if (!options.wanted || options.wanted(listed)) {
        Result<std::optional<Entry>> whole = from.get(listed.key);
        if (!whole) return whole.error();
        if (!*whole)
          return Error{ErrorCode::cache,
                       fmt::format("Entry {} of {} is damaged; 'ordo cache gc' removes it.", listed.key, from.path())};
        Entry& entry = **whole;
        entry.created = entry.used = options.time;
        entry.compile_ms = 0;
        if (const auto it = options.plans.find(entry.key); it != options.plans.end()) entry.plan = it->second;
        batch.push_back(std::move(entry));
      }
      if (batch.size() == batch_entries || i + 1 == entries->size()) {
        if (auto ok = to->apply({.entries = batch}); !ok) return ok.error();
        batch.clear();
      }
    }
    const auto toolchains = portable_toolchains(from);
    if (!toolchains) return toolchains.error();
    if (auto ok = to->apply({.toolchains = *toolchains}); !ok) return ok.error();
    sizes = to->sizes();
    if (!sizes) return sizes;
  }
  if (std::rename(partial.c_str(), path.c_str()) != 0) {
    return Error{ErrorCode::io,
                 fmt::format("{} cannot be renamed to {}: {}.", partial, path, std::generic_category().message(errno))};
  }
  return sizes;
}

Result<Difference> difference(const Store& first, const Store& second) {
  Result<std::vector<Entry>> a = first.list(), b = second.list();
  if (!a) return a.error();
  if (!b) return b.error();
  Difference result;
  auto x = a->begin(), y = b->begin();
  while (x != a->end() || y != b->end()) {  // both are sorted by key
    if (y == b->end() || (x != a->end() && x->key < y->key)) {
      result.only_first.push_back(std::move(*x++));
    } else if (x == a->end() || y->key < x->key) {
      result.only_second.push_back(std::move(*y++));
    } else {
      if (x->sha256 == y->sha256)
        ++result.same;
      else
        result.conflicts.push_back(x->key);
      ++x;
      ++y;
    }
  }
  return result;
}

}  // namespace ordo::cache
