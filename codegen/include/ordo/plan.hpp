// Plan: how a problem is computed. A Plan and the cubin made from it decide every bit of the result.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ordo/error.hpp"
#include "ordo/problem.hpp"
#include "ordo/target.hpp"

namespace ordo {

namespace cost {
struct Constants;
}

/// In which order a KV tile visits its Q tiles, and in which order KV tiles add into a dQ tile.
/// The definitions are templates/schedule/schedule.cuh, which host and device both include.
enum class Schedule {
  ascending,        ///< Q tiles upwards; KV 0, 1, 2, ... add in turn
  descending,       ///< Q tiles downwards (DASH, for causal masks); KV 0, 1, 2, ... add in turn
  shift,            ///< each KV tile starts `shift_stride` Q tiles after its neighbour (DASH, full masks): no stall
  alternate,        ///< causal: groups of heads alternate between ascending and descending; query heads of a KV head go together
  symmetric_shift,  ///< causal: a cluster takes a long and a short KV tile together (DASH): every cluster has the same work
  arrival,          ///< KV tiles add in the order in which a simulation of the launch has them arrive; see Arrival
};

/// How a KV tile visits its Q tiles in schedule arrival.
enum class ArrivalVisits {
  up,           ///< from the first that sees it, upwards
  down,         ///< from the last, downwards
  up_and_down,  ///< groups of heads in turn
  turn,         ///< groups of heads in turn, each query head as alternate has it, but one after another
  rotate,       ///< upwards and around, neighbours starting evenly apart, as shift
  greedy,       ///< upwards and around, but first those where nobody has to be waited for
};

/// Schedule arrival: what the simulation that gives the order of adds was told, in SM clocks, and the hash of what it gave. The
/// orders are made anew from this wherever they are needed, and refused if they hash otherwise: a plan holds for the sequence
/// lengths that it was made for.
struct Arrival {
  ArrivalVisits visits = ArrivalVisits::up;
  int compute = 1, diagonal = 1, partial = 1;  ///< a tile that is all visible, on the mask's boundary, cut off at the end
  int reduce = 0;                              ///< one add
  int handover = 0;                            ///< from the end of an add to the earliest start of the next
  int unit = 0;                                ///< before the first tile of a KV tile
  int staging = 0;         ///< tiles computed and not yet added, at most; 0: nothing is computed during an add
  std::uint64_t hash = 0;  ///< of the table of orders
  friend bool operator==(const Arrival&, const Arrival&) = default;
};

/// How the partial dQ tiles of different KV tiles are summed.
enum class Accumulate {
  atomic,   ///< fp32 adds in arrival order: NOT deterministic; measures what determinism costs
  ordered,  ///< fp32 adds in the schedule's fixed order (the default)
  exact,    ///< int32 fixed point: any order gives the same bits. Needs an LSE that belongs to Q and K
};

/// Which warps work out the next Q tile and its turn. The bits are the same.
enum class ScheduleState {
  producer,  ///< the loading warp, which passes them on with the pipeline stage: no consumer register is spent on the schedule
  consumer,  ///< each consumer warpgroup for itself, as DASH does; may spill, and is then refused. For the study of that
             ///< trade-off
};

ORDO_API std::string_view to_string(Schedule schedule);
ORDO_API std::string_view to_string(Accumulate accumulate);
ORDO_API std::string_view to_string(ArrivalVisits visits);
ORDO_API std::string_view to_string(ScheduleState state);
ORDO_API Result<Schedule> parse_schedule(std::string_view text);
/// The schedules that exist for a mask.
ORDO_API std::vector<Schedule> schedules_of(const Mask& mask);
ORDO_API Result<Accumulate> parse_accumulate(std::string_view text);
ORDO_API Result<ArrivalVisits> parse_arrival_visits(std::string_view text);
ORDO_API Result<ScheduleState> parse_schedule_state(std::string_view text);

/// Sizes baked into a kernel by `static_shape`: fewer registers and divisions, one kernel a shape.
struct StaticShape {
  std::int64_t batch = 0, seqlen_q = 0, seqlen_k = 0, kv_heads = 0;
  friend bool operator==(const StaticShape&, const StaticShape&) = default;
};

struct Plan {
  // What the kernel is for. Lengths, batch, heads and strides are run-time parameters.
  DType dtype = DType::bf16;
  int head_dim = 128;
  Mask mask = Mask::full;
  int group = 1;  ///< query heads a KV head

  // How.
  Schedule schedule = Schedule::ascending;
  Accumulate accumulate = Accumulate::ordered;
  int tile_q = 64;
  int tile_kv = 128;
  int stages = 2;                  ///< Q stages and dO stages in shared memory
  int cluster = 1;                 ///< CTAs a cluster, on neighbouring KV tiles; 2 exchanges dS through distributed shared memory
  int dq_buffers = 1;              ///< fp32 dQ staging buffers in shared memory
  int workers = 132;               ///< clusters (CTAs when cluster == 1) that are resident at once
  int shift_stride = 1;            ///< schedules shift and symmetric_shift: Q tiles between neighbours
  int head_group = 1;              ///< query-head walks dispatched together, KV tiles slowest
  std::optional<Arrival> arrival;  ///< schedule arrival only, and there always
  ScheduleState schedule_state = ScheduleState::producer;
  int consumer_registers = 0;  ///< setmaxnreg of a consumer thread, a multiple of 8; 0: what the kernel is tuned for
  std::optional<StaticShape> static_shape;

  /// The rules of the type itself (ranges and combinations a kernel exists for), without a problem.
  [[nodiscard]] ORDO_API Result<void> validate() const;

  friend bool operator==(const Plan&, const Plan&) = default;
};

/// Canonical text, one line, every field, in declaration order:
/// "attention-backward dtype=bf16 head_dim=128 mask=full group=1 schedule=shift ... static_shape=none".
ORDO_API std::string to_text(const Plan& plan);

/// Reads canonical text back; a key may be missing (its default), none may be unknown or repeated. Validates.
ORDO_API Result<Plan> parse_plan(std::string_view text);

/// Validates problem and plan and that the plan was made for such a problem (dtype, head_dim, mask, group, shape).
ORDO_API Result<void> check_fit(const AttentionBackward& problem, const Plan& plan);

/// What the caller fixed by hand; the planner chooses the rest.
struct PlanRequest {
  std::optional<Schedule> schedule;
  std::optional<Accumulate> accumulate;
  bool static_shape = false;
  ScheduleState schedule_state = ScheduleState::producer;
  std::shared_ptr<const cost::Constants> constants = nullptr;  ///< of a calibration; unset: those shipped for the target
  friend bool operator==(const PlanRequest&, const PlanRequest&) = default;
};

/// One plan the planner weighed.
struct Candidate {
  Plan plan;
  double predicted_ms = 0;
  int predicted_registers = 0;    ///< a consumer thread
  int predicted_spill_bytes = 0;  ///< of the main kernel, a thread; 0 for what may be launched
  std::string note;               ///< why it is where it is in the list
};

struct PlanChoice {
  Plan plan;
  int predicted_registers = 0;  ///< a consumer thread
  double predicted_ms = 0;
  std::string reason;  ///< one sentence a person can act on
  /// The choice, candidates[0].plan == plan, and the others by predicted time. Of plans too close to tell apart (0.4 %)
  /// the choice is the one that is listed first before they are timed, so another may be predicted a little faster.
  std::vector<Candidate> candidates;
};

/// Chooses a plan. Pure: the same arguments give the same answer on any machine. Thread-safe.
/// Errors: an invalid problem, a request no kernel serves (e.g. shift with a causal mask).
ORDO_API Result<PlanChoice> make_plan(const AttentionBackward& problem, const Target& target, const PlanRequest& request = {});

}  // namespace ordo
