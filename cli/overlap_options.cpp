#include "cli/overlap_options.hpp"

#include <fmt/format.h>

#include "cli/options.hpp"

namespace ordo::cli {

void add_overlap_options(CLI::App& verb, OverlapOptions& options) {
  verb.add_option("family", options.family, "overlap")->required()->type_name("overlap")->check(CLI::IsMember({"overlap"}));
  verb.add_option("--op", options.op,
                  "all-gather-gemm, all-to-all-gemm, gemm-reduce-scatter, gemm-all-reduce or gemm-all-to-all (all-gather-gemm)")
      ->type_name("OP");
  const auto size = [&](const char* name, std::int64_t& value, const char* help) {
    verb.add_option(name, value, help)->type_name("N")->check(kInteger);
  };
  size("--m", options.m, "Rows of the product that one rank computes (8192)");
  size("--n", options.n, "Its columns (8192)");
  size("--k", options.k, "Its inner length (8192)");
  size("--ranks", options.ranks, "GPUs (2)");
  verb.add_flag("--no-peer-access", options.no_peer_access, "The ranks cannot map each other's memory");
  verb.add_option("--route", options.route, "Of slices: direct (to where they are needed) or ring (direct)")->type_name("ROUTE");
  verb.add_option("--target", options.target, "GPU to plan for: h100, h200, h800, h20 or sm_90a:SMS (h200)")->type_name("NAME");
  verb.add_flag("--json", options.json, "Print JSON, and nothing else, on standard output");
}

Result<OverlapQuestion> resolve_overlap(const OverlapOptions& options) {
  OverlapQuestion out;
  auto exchange = overlap::parse_exchange(options.op);
  if (!exchange) return exchange.error();
  auto target = parse_target(options.target.value_or("h200"));
  if (!target) return target.error();
  auto route = parse_overlap_route(options.route);
  if (!route) return route.error();
  out.route = *route;
  constexpr std::int64_t kMostRanks = 1 << 20;  // the schedule says how many it takes
  if (options.ranks < 1 || options.ranks > kMostRanks) {
    return Error{ErrorCode::invalid_argument, fmt::format("--ranks {} is not a number of GPUs", options.ranks)};
  }
  out.target = *target;
  out.of = {.exchange = *exchange,
            .ranks = static_cast<int>(options.ranks),
            .m = options.m,
            .n = options.n,
            .k = options.k,
            .peer_access = !options.no_peer_access};
  auto op = parse_overlap_op(options.op);  // their names are those of the exchanges
  if (!op) return op.error();
  out.problem = {.op = *op, .m = options.m, .n = options.n, .k = options.k, .ranks = options.ranks};
  return out;
}

}  // namespace ordo::cli
