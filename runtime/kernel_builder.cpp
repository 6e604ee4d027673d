#include "runtime/kernel_builder.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "cache/layers.hpp"
#include "cache/single_flight.hpp"
#include "codegen/generate/template_hash.hpp"
#include "codegen/hash/sha256.hpp"
#include "runtime/arch.hpp"
#include "runtime/compiler.hpp"
#include "runtime/counting.hpp"
#include "runtime/cubin.hpp"
#include "runtime/toolchain.hpp"

namespace ordo {
namespace {

constexpr std::int64_t seconds_a_day = 86400;

std::int64_t now_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Result<CubinKernel> find_kernel(const cache::Entry& entry, const KernelSource& source) {
  const auto unusable = [](const std::string& why) { return Error{ErrorCode::bad_cubin, why}; };
  if (entry.arch != source.arch) return unusable(fmt::format("it is for {}", entry.arch));
  Result<CubinInfo> info = read_cubin(entry.bytes);
  if (!info) return info.error();
  if (info->sm != arch_number(source.arch)) return unusable(fmt::format("its cubin is for sm_{}", info->sm));
  const auto kernel =
      std::find_if(info->kernels.begin(), info->kernels.end(), [&](const CubinKernel& k) { return k.symbol == source.entry; });
  if (kernel == info->kernels.end()) return unusable(fmt::format("its cubin has no kernel {}", source.entry));
  return *kernel;
}

/// `layer` is empty for one that was compiled just now.
BuiltKernel built(const KernelSource& source, cache::Entry entry, const CubinKernel& kernel, const std::string& layer) {
  KernelReport report;
  report.name = source.name;
  report.key = entry.key;
  report.cache_hit = !layer.empty();
  report.cache_layer = layer;
  report.arch = source.arch;
  report.launch_registers = kernel.registers;
  report.spill_bytes = entry.spill_bytes;
  report.stack_bytes = kernel.stack_bytes;
  report.shared_bytes = kernel.static_shared_bytes + source.shared_bytes;
  report.barriers = kernel.barriers;
  report.compile_ms = entry.compile_ms;
  report.cubin_sha256 = entry.sha256;
  return {std::move(report), std::move(entry.bytes)};
}

cache::Entry entry_of(const KernelSource& source, const std::string& plan, const std::string& toolchain, const Cubin& cubin) {
  const std::vector<std::string> flags = Compiler::flags(source.arch);
  cache::Entry entry;
  entry.toolchain = toolchain;
  entry.key = cache::kernel_key(source.text, flags, toolchain, source.arch);
  entry.source_key = cache::source_key(source.text, flags, source.arch);
  entry.name = source.name;
  entry.plan = plan;
  entry.arch = source.arch;
  entry.registers = cubin.kernel.registers;
  entry.stack_bytes = cubin.kernel.stack_bytes;
  entry.shared_bytes = cubin.kernel.static_shared_bytes + source.shared_bytes;
  entry.barriers = cubin.kernel.barriers;
  entry.spill_bytes = cubin.spill_store_bytes + cubin.spill_load_bytes;
  entry.compile_ms = cubin.compile_ms;
  entry.entry = source.entry;
  entry.sha256 = cubin.sha256;
  entry.templates = template_hash(source);
  for (const std::string& flag : flags) entry.flags += (entry.flags.empty() ? "" : " ") + flag;
  entry.bytes = cubin.bytes;
  return entry;
}

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Calls work(0) ... work(count - 1) on at most `threads` threads, the caller's among them.
template <class Work>
void in_parallel(std::size_t count, std::size_t threads, const Work& work) {
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> helpers;
  for (std::size_t t = 1; t < std::min(threads, count); ++t) {
    try {
      helpers.emplace_back(run);
    } catch (const std::system_error&) {  // no more threads to be had: this one does it all
      break;
    }
  }
  run();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace

struct KernelBuilder::State {
  KernelBuilderOptions options;
  std::mutex mutex;  // of `warned`
  std::set<std::string> warned;
  cache::Layers layers;
  cache::SingleFlight flights;
  Toolchain toolchain;
  Counting counting;

  explicit State(KernelBuilderOptions chosen)
      : options(std::move(chosen)),
        layers({.path = options.cache_path,
                .files = options.cache_layers,
                .memory_only = options.memory_cache_only,
                .limit_bytes = options.cache_limit_bytes,
                .warn = [this](const std::string& cause, const std::string& message) { warn(cause, message); }}),
        flights({.folder = options.lease_folder, .jobs = options.compile_jobs, .timeout = options.lease_timeout}),
        toolchain(layers) {}

  /// Once a cause, and without the lock held: the callback may do as it likes.
  void warn(const std::string& cause, const std::string& message) {
    {
      const std::scoped_lock lock(mutex);
      if (!warned.insert(cause).second) return;
    }
    if (options.warn) options.warn(message);
  }

  /// The kernel from the cache, if there is a usable one. `by` is empty where there is no NVRTC.
  std::optional<BuiltKernel> find(const KernelSource& source, const std::string& by, std::vector<std::string>& stale) {
    const std::vector<std::string> flags = Compiler::flags(source.arch);
    CubinKernel kernel;
    const cache::Layers::Check check = [&](const cache::Entry& entry) -> Result<void> {
      Result<CubinKernel> found = find_kernel(entry, source);
      if (!found) return found.error();
      kernel = *std::move(found);
      return {};
    };
    std::optional<cache::Layers::Found> found = by.empty()
                                                    ? layers.newest(cache::source_key(source.text, flags, source.arch), check)
                                                    : layers.find(cache::kernel_key(source.text, flags, by, source.arch), check);
    if (!found) return std::nullopt;
    if (found->layer == "local" && found->entry.used < now_seconds() - seconds_a_day) stale.push_back(found->entry.key);
    return built(source, std::move(found->entry), kernel, found->layer);
  }
};

/// One call of build().
struct Build {
  KernelBuilder::State& state;
  const std::vector<KernelSource>& sources;
  const std::string& plan;
  const std::function<bool()>& cancelled;

  std::vector<std::optional<Result<BuiltKernel>>> results = std::vector<std::optional<Result<BuiltKernel>>>(sources.size());
  std::vector<std::string> stale = {};  ///< keys whose stamp is a day old

  /// Looks every source up that has no result yet. Returns those that are missing.
  std::vector<std::size_t> look_up(const std::string& by) {
    std::vector<std::size_t> missing;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (results[i]) continue;
      if (std::optional<BuiltKernel> found = state.find(sources[i], by, stale))
        results[i] = *std::move(found);
      else
        missing.push_back(i);
    }
    return missing;
  }

  Result<std::vector<BuiltKernel>> run() {
    std::string by = state.toolchain.text();
    std::vector<std::size_t> missing = look_up(by);
    if (!missing.empty()) {
      const Result<Compiler> compiler = state.toolchain.compiler();
      if (!compiler) {
        return Error{compiler.error().code,
                     fmt::format("Kernel '{}' is not in the cache ({}), and cannot be compiled. {}", sources[missing[0]].name,
                                 fmt::join(state.layers.paths(), ", "), compiler.error().message)};
      }
      if (compiler->version().text() != by) {  // another NVRTC than it was taken for: then what was found is another's too
        by = compiler->version().text();
        std::fill(results.begin(), results.end(), std::nullopt);
        stale.clear();
        missing = look_up(by);
      }
      for (const auto& result : results) {
        if (result) state.counting.hit((**result).report.cache_layer);
      }
      if (!missing.empty()) compile(*compiler, missing);
    } else {
      for (const auto& result : results) state.counting.hit((**result).report.cache_layer);
    }
    if (!stale.empty()) {
      state.layers.apply({.used = stale, .counters = state.counting.take(), .toolchains = state.toolchain.take()});
    }
    std::vector<BuiltKernel> kernels;
    for (std::optional<Result<BuiltKernel>>& result : results) {
      if (!*result) return result->error();
      kernels.push_back(**std::move(result));
    }
    return kernels;
  }

  /// Gives every source of `missing` its result.
  void compile(const Compiler& compiler, const std::vector<std::size_t>& missing) {
    state.counting.missed(missing.size());
    const std::string by = compiler.version().text();
    // Who would see what this builder stores, and so may wait for it: all who use the file; without one, its own threads.
    std::error_code ignored;
    const std::string audience = state.layers.shares() ? std::filesystem::weakly_canonical(state.layers.path(), ignored).string()
                                                       : fmt::format("{} {}", getpid(), static_cast<const void*>(&state));
    std::map<std::string, std::size_t> by_lease;  // the same kernel twice in one list is compiled once
    std::vector<std::string> leases;
    for (const std::size_t i : missing) {
      const std::vector<std::string> flags = Compiler::flags(sources[i].arch);
      std::string lease = sha256_hex(audience + ' ' + cache::kernel_key(sources[i].text, flags, by, sources[i].arch));
      if (by_lease.emplace(lease, i).second) leases.push_back(std::move(lease));
    }
    cache::Wait wait;
    wait.cancelled = cancelled;
    wait.done = [&](const std::string& lease) {
      const std::size_t i = by_lease.at(lease);
      std::optional<BuiltKernel> found = state.find(sources[i], by, stale);
      if (!found) return false;
      results[i] = *std::move(found);
      state.counting.shared();
      return true;
    };
    wait.waiting = [&](const std::string& whom) {
      state.warn("cache wait", fmt::format("Waiting for {}. The plan: '{}'.", whom, plan));
    };
    const Stopwatch acquiring;
    const Result<cache::Flight> flight = state.flights.acquire(std::move(leases), wait);
    state.counting.waited(acquiring.seconds());
    if (!flight) {
      for (const std::size_t i : missing) {
        if (!results[i]) results[i] = flight.error();
      }
      return;
    }
    std::vector<std::size_t> mine;
    for (const std::string& lease : flight->keys()) mine.push_back(by_lease.at(lease));
    std::vector<std::optional<cache::Entry>> entries(mine.size());
    in_parallel(mine.size(), static_cast<std::size_t>(state.flights.jobs()), [&](std::size_t m) {
      try {  // an exception must not leave a thread
        results[mine[m]] = compile_one(compiler, sources[mine[m]], *flight, wait, entries[m]);
      } catch (const std::exception& exception) {
        results[mine[m]] =
            Error{ErrorCode::internal, fmt::format("Compiling kernel '{}' failed: {}.", sources[mine[m]].name, exception.what())};
      }
    });
    store(entries);
    for (const std::size_t i : missing) {  // the second of two that are the same
      if (!results[i]) results[i] = results[same_as(i, mine)];
    }
  }

  /// The source among `candidates` that is the same kernel as source `i`.
  [[nodiscard]] std::size_t same_as(std::size_t i, const std::vector<std::size_t>& candidates) const {
    const auto same = [&](std::size_t other) {
      return sources[other].text == sources[i].text && sources[other].arch == sources[i].arch;
    };
    const auto it = std::find_if(candidates.begin(), candidates.end(), same);
    if (it != candidates.end()) return *it;
    for (std::size_t other = 0; other < sources.size(); ++other) {
      if (results[other] && same(other)) return other;
    }
    return i;
  }

  Result<BuiltKernel> compile_one(const Compiler& compiler, const KernelSource& source, const cache::Flight& flight,
                                  const cache::Wait& wait, std::optional<cache::Entry>& stored) {
    const Stopwatch queueing;
    const Result<cache::Turn> turn = state.flights.turn(flight, wait);
    state.counting.waited(queueing.seconds());
    if (!turn) return turn.error();
    const auto stop = [&] {
      flight.renew();
      turn->renew();
      return cancelled && cancelled();
    };
    Result<Cubin> cubin = compiler.compile(source, false, stop);
    state.counting.compiled(cubin.ok(), cubin ? cubin->compile_ms / 1000 : 0);
    if (!cubin) return cubin.error();
    stored = entry_of(source, plan, compiler.version().text(), *cubin);
    return built(source, *stored, cubin->kernel, "");
  }

  /// What compiled, in one transaction.
  void store(std::vector<std::optional<cache::Entry>>& entries) {
    std::vector<cache::Entry> whole;
    for (std::optional<cache::Entry>& entry : entries) {
      if (entry) whole.push_back(*std::move(entry));
    }
    if (whole.empty()) return;
    state.layers.apply(
        {.entries = whole, .used = stale, .counters = state.counting.take(), .toolchains = state.toolchain.take()});
    stale.clear();
  }
};

KernelBuilder::KernelBuilder(KernelBuilderOptions options) : state_(std::make_shared<State>(std::move(options))) {}

Result<std::vector<BuiltKernel>> KernelBuilder::build(const std::vector<KernelSource>& sources, const std::string& plan,
                                                      const std::function<bool()>& cancelled) {
  return Build{*state_, sources, plan, cancelled}.run();
}

CacheCounters KernelBuilder::counters() const { return state_->counting.all(); }

int KernelBuilder::jobs() const { return state_->flights.jobs(); }

}  // namespace ordo
