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
#include "ordo/problem.hpp"
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
  std::string arch;
  int launch_registers = 0;  ///< a thread at launch
  int spill_bytes = 0;       ///< stores + loads, from ptxas
  int stack_bytes = 0;
  int shared_bytes = 0;  ///< static + dynamic, a block
  int barriers = 0;
  double compile_ms = 0;  ///< of the compile that made the cubin, even when it came from the cache
  std::string cubin_sha256;
};

/// The compiled kernels of one plan. Thread-safe; keeps what it needs of its Engine alive.
class ORDO_API AttentionBackwardKernel {
 public:
  [[nodiscard]] const Plan& plan() const;
  [[nodiscard]] const std::vector<KernelReport>& reports() const;  ///< the main kernel first

  /// Bytes of device scratch that launch() needs; aligned to 256. Refuses a problem the plan was not made for.
  [[nodiscard]] Result<std::size_t> workspace_bytes(const AttentionBackward& problem) const;

  /// Enqueues the backward on `stream` of the current context. No allocation, no synchronisation; capture-safe after the first
  /// launch on a device. `workspace` is device memory, 256-byte aligned, at least workspace_bytes(problem), its content
  /// irrelevant, not shared with another launch in flight.
  /// Errors: a misaligned or null pointer, a stride TMA cannot express, a workspace too small, a device that is not the plan's
  /// arch or cannot hold plan().workers at once where the schedule needs it, and driver failures.
  Result<void> launch(const AttentionBackward& problem, const AttentionBackwardTensors& tensors, void* workspace,
                      std::size_t workspace_bytes, CUstream_st* stream) const;

  struct Impl;
  explicit AttentionBackwardKernel(std::shared_ptr<Impl> impl);

 private:
  std::shared_ptr<Impl> impl_;
};

struct EngineOptions {
  /// Cache file. Empty: $ORDO_CACHE, else $XDG_CACHE_HOME/ordo/cache.db, else ~/.cache/ordo/cache.db, else memory only.
  std::string cache_path;
  bool memory_cache_only = false;
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

  /// Generates, compiles (or takes from the cache) every kernel of `plan`. Compiling takes a second or so a kernel.
  [[nodiscard]] Result<AttentionBackwardKernel> prepare(const Plan& plan);

  struct Impl;

 private:
  explicit Engine(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace ordo
