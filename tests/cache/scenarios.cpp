#include "tests/cache/scenarios.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "cache/store.hpp"
#include "cache/transfer.hpp"
#include "codegen/hash/sha256.hpp"
#include "ordo/ordo.hpp"
#include "runtime/compiler.hpp"
#include "runtime/kernel_builder.hpp"
#include "tests/cache/fault_vfs.hpp"

namespace ordo::test {
namespace {

namespace fs = std::filesystem;
using cache::Entry;
using cache::Store;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "ordo_cache_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

/// A kernel whose bytes follow from its key. Part of them shrink, as a cubin's do.
Entry made(const std::string& key, std::size_t size) {
  Entry e;
  e.key = sha256_hex(key);
  e.source_key = sha256_hex("source " + key);
  e.name = "main";
  e.plan =
      "attention-backward dtype=bf16 head_dim=128 mask=causal group=4 schedule=descending accumulate=ordered tile_q=64 "
      "tile_kv=128";
  e.toolchain = "NVRTC 13.0.88";
  e.arch = "sm_90a";
  e.entry = "ordo_main";
  e.registers = 168;
  std::mt19937 random(static_cast<unsigned>(std::hash<std::string>{}(key)));
  e.bytes.resize(size);
  for (std::size_t i = 0; i < size; ++i) e.bytes[i] = static_cast<std::byte>(i % 3 == 0 ? random() : 7);
  e.sha256 = sha256_hex(e.bytes);
  return e;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// The store's answer for a made key: right, a miss (an error counts as one), or wrong bytes.
enum class Answer { right, miss, wrong };
Answer ask(const Store& store, const std::string& key, std::size_t size) {
  const Entry expected = made(key, size);
  const Result<std::optional<Entry>> found = store.get(expected.key);
  if (!found || !*found) return Answer::miss;
  return (*found)->bytes == expected.bytes && (*found)->registers == 168 && (*found)->entry == "ordo_main" ? Answer::right
                                                                                                           : Answer::wrong;
}

bool silent(Fault fault) { return fault == Fault::bit_flip || fault == Fault::silent_tear || fault == Fault::short_read; }

constexpr std::size_t fault_entry_bytes = 9000;

/// The run whose operations go wrong. Adds to `stored` what was reported stored; says whether anything wrong was served.
bool faulty_run(const std::string& path, const std::string& other, std::set<std::string>& stored) {
  bool wrong = false;
  Result<Store> store = Store::open(path, {.limit_bytes = 0, .quarantined = [](const std::string&) {}});
  if (!store) return false;
  for (int i = 0; i < 4; ++i) {
    const std::string key = fmt::format("n{}", i);
    if (store->put(made(key, fault_entry_bytes))) stored.insert(key);
    wrong = wrong || ask(*store, key, fault_entry_bytes) == Answer::wrong;
  }
  const std::vector<Entry> both{made("p0", fault_entry_bytes), made("p1", 200)};
  const std::string stamp[] = {both[0].key, made("n0", fault_entry_bytes).key};
  if (store->apply({.entries = both, .used = stamp, .counters = {{"x", 1}}, .toolchains = {{"build-id:1", "NVRTC 13.0.88"}}})) {
    stored.insert("p0");
  }
  for (int i = 0; i < 4; ++i) wrong = wrong || ask(*store, fmt::format("k{}", i), fault_entry_bytes) == Answer::wrong;
  (void)store->list();
  (void)store->newest(made("k1", fault_entry_bytes).source_key);
  (void)store->gc({});
  if (Result<Store> from = Store::open(other, {.access = cache::Access::existing})) (void)cache::merge(*store, *from);
  for (const std::string& key : stored) wrong = wrong || ask(*store, key, fault_entry_bytes) == Answer::wrong;
  return wrong;
}

}  // namespace

Report fault_cases(std::size_t count, std::uint64_t seed) {
  Report outcome;
  const Folder folder;
  const std::string path = folder.file("cache.db"), base = folder.file("base.db"), other = folder.file("other.db");
  const std::set<std::string> before{"k0", "k1", "k2", "k3"};
  for (const auto& [file, prefix] : {std::pair{base, "k"}, {other, "m"}}) {
    Result<Store> store = Store::open(file);
    for (int i = 0; store && i < 4; ++i) (void)store->put(made(fmt::format("{}{}", prefix, i), fault_entry_bytes));
  }
  const FaultVfs vfs;
  std::mt19937_64 random(seed);
  std::uint64_t operations = 0;  // of a run without a fault
  {
    fs::copy(base, path);
    FaultVfs::disarm();
    std::set<std::string> stored;
    (void)faulty_run(path, other, stored);
    operations = FaultVfs::operations();
    if (stored.size() != 5) outcome.problems.push_back("a run without a fault does not store everything");
  }
  std::size_t happened = 0;
  double longest = 0;
  for (std::size_t i = 0; i < count && outcome.problems.size() < 20; ++i) {
    for (const auto& file : fs::directory_iterator(folder.path())) {
      if (file.path().filename().string().starts_with("cache.db")) fs::remove(file.path());
    }
    if (i % 7 != 0) fs::copy(base, path);  // every seventh begins with no file
    std::set<std::string> stored = i % 7 != 0 ? before : std::set<std::string>{};
    const auto fault = static_cast<Fault>(i % fault_kinds);
    const std::uint64_t at = random() % operations;
    const std::string what = fmt::format("case {} ({} at operation {})", i, name_of(fault), at);
    const Clock::time_point start = Clock::now();
    FaultVfs::arm(fault, at, random());
    if (faulty_run(path, other, stored)) outcome.problems.push_back(what + ": wrong bytes during the run");
    happened += FaultVfs::happened() ? 1 : 0;
    FaultVfs::disarm();
    longest = std::max(longest, seconds_since(start));
    Result<Store> store = Store::open(path, {.quarantined = [](const std::string&) {}});
    if (!store) {
      outcome.problems.push_back(what + ": cannot be opened afterwards: " + store.error().message);
      continue;
    }
    for (const std::string& key : stored) {
      const Answer answer = ask(*store, key, fault_entry_bytes);
      if (answer == Answer::wrong) outcome.problems.push_back(what + ": wrong bytes afterwards");
      if (answer == Answer::miss && !silent(fault))
        outcome.problems.push_back(what + ": " + key + " was reported stored and is lost");
    }
  }
  if (longest > 30) outcome.problems.push_back(fmt::format("a case took {:.0f} s: it hung", longest));
  outcome.summary = fmt::format("{} cases, the fault happened in {}, of {} operations a run; the longest took {:.2f} s", count,
                                happened, operations, longest);
  return outcome;
}

namespace {

/// What a process does until it is killed: reports with a byte-exact line each key that is stored.
[[noreturn]] void work_until_killed(const std::string& path, const std::string& other, const std::string& log, std::uint64_t seed,
                                    bool compiles) {
  std::mt19937_64 random(seed);
  std::ofstream reports(log, std::ios::app);
  std::ofstream(log + ".started").flush();
  const auto report = [&](const std::string& key) { reports << key << '\n' << std::flush; };
  if (compiles) {
    KernelBuilder builder({.cache_path = path, .memory_cache_only = false, .warn = {}});
    for (int i = 0;; ++i) {
      const std::string entry = fmt::format("k_{}_{}", seed, i);
      const auto built = builder.build(
          {{"main", entry, "extern \"C\" __global__ void __launch_bounds__(64) " + entry + "(float* x) { x[0] = 1; }\n", "sm_90a",
            64, 0}},
          "p");
      if (built) report((*built)[0].report.key);
    }
  }
  Result<Store> store = Store::open(path, {.limit_bytes = 0});
  for (int i = 0; store; ++i) {
    const std::string name = fmt::format("{}.{}", seed, i);
    switch (random() % 8) {
      case 0:
        (void)store->gc({});
        break;
      case 1:
        if (const Result<Store> from = Store::open(other, {.access = cache::Access::immutable}))
          (void)cache::merge(*store, *from);
        break;
      case 2: {
        const std::vector<Entry> several{made(name + "a", 3000), made(name + "b", 40000), made(name + "c", 90000)};
        if (store->apply({.entries = several, .counters = {{"stored", 3}}})) {
          for (const Entry& entry : several) report(entry.key);
        }
        break;
      }
      default: {
        const Entry entry = made(name, 20000);
        if (store->put(entry)) report(entry.key);
      }
    }
  }
  _exit(1);
}

/// Lets the child have so many seconds of processor time, however busy the machine is; gives up after a minute.
void let_work(pid_t child, double seconds) {
  clockid_t clock{};
  if (clock_getcpuclockid(child, &clock) != 0) return;
  const auto used = [clock] {
    timespec time{};
    (void)clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double until = used() + seconds;
  const Clock::time_point start = Clock::now();
  while (used() < until && seconds_since(start) < 60) usleep(200);
}

}  // namespace

Report kill_rounds(std::size_t count, std::uint64_t seed) {
  Report outcome;
  std::mt19937_64 random(seed);
  std::size_t reported = 0;
  const bool nvrtc = [] {  // asked in a child: this process must not have opened NVRTC when it forks
    const pid_t child = fork();
    if (child == 0) _exit(Compiler::open() ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    return status == 0;
  }();
  constexpr std::size_t rounds_a_file = 40;
  for (std::size_t round = 0; round < count && outcome.problems.size() < 20;) {
    const Folder folder;
    const std::string path = folder.file("cache.db"), other = folder.file("other.db"), log = folder.file("log");
    if (Result<Store> store = Store::open(other)) {
      for (int i = 0; i < 5; ++i) (void)store->put(made(fmt::format("other{}", i), 10000));
    }
    for (std::size_t r = 0; r < rounds_a_file && round < count; ++r, ++round) {
      const std::uint64_t child_seed = random();
      const bool compiles = nvrtc && round % 10 == 9;
      const pid_t child = fork();
      if (child == 0) work_until_killed(path, other, log, child_seed, compiles);
      for (int i = 0; i < 5000 && !fs::exists(log + ".started"); ++i) usleep(1000);
      fs::remove(log + ".started");
      const double share = static_cast<double>(random() % 1000) / 1000;
      let_work(child, compiles ? 0.2 + 0.6 * share : 0.001 + 0.06 * share);
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
      const std::string what = fmt::format("round {}", round);
      const Result<Store> store = Store::open(path);
      if (!store) {
        outcome.problems.push_back(what + ": cannot be opened: " + store.error().message);
        break;
      }
      const bool full = r + 1 == rounds_a_file || round + 1 == count || r % 8 == 7;
      if (full) {  // reading everything each time would leave little time to kill
        const auto verified = store->verify();
        if (!verified || verified->structure != "ok" || !verified->damaged.empty())
          outcome.problems.push_back(what + ": does not verify: " + (verified ? verified->structure : verified.error().message));
      }
      const auto listed = store->list();
      if (!listed) {
        outcome.problems.push_back(what + ": " + listed.error().message);
        break;
      }
      std::set<std::string> held;
      for (const Entry& entry : *listed) held.insert(entry.key);
      std::ifstream reports(log);
      std::size_t here = 0;
      for (std::string key; std::getline(reports, key); ++here) {
        if (reports.eof()) break;  // the line the kill cut off
        if (held.count(key) == 0) outcome.problems.push_back(what + ": " + key + " was reported stored and is lost");
      }
      if (full && (r + 1 == rounds_a_file || round + 1 == count)) reported += here;
    }
  }
  outcome.summary = fmt::format("{} kills{}; {} kernels were reported stored, all of them are there", count,
                                nvrtc ? ", a tenth of them while compiling" : " (no NVRTC: none while compiling)", reported);
  return outcome;
}

Report shipped_damage(std::size_t count, std::uint64_t seed) {
  Report outcome;
  const Folder folder;
  constexpr int kernels = 8;
  constexpr std::size_t size = 20000;
  {
    Result<Store> store = Store::open(folder.file("work.db"));
    for (int i = 0; store && i < kernels; ++i) (void)store->put(made(fmt::format("k{}", i), size));
    if (!store || !cache::export_file(*store, folder.file("shipped.db"))) {
      outcome.problems.emplace_back("the file cannot be made");
      return outcome;
    }
  }
  const std::string whole = read_file(folder.file("shipped.db"));
  std::mt19937_64 random(seed);
  std::size_t missed = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::string damaged = whole;
    if (i % 8 == 7)
      damaged.resize(random() % damaged.size());
    else
      damaged[random() % damaged.size()] ^= static_cast<char>(1 << (random() % 8));
    std::ofstream(folder.file("damaged.db"), std::ios::binary | std::ios::trunc) << damaged;
    const Result<Store> store = Store::open(folder.file("damaged.db"), {.access = cache::Access::immutable});
    for (int k = 0; k < kernels; ++k) {
      const Answer answer = store ? ask(*store, fmt::format("k{}", k), size) : Answer::miss;
      missed += answer == Answer::miss ? 1 : 0;
      if (answer == Answer::wrong) outcome.problems.push_back(fmt::format("case {}: wrong bytes", i));
    }
  }
  if (missed == 0) outcome.problems.emplace_back("no damage was noticed");
  outcome.summary = fmt::format("{} damaged files of {} bytes: {} of {} look-ups missed, the others were right", count,
                                whole.size(), missed, count * kernels);
  return outcome;
}

namespace {

/// What was measured of a large store, and what is promised of one of 100,000 kernels. Rates and the time of gc are of processor
/// time, so that other work on the machine does not decide.
struct LargeFigures {
  double open_ms = 0, lookup_us = 0, lookups_a_cpu_second = 0, sizes_seconds = 0, gc_cpu_seconds = 0;

  void check(std::vector<std::string>& problems) const {
    const auto most = [&](const char* what, double found, double allowed) {
      if (found > allowed) problems.push_back(fmt::format("{}: {:.3g}, at most {} is allowed", what, found, allowed));
    };
    most("ms to open", open_ms, 10);
    most("us to look up", lookup_us, 100);
    most("us of processor time a concurrent look-up", 1e6 / lookups_a_cpu_second, 100);  // two processors: 20,000 a second
    most("seconds for the sizes", sizes_seconds, 5);
    most("seconds of processor time for gc", gc_cpu_seconds, 20);
  }
};

}  // namespace

Report large_store(std::size_t entries) {
  Report outcome;
  const Folder folder;
  const std::string path = folder.file("large.db");
  constexpr std::size_t size = 6000, batch = 500;
  const Clock::time_point filling = Clock::now();
  {
    Result<Store> store = Store::open(path, {.limit_bytes = 0});
    for (std::size_t i = 0; store && i < entries; i += batch) {
      std::vector<Entry> several;
      for (std::size_t j = i; j < std::min(i + batch, entries); ++j) several.push_back(made(fmt::format("k{}", j), size));
      if (const auto ok = store->apply({.entries = several}); !ok) {
        outcome.problems.push_back(ok.error().message);
        return outcome;
      }
    }
  }
  const double fill_seconds = seconds_since(filling);
  std::vector<double> opens;
  for (int i = 0; i < 21; ++i) {
    const Clock::time_point start = Clock::now();
    (void)Store::open(path);
    opens.push_back(seconds_since(start) * 1e3);
  }
  Result<Store> store = Store::open(path, {.limit_bytes = 0});
  if (!store) {
    outcome.problems.push_back(store.error().message);
    return outcome;
  }
  std::mt19937_64 random(5);
  std::vector<std::string> keys;
  for (int i = 0; i < 4000; ++i) keys.push_back(made(fmt::format("k{}", random() % entries), 0).key);
  std::vector<double> lookups;
  for (const std::string& key : keys) {
    const Clock::time_point start = Clock::now();
    const auto found = store->get(key);
    lookups.push_back(seconds_since(start) * 1e6);
    if (!found || !*found) outcome.problems.push_back("a kernel is missing");
  }
  std::atomic<std::size_t> done{0};
  const double cpu = cpu_seconds();
  const Clock::time_point start = Clock::now();
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = static_cast<std::size_t>(t); seconds_since(start) < 1; i += 2) {
        if (store->get(keys[i % keys.size()])) ++done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double wall_rate = static_cast<double>(done) / seconds_since(start),
               cpu_rate = static_cast<double>(done) / (cpu_seconds() - cpu);
  const Clock::time_point stats = Clock::now();
  (void)store->sizes();
  const double stats_seconds = seconds_since(stats);
  const Clock::time_point collecting = Clock::now();
  const double gc_cpu = cpu_seconds();
  const auto gc = store->gc({});
  const double gc_seconds = seconds_since(collecting);
  if (!gc || gc->damaged != 0) outcome.problems.emplace_back("gc failed");
  const LargeFigures figures{median(opens), median(lookups), cpu_rate, stats_seconds, cpu_seconds() - gc_cpu};
  if (entries >= 100'000) figures.check(outcome.problems);
  outcome.summary = fmt::format(
      "{} kernels of {} bytes, filled in {:.1f} s: open {:.2f} ms, look-up {:.0f} us (medians), {:.0f} look-ups/s by two threads "
      "({:.0f} a second of processor time), sizes {:.2f} s, gc {:.1f} s ({:.1f} s of processor time)",
      entries, size, fill_seconds, figures.open_ms, figures.lookup_us, wall_rate, cpu_rate, stats_seconds, gc_seconds,
      figures.gc_cpu_seconds);
  return outcome;
}

namespace {

std::vector<KernelSource> small_sources(int count) {
  std::vector<KernelSource> sources;
  for (int i = 0; i < count; ++i) {
    const std::string entry = fmt::format("k_{}", i);
    sources.push_back({fmt::format("kernel{}", i), entry,
                       "extern \"C\" __global__ void __launch_bounds__(64) " + entry + "(float* x) { x[threadIdx.x] += 1; }\n",
                       "sm_90a", 64, 0});
  }
  return sources;
}

int wait_for(const std::vector<pid_t>& children) {
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed += status != 0 ? 1 : 0;
  }
  return failed;
}

}  // namespace

Report cold_start(int processes, int kernels) {
  Report outcome;
  const Folder folder, leases;
  const std::vector<KernelSource> sources = small_sources(kernels);
  std::vector<pid_t> children;
  const Clock::time_point start = Clock::now();
  for (int p = 0; p < processes; ++p) {
    const pid_t child = fork();
    if (child == 0) {
      int warned = 0;
      KernelBuilder builder({.cache_path = folder.file("cache.db"),
                             .memory_cache_only = false,
                             .warn = [&](const std::string& text) { warned += text.starts_with("Waiting") ? 0 : 1; },
                             .lease_folder = leases.path(),
                             .lease_timeout = std::chrono::seconds(60)});
      const auto built = builder.build(sources, "plan");
      std::ofstream(folder.file(fmt::format("compiled.{}", getpid()))) << builder.counters().compiles;
      _exit(built && warned == 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  if (const int failed = wait_for(children); failed != 0)
    outcome.problems.push_back(fmt::format("{} of {} processes failed or were warned", failed, processes));
  const double seconds = seconds_since(start);
  int compiled = 0;
  for (const auto& file : fs::directory_iterator(folder.path())) {
    if (!file.path().filename().string().starts_with("compiled.")) continue;
    int count = 0;
    std::ifstream(file.path()) >> count;
    compiled += count;
  }
  if (compiled != kernels) outcome.problems.push_back(fmt::format("{} compiles of {} kernels", compiled, kernels));
  outcome.summary = fmt::format("{} processes, {} kernels, {} compiles, {:.1f} s", processes, kernels, compiled, seconds);
  return outcome;
}

Report warm_start(int processes) {
  Report outcome;
  const Folder folder;
  AttentionBackward problem;
  problem.seqlen_q = problem.seqlen_k = 2048;
  problem.heads = problem.kv_heads = 4;
  problem.mask = Mask::causal;
  const auto prepare = [&](const std::string& result) {
    const Clock::time_point start = Clock::now();
    const double cpu = cpu_seconds();
    EngineOptions options;
    options.cache_path = folder.file("cache.db");
    options.target = Target{};
    auto engine = Engine::create(std::move(options));
    if (!engine) return 1;
    const auto kernel = engine->prepare(problem);
    if (!kernel) return 1;
    std::ofstream(result) << seconds_since(start) * 1e3 << ' ' << (cpu_seconds() - cpu) * 1e3 << ' '
                          << std::all_of(kernel->reports().begin(), kernel->reports().end(),
                                         [](const KernelReport& r) { return r.cache_hit; });
    return 0;
  };
  std::vector<double> wall, cpu;
  for (int p = 0; p < processes + 1; ++p) {  // the first fills the cache
    const pid_t child = fork();
    if (child == 0) _exit(prepare(folder.file("result")));
    if (wait_for({child}) != 0) {
      outcome.problems.emplace_back("a process could not prepare");
      return outcome;
    }
    double wall_ms = 0, cpu_ms = 0;
    int hit = 0;
    std::ifstream(folder.file("result")) >> wall_ms >> cpu_ms >> hit;
    if (p == 0) continue;
    if (hit == 0) outcome.problems.emplace_back("a kernel was not in the cache");
    wall.push_back(wall_ms);
    cpu.push_back(cpu_ms);
  }
  outcome.summary =
      fmt::format("{} new processes, engine made and plan prepared from the cache: median {:.2f} ms, {:.2f} ms of processor time",
                  processes, median(wall), median(cpu));
  return outcome;
}

}  // namespace ordo::test
