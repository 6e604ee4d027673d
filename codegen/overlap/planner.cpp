#include "codegen/overlap/planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

namespace ordo::overlap {
namespace {

constexpr std::string_view kTargets =
#include "codegen/overlap/targets.inc"
    ;

constexpr std::array kSubSlices{1, 2, 4, 8};
constexpr double kTie = 0.003;    ///< more pieces must gain at least that share: fewer are easier on the link and the host
constexpr double kInHand = 0.75;  ///< of the time that others have for what is waited for first: a quarter is kept in hand
constexpr int kTileRows = 128, kTileColumns = 256;

// Whether rows of m are cut into slices; else its columns (to_all) or k (all_to_all).
bool cuts_rows(Exchange exchange) {
  return exchange == Exchange::all_gather || exchange == Exchange::reduce_scatter || exchange == Exchange::all_reduce;
}

// Bytes of one slice on its way to one rank.
double slice_bytes(const Case& c) {
  const double ranks = c.ranks, m = static_cast<double>(c.m), n = static_cast<double>(c.n), k = static_cast<double>(c.k);
  switch (c.exchange) {
    case Exchange::all_gather:
    case Exchange::all_to_all:
      return m * k / ranks * c.element_bytes;
    default:
      return m * n / ranks * c.element_bytes;
  }
}

// Rows of which sub-slices are cut, and of chunk `sub`: whole tiles.
double chunk_share(const Case& c, int sub_slices, int slice, int sub) {
  const bool rows = cuts_rows(c.exchange);
  const long long begin = rows ? part_begin(c.m, c.ranks, 1, slice) : 0,
                  end = rows ? part_begin(c.m, c.ranks, 1, slice + 1) : c.m;
  const long long size =
      part_begin(end - begin, sub_slices, kTileRows, sub + 1) - part_begin(end - begin, sub_slices, kTileRows, sub);
  const double of_m = static_cast<double>(size) / static_cast<double>(c.m);
  return rows ? of_m : of_m / c.ranks;  // of the whole product, and of what the whole exchange carries to one rank
}

// Tiles of the product that an SM computes, one after another.
double waves_of(const Case& c, const Target& target) {
  const auto tiles = [](std::int64_t size, int tile) {
    const std::int64_t whole = (size + tile - 1) / tile;
    return static_cast<double>(whole);
  };
  return std::max(1.0, tiles(c.m, kTileRows) * tiles(c.n, kTileColumns) / target.sm_count);
}

// The product alone: full waves of tiles.
double gemm_seconds(const Case& c, const Target& target, const Constants& constants) {
  const double waves = waves_of(c, target);
  const double last = std::ceil(waves) - waves;
  // Tiles of a last, unfilled wave run a little faster, for the card is limited by power: half of the loss shows.
  const double tile_flops = 2.0 * kTileRows * kTileColumns * static_cast<double>(c.k);
  return (waves + last / 2) * tile_flops * target.sm_count / constants.gemm_flops;
}

double collective_seconds(const Case& c, const Constants& constants) {
  if (c.ranks == 1) return 0;
  const double rounds = (c.ranks - 1) * (c.exchange == Exchange::all_reduce ? 2.0 : 1.0);
  return constants.nccl_latency + rounds * slice_bytes(c) / constants.nccl_bytes;
}

// What the first tiles wait for, which the simulation does not see: its steps are slices, the kernel's are tiles.
double first_wait(const Case& c, const Advice& a, double waves, int sub_slices) {
  if (c.ranks == 1) return 0;
  // A tile holds its sums over all of k: it has its own rank's part to compute before it needs the first chunks of the others.
  if (c.exchange == Exchange::all_to_all) {
    const double of_a_source = a.compute / waves / c.ranks;
    return (c.ranks - 1) * std::max(0.0, a.step_communication / sub_slices - kInHand * of_a_source);
  }
  if (pattern_of(c.exchange) != Pattern::reduce) return 0;
  // Partial sums are added tile by tile: those of a rank's own slice wait where the first chunk is not computed and moved by the
  // others within a slice's time.
  return std::max(0.0, (a.step_compute + a.step_communication) / sub_slices - kInHand * a.step_compute);
}

std::string explain(const Case& c, const Advice& a) {
  const std::string_view size = c.exchange == Exchange::all_gather || c.exchange == Exchange::all_to_all ? "n" : "k of this rank";
  const std::string limits =
      fmt::format("{} is {:.0f}, and a slice moves no slower than it is computed from {:.0f} on", size, a.size, a.threshold);
  if (c.ranks == 1) return "one rank exchanges nothing";
  if (!c.peer_access)
    return "without peer access NCCL moves the slices, whose kernels need SMs that the product would hold: first one, then the "
           "other";
  if (!a.overlap) {
    return fmt::format("overlapped it would take {:.3f} ms, one after the other {:.3f} ms ({})", a.overlapped * 1e3,
                       a.sequential * 1e3, limits);
  }
  return fmt::format("{:.3f} ms of {:.3f} ms communication stay exposed; one after the other would take {:.3f} ms ({})",
                     a.exposed * 1e3, a.communication * 1e3, a.sequential * 1e3, limits);
}

Result<void> check(const Case& c) {
  for (const auto& [name, size] : {std::pair{"m", c.m}, {"n", c.n}, {"k", c.k}}) {
    constexpr std::int64_t kMost = std::int64_t{1} << 31;
    if (size < 1 || size > kMost)
      return Error{ErrorCode::invalid_problem, fmt::format("{} is {}; it must be within 1 .. {}", name, size, kMost)};
  }
  return {};
}

}  // namespace

Constants constants_of(const Target& target) {
  static const nlohmann::json table = nlohmann::json::parse(kTargets);
  const bool known = table.contains(target.name);
  const nlohmann::json& row = table.at(known ? target.name : "h200");
  const double scale = known ? 1 : target.tensor_tflops / Target{}.tensor_tflops;
  return {.measured = known && row.at("measured").get<bool>(),
          .gemm_flops = row.at("gemm_tflops").get<double>() * scale * 1e12,
          .copy_bytes = row.at("copy_gbps").get<double>() * 1e9,
          .copy_latency = row.at("copy_latency_us").get<double>() * 1e-6,
          .nccl_bytes = row.at("nccl_gbps").get<double>() * 1e9,
          .nccl_latency = row.at("nccl_latency_us").get<double>() * 1e-6,
          .beside_copy = row.at("beside_copy").get<double>()};
}

Result<StepSchedule> schedule_of(const Case& c, Route route, int sub_slices) {
  if (auto checked = check(c); !checked) return checked.error();
  const double whole = slice_bytes(c) * c.ranks;
  return make_steps({c.exchange, route, c.ranks, sub_slices, [=](int, int, int slice, int sub) {
                       return static_cast<std::int64_t>(whole * chunk_share(c, sub_slices, slice, sub));
                     }});
}

TimelineCosts costs_of(const Case& c, const Target& target, int sub_slices) {
  const Constants constants = constants_of(target);
  const double whole = gemm_seconds(c, target, constants) * (1 + (c.ranks > 1 ? constants.beside_copy : 0));
  TimelineCosts costs;
  costs.compute = [=](int, const Step& step) { return whole * chunk_share(c, sub_slices, step.slice, step.sub); };
  costs.bytes_per_second = constants.copy_bytes;
  costs.transfer_latency = constants.copy_latency;
  return costs;
}

Result<Advice> advise(const Case& c, const Target& target, Route route) {
  if (auto checked = check(c); !checked) return checked.error();
  const Constants constants = constants_of(target);
  const bool arrives = pattern_of(c.exchange) == Pattern::gather;
  Advice out;
  out.compute = gemm_seconds(c, target, constants);
  out.communication = collective_seconds(c, constants);
  out.sequential = out.compute + out.communication;
  out.step_compute = out.compute / c.ranks;
  out.step_communication = c.ranks > 1 ? constants.copy_latency + slice_bytes(c) / constants.copy_bytes : 0;
  out.size = static_cast<double>(arrives ? c.n : c.k);
  out.threshold = constants.gemm_flops / constants.copy_bytes * c.element_bytes / 2;
  out.hides = out.step_communication <= out.step_compute;
  const double waves = waves_of(c, target);
  for (const int sub : kSubSlices) {
    auto schedule = schedule_of(c, route, sub);
    if (!schedule) return schedule.error();
    auto timeline = simulate_steps(*schedule, costs_of(c, target, sub));
    if (!timeline) return timeline.error();
    const double wait = first_wait(c, out, waves, sub);
    const Choice& choice = out.choices.emplace_back(Choice{sub, timeline->makespan + wait, timeline->exposed + wait});
    if (sub == 1 || choice.overlapped < out.overlapped * (1 - kTie)) {
      out.sub_slices = sub;
      out.overlapped = choice.overlapped;
      out.exposed = choice.exposed;
    }
  }
  out.overlap = c.ranks > 1 && c.peer_access && out.overlapped < out.sequential;
  if (!out.overlap) out.sub_slices = 1;
  out.reason = explain(c, out);
  return out;
}

}  // namespace ordo::overlap
