// The C++ interface of ordo: plan, compile and launch deterministic kernels. Include this one header.
//
//   auto engine = ordo::Engine::create();
//   auto choice = engine->plan(problem);
//   auto kernel = engine->prepare(choice->plan);           // compiles, or takes the cubins from the cache
//   size_t bytes = *kernel->workspace_bytes(problem);      // the caller supplies the workspace
//   kernel->launch(problem, tensors, workspace, bytes, stream);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ordo/error.hpp"
#include "ordo/kernel_source.hpp"
#include "ordo/plan.hpp"
#include "ordo/prepare.hpp"
#include "ordo/problem.hpp"
#include "ordo/shape_list.hpp"
#include "ordo/target.hpp"

/// The driver API's own stream type, declared here so that no CUDA header is needed.
struct CUstream_st;

namespace ordo {

/// A device tensor [batch, seqlen, heads, head_dim] with contiguous head_dim. Strides count elements (64-bit) and must make every
/// row 16-byte aligned; the base pointer is 16-byte aligned too. The caller owns the memory.
struct TensorView {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t seqlen_stride = 0;
  std::int64_t head_stride = 0;
};

/// Strides of a contiguous [batch, seqlen, heads, head_dim] tensor.
ORDO_API TensorView contiguous(void* data, std::int64_t seqlen, std::int64_t heads, std::int64_t head_dim);

/// Device pointers of one attention backward; shapes and types as in AttentionBackward. Inputs are not written.
struct AttentionBackwardTensors {
  TensorView q, k, v, o, d_o;
  const float* lse = nullptr;  ///< contiguous [batch, heads, seqlen_q], natural log; 16-byte aligned
  TensorView dq, dk, dv;       ///< outputs: every element is written
  float scale = 0;             ///< softmax scale, > 0 and finite
};

/// What the resources of one compiled kernel are. Figures are ptxas' and the cubin's own.
struct KernelReport {
  std::string name;  ///< "main", "preprocess", ...
  std::string key;   ///< the cache key, hex
  bool cache_hit = false;
  std::string cache_layer;  ///< of a hit: "memory" of this process, "local" for the writable file, "shipped" for a read-only one
  std::string arch;
  int launch_registers = 0;  ///< a thread at launch
  int spill_bytes = 0;       ///< stores + loads, from ptxas
  int stack_bytes = 0;
  int shared_bytes = 0;  ///< static + dynamic, a block
  int barriers = 0;
  double compile_ms = 0;  ///< of the compile that made the cubin, even when it came from the cache
  std::string cubin_sha256;
};

/// How long one CTA of a launch waited for its turns to add into dQ, in SM clocks. Where a CTA has two adding warps, which wait
/// side by side, the longer of each.
struct CtaStalls {
  std::int64_t waited = 0;
  std::int64_t running = 0;  ///< of the adding warp: from its first step to the end of its last add
};

/// The compiled kernels of one plan. Thread-safe; keeps what it needs of its Engine alive.
class ORDO_API AttentionBackwardKernel {
 public:
  [[nodiscard]] const Plan& plan() const;
  [[nodiscard]] const std::vector<KernelReport>& reports() const;  ///< the main kernel first

  /// Bytes of device scratch that launch() needs; aligned to 256. Refuses a problem the plan was not made for.
  [[nodiscard]] Result<std::size_t> workspace_bytes(const AttentionBackward& problem) const;

  /// Loads the kernels in the current context, as the first launch there would. `stream` is where they will be launched. Errors:
  /// not_prepared while the stream captures; else those of launch() that have to do with the device.
  Result<void> load(CUstream_st* stream = nullptr) const;
  /// The same, and what launches of `problem` read beside: plans of schedule arrival, and masks by expression, have a table for
  /// every shape, which is made, allocated and uploaded here (waiting for `stream`) or by the first launch of the shape, and
  /// lives as long as the kernel. Other plans need no more than load(stream).
  Result<void> load(const AttentionBackward& problem, CUstream_st* stream = nullptr) const;

  /// Enqueues the backward on `stream` of the current context. No allocation, no synchronisation. Capture-safe once the kernels
  /// are loaded on the device: by the first launch, by load(), or by Engine::prepare(list); before that a launch on a stream that
  /// captures is refused (not_prepared) and leaves the capture whole. Where launches read a table (see load(problem)), all of
  /// this holds from the first launch of the shape, load(problem), or prepare(list) of a list that names it, on. `workspace` is
  /// device memory, 256-byte aligned, at least workspace_bytes(problem), its content irrelevant, not shared with another launch
  /// in flight. Errors: a misaligned or null pointer, a stride TMA cannot express, a workspace too small, a device that is not
  /// the plan's arch or cannot hold plan().workers at once where the schedule needs it, and driver failures.
  Result<void> launch(const AttentionBackward& problem, const AttentionBackwardTensors& tensors, void* workspace,
                      std::size_t workspace_bytes, CUstream_st* stream) const;

  /// Kernels of Flavour::stalls only: what the last launch of `problem` with `workspace` on `stream` measured, one entry a CTA.
  /// Waits for the stream. Reading the clock costs the adding warps a little, and nothing else.
  [[nodiscard]] Result<std::vector<CtaStalls>> stalls(const AttentionBackward& problem, const void* workspace,
                                                      CUstream_st* stream) const;

  struct Impl;
  explicit AttentionBackwardKernel(std::shared_ptr<Impl> impl);

 private:
  std::shared_ptr<Impl> impl_;
};

class OverlapGemmKernel;  // ordo/overlap_kernel.hpp
struct OverlapPlan;

struct EngineOptions {
  /// Cache file. Empty: $ORDO_CACHE, else $XDG_CACHE_HOME/ordo/cache.db, else ~/.cache/ordo/cache.db, else memory only.
  std::string cache_path = {};
  bool memory_cache_only = false;
  /// Finished cache files, on a shared filesystem say, which are only read: looked into before cache_path, in this order, and
  /// followed by those of $ORDO_CACHE_LAYERS ("A:B"). Nobody may change them meanwhile. A run whose kernels are all there makes
  /// and writes no file.
  std::vector<std::string> cache_layers = {};
  /// Bytes of the cache file beyond which the kernels unused for longest go. Absent: $ORDO_CACHE_LIMIT ("500M", "2G"), else 2
  /// GiB. 0: none.
  std::optional<std::int64_t> cache_limit_bytes = {};
  /// Compiles that may run at once among this user's processes on this host. 0: $ORDO_COMPILE_JOBS, else half of the processors,
  /// at most 16.
  int compile_jobs = 0;
  /// Appends every plan that is prepared to this file, as a list for prepare() and `ordo precompile`. Empty: $ORDO_MANIFEST, else
  /// none.
  std::string manifest_path = {};
  /// Prepared plans of each family to keep. Beyond it those asked for longest ago are unloaded if no kernel object of theirs is
  /// left: keep yours while launches of it, or graphs that hold it, are in flight.
  std::size_t max_plans = 256;
  /// Take kernels whose registers spill, which are otherwise refused: to measure what a spill costs.
  bool allow_spills = false;
  /// Constants of the cost model, as `ordo calibrate` stored them for the target. Empty: $ORDO_COST, else
  /// $XDG_CONFIG_HOME/ordo/cost-TARGET.json, else ~/.config/ordo/cost-TARGET.json; where there is none, those shipped.
  std::string calibration_path = {};
  /// Called for things a person should know and no caller can act on (a cache that cannot be written, say); at most once a cause.
  /// Called from the thread that met it. The library prints nothing.
  std::function<void(const std::string&)> warn;
  /// Decision table (see decision_table.hpp) whose plans are pinned: plan() gives exactly those, prepare() takes no others, and a
  /// problem that has none is refused. Empty: nothing is pinned.
  std::string lock_file = {};  // NOLINT(readability-redundant-member-init): designated initializers may leave it out
  /// Plans are made for this target; unset: the current device if there is one, else "h200".
  std::optional<Target> target;
};

/// Plans, compiles and caches. Thread-safe. Needs no GPU except to launch.
class ORDO_API Engine {
 public:
  static Result<Engine> create(EngineOptions options = {});

  [[nodiscard]] const Target& target() const;
  /// What the engine was made with.
  [[nodiscard]] const EngineOptions& options() const;
  /// The planner's choice, or the lock file's. Errors: those of make_plan; invalid_plan for a problem that the lock file lacks.
  [[nodiscard]] Result<PlanChoice> plan(const AttentionBackward& problem, const PlanRequest& request = {}) const;

  /// Generates, compiles (or takes from the cache) every kernel of `plan`. Compiling takes a second or so a kernel; of the
  /// threads and processes of a host that need one kernel only one compiles it. Errors: invalid_plan, toolchain, compile;
  /// not_prepared after seal(). `flavour` is for debugging: other kernels of the same plan.
  [[nodiscard]] Result<AttentionBackwardKernel> prepare(const Plan& plan, Flavour flavour = Flavour::normal);
  /// The same for the plan that plan() chooses. What is prepared already costs plan() and a look-up.
  [[nodiscard]] Result<AttentionBackwardKernel> prepare(const AttentionBackward& problem, const PlanRequest& request = {});

  /// The same for an overlapped product; include ordo/overlap_kernel.hpp.
  [[nodiscard]] Result<OverlapGemmKernel> prepare(const OverlapPlan& plan);

  /// Prepares every plan of `list`, and those that plan() chooses for its problems; where a CUDA context is current, loads them
  /// in it (then on this thread alone). The first failure ends it: cancelled (see PrepareOptions), or an error of prepare(plan).
  Result<PrepareReport> prepare(const ShapeList& list, const PrepareOptions& options = {});

  /// From now on prepare() only finds what is prepared: for anything else it returns ErrorCode::not_prepared, which names what is
  /// missing, and nothing is compiled or written. There is no way back.
  void seal();
  [[nodiscard]] bool sealed() const;

  [[nodiscard]] CacheCounters counters() const;

  struct Impl;

 private:
  explicit Engine(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace ordo
