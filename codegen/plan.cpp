// Plan: names, canonical text and the rules of the type itself. Whether a plan fits a problem is in fit.cpp.
#include "ordo/plan.hpp"

#include <fmt/format.h>

#include <charconv>

#include "codegen/fields.hpp"
#include "codegen/fit.hpp"
#include "codegen/generate/config.hpp"
#include "codegen/limits.hpp"

namespace ordo {
namespace {

constexpr std::string_view kNoun = "attention-backward";

std::string to_text(const std::optional<Arrival>& arrival) {
  if (!arrival) return "none";
  return fmt::format("visits:{},compute:{},diagonal:{},partial:{},reduce:{},handover:{},unit:{},staging:{},hash:{:016x}",
                     to_string(arrival->visits), arrival->compute, arrival->diagonal, arrival->partial, arrival->reduce,
                     arrival->handover, arrival->unit, arrival->staging, arrival->hash);
}

Result<std::uint64_t> read_hash(std::string_view value) {
  std::uint64_t hash = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), hash, 16);
  if (value.size() == 16 && error == std::errc{} && end == value.data() + value.size()) return hash;
  return Error{ErrorCode::invalid_argument, fmt::format("arrival hash {} is not 16 hexadecimal digits", text::quote(value))};
}

/// "none", or the parts in that order.
Result<std::optional<Arrival>> parse_arrival(std::string_view text) {
  if (text == "none") return std::optional<Arrival>{};
  Arrival arrival;
  const std::pair<std::string_view, int*> numbers[] = {{"compute", &arrival.compute},   {"diagonal", &arrival.diagonal},
                                                       {"partial", &arrival.partial},   {"reduce", &arrival.reduce},
                                                       {"handover", &arrival.handover}, {"unit", &arrival.unit},
                                                       {"staging", &arrival.staging}};
  std::string_view rest = text;
  const auto take = [&](std::string_view name) -> std::optional<std::string_view> {
    if (!rest.starts_with(name) || rest.substr(name.size(), 1) != ":") return std::nullopt;
    rest.remove_prefix(name.size() + 1);
    const std::string_view value = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), value.size() + 1));
    return value;
  };
  const Error malformed{ErrorCode::invalid_argument,
                        fmt::format("arrival={} is neither none nor visits:V,compute:N,diagonal:N,partial:N,reduce:N,handover:N,"
                                    "unit:N,staging:N,hash:H",
                                    text::quote(text))};
  const auto visits = take("visits");
  if (!visits) return malformed;
  auto read = parse_arrival_visits(*visits);
  if (!read) return read.error();
  arrival.visits = *read;
  for (const auto& [name, out] : numbers) {
    const auto value = take(name);
    if (!value) return malformed;
    auto number = text::read_integer("arrival " + std::string(name), *value, 0, limits::kMostNumbered);
    if (!number) return number.error();
    *out = static_cast<int>(*number);
  }
  const auto value = take("hash");
  if (!value || !rest.empty() || text.ends_with(',')) return malformed;
  auto hash = read_hash(*value);
  if (!hash) return hash.error();
  arrival.hash = *hash;
  return std::optional(arrival);
}

std::string to_text(const std::optional<StaticShape>& shape) {
  if (!shape) return "none";
  return fmt::format("batch:{},seqlen_q:{},seqlen_k:{},kv_heads:{}", shape->batch, shape->seqlen_q, shape->seqlen_k,
                     shape->kv_heads);
}

/// "none", or "batch:B,seqlen_q:N,seqlen_k:N,kv_heads:H" in that order.
Result<std::optional<StaticShape>> parse_static_shape(std::string_view text) {
  if (text == "none") return std::optional<StaticShape>{};
  const Error malformed{
      ErrorCode::invalid_argument,
      fmt::format("static_shape={} is neither none nor batch:B,seqlen_q:N,seqlen_k:N,kv_heads:H", text::quote(text))};
  StaticShape shape;
  const std::pair<std::string_view, std::int64_t*> parts[] = {
      {"batch:", &shape.batch}, {"seqlen_q:", &shape.seqlen_q}, {"seqlen_k:", &shape.seqlen_k}, {"kv_heads:", &shape.kv_heads}};
  for (const auto& [name, out] : parts) {
    const bool last = out == &shape.kv_heads;
    const std::size_t comma = text.find(',');
    if (last != (comma == std::string_view::npos) || !text.starts_with(name)) return malformed;
    const std::string_view value = text.substr(name.size(), last ? std::string_view::npos : comma - name.size());
    auto read =
        text::read_integer("static_shape " + std::string(name.substr(0, name.size() - 1)), value, 1, limits::kLongestSequence);
    if (!read) return read.error();
    *out = *read;
    if (!last) text.remove_prefix(comma + 1);
  }
  return std::optional(shape);
}

constexpr int kMostSharedBytes = 232448;  // a block may opt in to, CUDA C++ Programming Guide, compute capability 9.0

Result<void> check_range(std::string_view name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return Error{ErrorCode::invalid_plan, fmt::format("plan: {} is {}; it must be within {} .. {}", name, value, low, high)};
}

/// The tiles that a kernel exists for: what two consumer warpgroups hold in the registers setmaxnreg can give them.
Result<void> check_tiles(const Plan& plan) {
  if (plan.tile_q == 64 && plan.tile_kv * plan.head_dim == 128 * 128) return {};
  return Error{ErrorCode::invalid_plan,
               fmt::format("plan: no kernel exists for head_dim {} with tile_q {} and tile_kv {}; tile_q is 64, and tile_kv "
                           "128 at head_dim 128, 256 at head_dim 64",
                           plan.head_dim, plan.tile_q, plan.tile_kv)};
}

/// What the main kernel's shared memory holds: the largest block a Hopper SM runs.
Result<void> check_shared_memory(const Plan& plan) {
  if (plan.cluster == 2 && plan.head_dim != 128)
    return Error{ErrorCode::invalid_plan,
                 fmt::format("plan: cluster 2 exists for head_dim 128 only, not for {}; use cluster 1", plan.head_dim)};
  const int bytes = attention_backward::layout_of(device_config(plan)).bytes;
  if (bytes <= kMostSharedBytes) return {};
  return Error{
      ErrorCode::invalid_plan,
      fmt::format("plan: stages {}, cluster {} and dq_buffers {} need {} bytes of shared memory a block; sm_90a has {}; use "
                  "fewer stages or dq_buffers",
                  plan.stages, plan.cluster, plan.dq_buffers, bytes, kMostSharedBytes)};
}

/// The orders of schedule arrival: clocks small enough that their sums over a launch are exact.
Result<void> check_arrival(const Plan& plan) {
  if (plan.arrival.has_value() != (plan.schedule == Schedule::arrival)) {
    return Error{ErrorCode::invalid_plan,
                 fmt::format("plan: schedule {} {}; schedule arrival and the field arrival go together", to_string(plan.schedule),
                             plan.arrival ? "has arrival set" : "has arrival=none")};
  }
  if (!plan.arrival) return {};
  const Arrival& a = *plan.arrival;
  if (to_string(a.visits) == "unknown")
    return Error{ErrorCode::invalid_plan, "plan: arrival visits is not one of its named values"};
  const std::pair<std::string_view, int> clocks[] = {{"compute", a.compute}, {"diagonal", a.diagonal}, {"partial", a.partial},
                                                     {"reduce", a.reduce},   {"handover", a.handover}, {"unit", a.unit}};
  for (const auto& [name, value] : clocks) {
    if (auto checked = check_range("arrival " + std::string(name), value, 0, 1 << 24); !checked) return checked;
  }
  return check_range("arrival staging", a.staging, 0, 8);
}

}  // namespace

std::string_view to_string(Schedule schedule) {
  switch (schedule) {
    case Schedule::ascending:
      return "ascending";
    case Schedule::descending:
      return "descending";
    case Schedule::shift:
      return "shift";
    case Schedule::alternate:
      return "alternate";
    case Schedule::symmetric_shift:
      return "symmetric_shift";
    case Schedule::arrival:
      return "arrival";
  }
  return "unknown";
}

std::string_view to_string(Accumulate accumulate) {
  switch (accumulate) {
    case Accumulate::atomic:
      return "atomic";
    case Accumulate::ordered:
      return "ordered";
    case Accumulate::exact:
      return "exact";
  }
  return "unknown";
}

std::string_view to_string(ArrivalVisits visits) {
  switch (visits) {
    case ArrivalVisits::up:
      return "up";
    case ArrivalVisits::down:
      return "down";
    case ArrivalVisits::up_and_down:
      return "up_and_down";
    case ArrivalVisits::turn:
      return "turn";
    case ArrivalVisits::rotate:
      return "rotate";
    case ArrivalVisits::greedy:
      return "greedy";
  }
  return "unknown";
}

std::string_view to_string(ScheduleState state) {
  switch (state) {
    case ScheduleState::producer:
      return "producer";
    case ScheduleState::consumer:
      return "consumer";
  }
  return "unknown";
}

std::vector<Schedule> schedules_of(const Mask& mask) {
  std::vector<Schedule> out;
  for (const Schedule schedule : {Schedule::ascending, Schedule::descending, Schedule::shift, Schedule::alternate,
                                  Schedule::symmetric_shift, Schedule::arrival}) {
    if (check_mask(schedule, mask)) out.push_back(schedule);
  }
  return out;
}

Result<void> check_mask(Schedule schedule, Mask mask) {
  if (schedule == Schedule::shift && mask != Mask::full) {
    return Error{ErrorCode::invalid_plan,
                 "plan: schedule shift is for mask full only; for causal masks use alternate, arrival, "
                 "symmetric_shift, descending or ascending"};
  }
  if ((schedule == Schedule::alternate || schedule == Schedule::symmetric_shift) && mask != Mask::causal) {
    return Error{
        ErrorCode::invalid_plan,
        fmt::format("plan: schedule {} is for mask causal only; for full masks use shift, arrival, ascending or descending",
                    to_string(schedule))};
  }
  return {};
}

Result<Schedule> parse_schedule(std::string_view text) {
  return text::read_name(text, "schedule",
                         std::array{Schedule::ascending, Schedule::descending, Schedule::shift, Schedule::alternate,
                                    Schedule::symmetric_shift, Schedule::arrival});
}

Result<ArrivalVisits> parse_arrival_visits(std::string_view text) {
  return text::read_name(text, "arrival visits",
                         std::array{ArrivalVisits::up, ArrivalVisits::down, ArrivalVisits::up_and_down, ArrivalVisits::turn,
                                    ArrivalVisits::rotate, ArrivalVisits::greedy});
}

Result<Accumulate> parse_accumulate(std::string_view text) {
  return text::read_name(text, "accumulate", std::array{Accumulate::atomic, Accumulate::ordered, Accumulate::exact});
}

Result<ScheduleState> parse_schedule_state(std::string_view text) {
  return text::read_name(text, "schedule_state", std::array{ScheduleState::producer, ScheduleState::consumer});
}

Result<void> Plan::validate() const {
  if (to_string(dtype) == "unknown" || to_string(schedule) == "unknown" || to_string(accumulate) == "unknown" ||
      to_string(schedule_state) == "unknown") {
    return Error{ErrorCode::invalid_plan, "plan: dtype, schedule, accumulate or schedule_state is not one of its named values"};
  }
  const struct {
    std::string_view name;
    std::int64_t value, low, high;
  } ranges[] = {
      {"group", group, 1, limits::kMostNumbered}, {"stages", stages, 2, 3},      {"cluster", cluster, 1, 2},
      {"dq_buffers", dq_buffers, 1, 3},           {"workers", workers, 1, 1024}, {"shift_stride", shift_stride, 1, 64},
      {"head_group", head_group, 1, 1024},
  };
  for (const auto& range : ranges) {
    if (auto checked = check_range(range.name, range.value, range.low, range.high); !checked) return checked;
  }
  if (consumer_registers != 0) {
    // setmaxnreg takes multiples of 8; the producer warpgroup needs 24 of the 3 x 168 that the block launches with.
    if (auto checked = check_range("consumer_registers", consumer_registers, 168, 240); !checked) return checked;
    if (consumer_registers % 8 != 0)
      return Error{ErrorCode::invalid_plan,
                   fmt::format("plan: consumer_registers is {}; it must be a multiple of 8", consumer_registers)};
  }
  if (auto checked = check_tiles(*this); !checked) return checked;
  if (auto checked = check_shared_memory(*this); !checked) return checked;
  if (auto checked = check_mask(schedule, mask); !checked) return checked;
  if (auto checked = check_arrival(*this); !checked) return checked;
  if (schedule_state == ScheduleState::consumer && mask.expression() != nullptr)
    return Error{
        ErrorCode::invalid_plan,
        "plan: schedule_state consumer is not for masks by expression, of which the loader passes on what a tile sees; use "
        "producer"};
  if (!static_shape) return {};
  const std::pair<std::string_view, std::int64_t> sizes[] = {{"static_shape batch", static_shape->batch},
                                                             {"static_shape seqlen_q", static_shape->seqlen_q},
                                                             {"static_shape seqlen_k", static_shape->seqlen_k},
                                                             {"static_shape kv_heads", static_shape->kv_heads}};
  for (const auto& [name, size] : sizes) {
    if (auto checked = check_range(name, size, 1, limits::kLongestSequence); !checked) return checked;
  }
  return {};
}

std::string to_text(const Plan& plan) {
  return fmt::format(
      "{} dtype={} head_dim={} mask={} group={} schedule={} accumulate={} tile_q={} tile_kv={} stages={} cluster={} "
      "dq_buffers={} workers={} shift_stride={} head_group={} arrival={} schedule_state={} consumer_registers={} static_shape={}",
      kNoun, to_string(plan.dtype), plan.head_dim, to_string(plan.mask), plan.group, to_string(plan.schedule),
      to_string(plan.accumulate), plan.tile_q, plan.tile_kv, plan.stages, plan.cluster, plan.dq_buffers, plan.workers,
      plan.shift_stride, plan.head_group, to_text(plan.arrival), to_string(plan.schedule_state), plan.consumer_registers,
      to_text(plan.static_shape));
}

Result<Plan> parse_plan(std::string_view text) {
  Plan plan;
  const std::vector<text::Field> fields{text::parsed_field("dtype", plan.dtype, &parse_dtype),
                                        text::integer_field("head_dim", plan.head_dim),
                                        text::parsed_field("mask", plan.mask, &parse_mask),
                                        text::integer_field("group", plan.group),
                                        text::parsed_field("schedule", plan.schedule, &parse_schedule),
                                        text::parsed_field("accumulate", plan.accumulate, &parse_accumulate),
                                        text::integer_field("tile_q", plan.tile_q),
                                        text::integer_field("tile_kv", plan.tile_kv),
                                        text::integer_field("stages", plan.stages),
                                        text::integer_field("cluster", plan.cluster),
                                        text::integer_field("dq_buffers", plan.dq_buffers),
                                        text::integer_field("workers", plan.workers),
                                        text::integer_field("shift_stride", plan.shift_stride),
                                        text::integer_field("head_group", plan.head_group),
                                        text::parsed_field("arrival", plan.arrival, &parse_arrival),
                                        text::parsed_field("schedule_state", plan.schedule_state, &parse_schedule_state),
                                        text::integer_field("consumer_registers", plan.consumer_registers),
                                        text::parsed_field("static_shape", plan.static_shape, &parse_static_shape)};
  if (auto read = text::read_fields(text, kNoun, fields, ErrorCode::invalid_plan); !read) return read.error();
  if (auto valid = plan.validate(); !valid) return valid.error();
  return plan;
}

}  // namespace ordo
