#include "cli/overlap_run.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "cli/options.hpp"
#include "codegen/overlap/planner.hpp"
#include "ordo/peers.hpp"
#include "runtime/device.hpp"

namespace ordo::cli {
namespace {

std::chrono::milliseconds timeout_of(const OverlapRunOptions& options) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout * 1000));
}

/// What the verbs of the other family take from their options.
Options cache_options(const OverlapRunOptions& options) {
  Options out;
  out.cache = options.cache;
  return out;
}

Result<int> run_rank(const OverlapRunOptions& options, const World& world,
                     const std::function<Result<int>(const measure::RankBench&)>& body) {
  CommunicatorOptions with;
  with.timeout = timeout_of(options);
  auto transport = parse_peer_transport(options.transport);
  if (!transport) return transport.error();
  with.transport = *transport;
  auto bench = measure::Workbench::open(world.local_rank, builder_options(cache_options(options)));
  if (!bench) return bench.error();
  auto target = target_of_device(world.local_rank);
  if (!target) return target.error();
  auto engine = make_engine(cache_options(options), *target);
  if (!engine) return engine.error();
  auto communicator = Communicator::create(world, with);
  if (!communicator) return communicator.error();
  return body({*communicator, *engine, *bench});
}

Result<int> run_threads(const OverlapRunOptions& options, int ranks,
                        const std::function<Result<int>(const measure::RankBench&)>& body) {
  auto devices = device_count();
  if (!devices) return devices.error();
  if (*devices < ranks)
    return Error{ErrorCode::no_device,
                 fmt::format("{} ranks need {} GPUs, and there are {}; ask for fewer with --ranks", ranks, ranks, *devices)};
  const std::string address = fmt::format("unix:@ordo-{}", ::getpid());
  std::vector<Result<int>> endings(static_cast<std::size_t>(ranks), Result<int>(0));
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto world = join_world(address, rank, ranks, timeout_of(options));
      if (world) world->local_rank = rank;
      endings[static_cast<std::size_t>(rank)] = world ? run_rank(options, *world, body) : Result<int>(world.error());
    });
  }
  for (std::thread& thread : threads) thread.join();
  int code = 0;
  for (const Result<int>& ending : endings) {
    if (!ending) return ending.error();
    code = std::max(code, *ending);
  }
  return code;
}

}  // namespace

void add_overlap_run_options(CLI::App& verb, OverlapRunOptions& options) {
  verb.add_option("family", options.family, "overlap")->required()->type_name("overlap")->check(CLI::IsMember({"overlap"}));
  const auto shape = [&](const char* name, auto& value, const char* help, const char* type) {
    return verb.add_option(name, value, help)->type_name(type)->group("Product");
  };
  shape("--op", options.op,
        "all-gather-gemm, all-to-all-gemm, gemm-reduce-scatter, gemm-all-reduce or gemm-all-to-all (all-gather-gemm)", "OP");
  shape("--m", options.m, "Rows of the product that one rank computes (8192)", "N")->check(kInteger);
  shape("--n", options.n, "Its columns (8192)", "N")->check(kInteger);
  shape("--k", options.k, "Its inner length (8192)", "N")->check(kInteger);
  shape("--dtype", options.dtype, "Of A and B: bf16 or fp16 (bf16)", "TYPE");
  shape("--a", options.a, "How A is stored: row, or column for a weight gradient (row)", "STORAGE");
  shape("--b", options.b, "How B is stored: row or column (column)", "STORAGE");
  shape("--out", options.out, "Type of D: same or fp32 (same)", "TYPE");
  verb.add_flag("--bias", options.bias, "Add one value a column")->group("Product");
  shape("--activation", options.activation, "none, relu, gelu or silu (none)", "NAME");
  auto* suite = verb.add_flag("--suite", options.suite, "Instead: the shapes that every claim about overlap rests on");
  verb.add_option("--rows", options.rows, "Only rows of the suite whose text holds this, e.g. op=gemm-reduce-scatter")
      ->type_name("TEXT")
      ->needs(suite);
  auto* plan =
      verb.add_option("--plan", options.plan, "An overlap-plan's text, in place of the planner's choice")->type_name("PLAN");
  verb.add_option("--partial", options.partial, "Type that partial sums travel in: same or fp32 (same)")->type_name("TYPE");
  verb.add_option_function<std::string>(
          "--route", [&options](const std::string& text) { options.route = *parse_overlap_route(text); },
          "Of slices: direct (to where they are needed) or ring (direct); of a suite, only the products that can take it")
      ->type_name("ROUTE")
      ->check([](const std::string& text) {
        const auto route = parse_overlap_route(text);
        return route ? std::string() : route.error().message;
      })
      ->excludes(plan);
  verb.add_option("--method", options.method, "auto: where it pays; overlapped; or apart: one behind the other (auto)")
      ->type_name("NAME")
      ->check(CLI::IsMember({"auto", "overlapped", "apart"}));
  verb.add_option("--ranks", options.ranks, "GPUs of this process (2); under a launcher, as many as it started")
      ->type_name("N")
      ->check(kInteger)
      ->check(CLI::Range(1, 32));
  verb.add_option("--transport", options.transport, "automatic, vmm, ipc or nccl (automatic)")->type_name("NAME");
  verb.add_option("--timeout", options.timeout, "Seconds that a rank waits for another at most (30)")
      ->type_name("S")
      ->check(CLI::Range(0.1, 3600.0));
  verb.add_option("--seed", options.seed, "Seed of the inputs (0)")->check(CLI::NonNegativeNumber)->type_name("N");
  verb.add_option("--cache", options.cache, "Cache file (as for the other verbs)")->type_name("FILE");
  verb.add_flag("--json", options.json, "Print JSON, and nothing else, on standard output");
}

Result<std::vector<OverlapGemm>> resolve_products(const OverlapRunOptions& options, int ranks,
                                                  const std::vector<std::string>& suite) {
  std::vector<std::string> texts;
  if (options.suite) {
    for (const std::string& line : suite)
      if (line.find(options.rows) != std::string::npos) texts.push_back(fmt::format("{} ranks={}", line, ranks));
    if (texts.empty())
      return Error{ErrorCode::invalid_argument, fmt::format("--rows {}: no row of the suite holds it", options.rows)};
  } else {
    texts.push_back(fmt::format("overlap-gemm op={} m={} n={} k={} ranks={} dtype={} a={} b={} out={} bias={} activation={}",
                                options.op, options.m, options.n, options.k, ranks, options.dtype, options.a, options.b,
                                options.out, options.bias ? "yes" : "no", options.activation));
  }
  const OverlapRoute route = options.route_or_direct();
  std::vector<OverlapGemm> out;
  for (const std::string& text : texts) {
    auto problem = parse_overlap_gemm(text);
    if (!problem) return problem.error();
    const auto routes = routes_of(problem->op);
    if (!options.suite || std::find(routes.begin(), routes.end(), route) != routes.end()) out.push_back(*problem);
  }
  if (out.empty())
    return Error{ErrorCode::invalid_argument, fmt::format("--route {}: no row of the suite can take it", to_string(route))};
  return out;
}

std::vector<OverlapRoute> routes_of(OverlapOp op) {
  std::vector<OverlapRoute> out{OverlapRoute::direct};
  const auto exchange = overlap::exchange_of(op);
  if (exchange && overlap::check_route(*exchange, overlap::Route::ring)) out.push_back(OverlapRoute::ring);
  return out;
}

Result<OverlappedGemmOptions> resolve_how(const OverlapRunOptions& options, const OverlapGemm& problem, const Target& target,
                                          OverlapRoute route) {
  OverlappedGemmOptions out;
  if (options.method != "auto") out.overlap = options.method == "overlapped";
  if (options.plan) {
    auto plan = parse_overlap_plan(*options.plan);
    if (!plan) return plan.error();
    out.plan = *plan;
    return out;
  }
  auto partial = parse_output_type(options.partial);
  if (!partial) return partial.error();
  if (*partial == OutputType::same && route == OverlapRoute::direct) return out;
  auto choice = make_overlap_plan(problem, target, true, route);
  if (!choice) return choice.error();
  out.plan = choice->plan;
  out.plan->partial = *partial;
  return out;
}

void compile_all(const OverlapRunOptions& options, const measure::RankBench& with, const std::vector<OverlapGemm>& problems,
                 bool alone_too) {
  constexpr unsigned kMostThreads = 8;
  std::vector<OverlapPlan> plans;
  for (const OverlapGemm& problem : problems) {
    const auto how = resolve_how(options, problem, with.engine.target(), options.route_or_direct());
    const auto choice = make_overlap_plan(problem, with.engine.target());
    if (!how || !choice) continue;
    plans.push_back(how->plan.value_or(choice->plan));
    if (alone_too) plans.push_back(measure::plan_alone(plans.back(), with.engine.target()));
  }
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < plans.size(); i = next++) (void)with.engine.prepare(plans[i]);
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::min(kMostThreads, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
}

Result<int> run_ranks(const OverlapRunOptions& options, const std::function<Result<int>(const measure::RankBench&)>& body) {
  constexpr std::int64_t kUsual = 2;
  auto world = world_from_environment(timeout_of(options));
  if (!world) return world.error();
  if (world->ranks == 1) return run_threads(options, static_cast<int>(options.ranks > 0 ? options.ranks : kUsual), body);
  if (options.ranks > 0 && options.ranks != world->ranks)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("--ranks {}: the launcher started {}; leave --ranks out", options.ranks, world->ranks)};
  return run_rank(options, *world, body);
}

}  // namespace ordo::cli
