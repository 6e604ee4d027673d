#include "runtime/kernel_builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <thread>

#include "cache/store.hpp"
#include "runtime/arch.hpp"
#include "runtime/compiler.hpp"
#include "runtime/cubin.hpp"

namespace ordo {
namespace {

constexpr std::size_t compile_threads = 2;  // a compile takes one core and a few hundred MB

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

BuiltKernel built(const KernelSource& source, cache::Entry entry, const CubinKernel& kernel, bool hit) {
  KernelReport report;
  report.name = source.name;
  report.key = entry.key;
  report.cache_hit = hit;
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
  std::mutex mutex;  // of the three below
  std::optional<cache::Store> opened_store;
  std::optional<Compiler> opened_compiler;
  std::set<std::string> warned;

  /// Once a cause, and without the lock held: the callback may do as it likes.
  void warn(const std::string& cause, const std::string& message) {
    {
      const std::scoped_lock lock(mutex);
      if (!warned.insert(cause).second) return;
    }
    if (options.warn) options.warn(message);
  }

  /// Null only when not even a store in memory can be made.
  std::optional<cache::Store> store() {
    std::string warning;
    std::optional<cache::Store> result;
    {
      const std::scoped_lock lock(mutex);
      if (!opened_store) warning = open_store();
      result = opened_store;
    }
    if (!warning.empty()) warn("cache open", warning);
    return result;
  }

  /// What to warn of, or nothing.
  std::string open_store() {
    std::string warning;
    if (!options.memory_cache_only) {
      const std::optional<std::string> path = options.cache_path.empty() ? cache::default_path() : options.cache_path;
      if (path) {
        if (Result<cache::Store> store = cache::Store::open(*path)) {
          opened_store = *std::move(store);
          return {};
        } else {
          warning = store.error().message + " Compiled kernels are kept in memory only.";
        }
      } else {
        warning =
            "No place for the kernel cache: none of ORDO_CACHE, XDG_CACHE_HOME and HOME is set. Compiled kernels are kept in "
            "memory only.";
      }
    }
    if (Result<cache::Store> store = cache::Store::in_memory()) opened_store = *std::move(store);
    return warning;
  }

  Result<Compiler> compiler() {
    const std::scoped_lock lock(mutex);
    if (opened_compiler) return *opened_compiler;
    Result<Compiler> compiler = Compiler::open();  // a failure is not remembered: NVRTC may be installed meanwhile
    if (compiler) opened_compiler = *compiler;
    return compiler;
  }

  /// The entry from the cache, if there is a usable one. `toolchain` is empty where there is no NVRTC.
  std::optional<BuiltKernel> find(cache::Store& store, const KernelSource& source, const std::string& toolchain) {
    const std::vector<std::string> flags = Compiler::flags(source.arch);
    Result<std::optional<cache::Entry>> found = toolchain.empty()
                                                    ? store.newest(cache::source_key(source.text, flags, source.arch))
                                                    : store.get(cache::kernel_key(source.text, flags, toolchain, source.arch));
    if (!found) {
      warn("cache read", found.error().message + " The kernel is compiled instead.");
      return std::nullopt;
    }
    if (!*found) return std::nullopt;
    cache::Entry entry = **std::move(found);
    if (entry.spill_bytes != 0 && !options.allow_spills) return std::nullopt;  // compiling it again says what is wrong with it
    const Result<CubinKernel> kernel = find_kernel(entry, source);
    if (kernel) return built(source, std::move(entry), *kernel, true);
    // Intact, yet no cubin for this source: somebody stored what he should not have.
    warn("cache entry", fmt::format("Cache {}: entry {} of kernel '{}' is unusable ({}) and is compiled again.", store.path(),
                                    entry.key, source.name, kernel.error().message));
    if (const Result<void> erased = store.erase(entry.key); !erased) warn("cache write", erased.error().message);
    return std::nullopt;
  }

  Result<BuiltKernel> compile(std::optional<cache::Store>& store, const Compiler& compiler, const KernelSource& source,
                              const std::string& plan) {
    Result<Cubin> cubin = compiler.compile(source, options.allow_spills);
    if (!cubin) return cubin.error();
    const std::vector<std::string> flags = Compiler::flags(source.arch);
    cache::Entry entry;
    entry.toolchain = compiler.version().text();
    entry.key = cache::kernel_key(source.text, flags, entry.toolchain, source.arch);
    entry.source_key = cache::source_key(source.text, flags, source.arch);
    entry.name = source.name;
    entry.plan = plan;
    entry.arch = source.arch;
    entry.registers = cubin->kernel.registers;
    entry.stack_bytes = cubin->kernel.stack_bytes;
    entry.shared_bytes = cubin->kernel.static_shared_bytes + source.shared_bytes;
    entry.barriers = cubin->kernel.barriers;
    entry.spill_bytes = cubin->spill_store_bytes + cubin->spill_load_bytes;
    entry.compile_ms = cubin->compile_ms;
    entry.entry = source.entry;
    entry.sha256 = cubin->sha256;
    entry.bytes = std::move(cubin->bytes);
    if (store) {
      if (const Result<void> stored = store->put(entry); !stored) {
        warn("cache write", stored.error().message + " Compiled kernels are kept in memory only.");
      }
    }
    return built(source, std::move(entry), cubin->kernel, false);
  }
};

KernelBuilder::KernelBuilder(KernelBuilderOptions options) : state_(std::make_shared<State>()) {
  state_->options = std::move(options);
}

Result<std::vector<BuiltKernel>> KernelBuilder::build(const std::vector<KernelSource>& sources, const std::string& plan) {
  std::optional<cache::Store> store = state_->store();
  const Result<Compiler> compiler = state_->compiler();
  std::vector<std::optional<Result<BuiltKernel>>> results(sources.size());
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    std::optional<BuiltKernel> found;
    if (store) found = state_->find(*store, sources[i], compiler ? compiler->version().text() : "");
    if (found) {
      results[i] = *std::move(found);
    } else if (compiler) {
      missing.push_back(i);
    } else {
      return Error{compiler.error().code, fmt::format("Kernel '{}' is not in the cache {}, and cannot be compiled. {}",
                                                      sources[i].name, store ? store->path() : "", compiler.error().message)};
    }
  }
  in_parallel(missing.size(), compile_threads, [&](std::size_t i) {
    const KernelSource& source = sources[missing[i]];
    try {  // an exception must not leave a thread
      results[missing[i]] = state_->compile(store, *compiler, source, plan);
    } catch (const std::exception& exception) {
      results[missing[i]] =
          Error{ErrorCode::internal, fmt::format("Compiling kernel '{}' failed: {}.", source.name, exception.what())};
    }
  });

  std::vector<BuiltKernel> kernels;
  for (std::optional<Result<BuiltKernel>>& result : results) {
    if (!*result) return result->error();
    kernels.push_back(**std::move(result));
  }
  return kernels;
}

}  // namespace ordo
