// OverlapGemm and OverlapPlan: a matrix product whose slices are exchanged with other ranks while it runs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ordo/error.hpp"
#include "ordo/kernel_source.hpp"
#include "ordo/problem.hpp"
#include "ordo/target.hpp"

namespace ordo {

/// What N ranks exchange around the product D = activation(A B + bias) that each of them computes. The rows, columns or k below
/// are cut into N slices, as even as they come, the longer ones first; slice r belongs to rank r.
enum class OverlapOp {
  gemm,                 ///< nothing: one rank
  all_gather_gemm,      ///< rank r holds row slice r of A; D = (all of A) B
  gemm_reduce_scatter,  ///< rank r gets row slice r of D = activation(sum over ranks of A B + bias)
  gemm_all_reduce,      ///< every rank gets all of that D
  gemm_all_to_all,      ///< rank r gets column slice r of every rank's D, one below the other (Ulysses, before attention)
  all_to_all_gemm,  ///< A's columns of slice q come from rank q: rank r multiplies its rows of them (Ulysses, after attention)
};

/// How a matrix lies in memory.
enum class Storage {
  row,     ///< [rows][columns], a row contiguous
  column,  ///< [columns][rows], a column contiguous; B of a torch.nn.Linear is its weight [n][k]
};

enum class Activation {
  none,
  relu,
  gelu,  ///< tanh form: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
  silu,  ///< x / (1 + exp(-x))
};

/// Element type of an output: that of A and B, or fp32.
enum class OutputType { same, fp32 };

/// How a slice that leaves travels.
enum class Transport {
  copy_engine,  ///< stored here, then pushed by a copy engine as soon as a chunk of it is complete: the SMs move no bytes
  direct,       ///< stored by the kernel straight into the owner's memory
};

/// Between which ranks slices travel.
enum class OverlapRoute {
  direct,  ///< from the rank that has a slice straight to each that needs it
  ring,    ///< from rank r to rank r+1 alone, which passes it on once it is there. all_gather_gemm only: an all-to-all's slices
           ///< are for one rank each, and a sum that grows on its way has another order and more roundings than OverlapGemm's
};

ORDO_API std::string_view to_string(OverlapOp op);
ORDO_API std::string_view to_string(Storage storage);
ORDO_API std::string_view to_string(Activation activation);
ORDO_API std::string_view to_string(OutputType type);
ORDO_API std::string_view to_string(Transport transport);
ORDO_API std::string_view to_string(OverlapRoute route);
ORDO_API Result<OverlapOp> parse_overlap_op(std::string_view text);
ORDO_API Result<Storage> parse_storage(std::string_view text);
ORDO_API Result<Activation> parse_activation(std::string_view text);
ORDO_API Result<OutputType> parse_output_type(std::string_view text);
ORDO_API Result<Transport> parse_transport(std::string_view text);
ORDO_API Result<OverlapRoute> parse_overlap_route(std::string_view text);

/// One product on each of `ranks` ranks. A is [m, k], B [k, n], D [m, n] (gemm_reduce_scatter: this rank's rows of it;
/// gemm_all_to_all: [ranks * m, this rank's columns of n]): the sizes of what one rank computes. Sums are fp32; D is rounded
/// once, to nearest even.
///
/// gemm_reduce_scatter and gemm_all_reduce add, in fp32 and in this order, what the owner itself computed and then the partial
/// sums of the other ranks by rank; each partial sum was rounded once to OverlapPlan::partial. bias and activation follow the
/// sum. The order does not depend on who was early, so neither do the bits.
struct OverlapGemm {
  OverlapOp op = OverlapOp::gemm;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t ranks = 1;
  DType dtype = DType::bf16;  ///< of A, B and bias
  Storage a = Storage::row;   ///< column: a weight gradient, whose A is the transposed output gradient
  Storage b = Storage::column;
  OutputType out = OutputType::same;
  bool bias = false;  ///< one value a column
  Activation activation = Activation::none;

  /// 2 m n k: of one rank.
  [[nodiscard]] ORDO_API double flops() const;

  /// The rules of the type itself: sizes at least 1, one rank for gemm and 1 .. 32 for the others, no more elements than an index
  /// can count; A whose slices arrive is stored by rows. Where an operand that no slice of travels (A of gemm_reduce_scatter and
  /// gemm_all_reduce, B and bias of gemm_all_to_all, B of all_to_all_gemm) is contiguous along what is cut, slices begin at
  /// multiples of 8: 16 bytes, the unit in which it is read.
  [[nodiscard]] ORDO_API Result<void> validate() const;

  friend bool operator==(const OverlapGemm&, const OverlapGemm&) = default;
};

/// How it is computed. An OverlapPlan and the cubin made from it decide every bit of the result.
struct OverlapPlan {
  // What the kernel is for. m, n, k, strides and this rank's number are run-time parameters.
  OverlapOp op = OverlapOp::gemm;
  int ranks = 1;
  DType dtype = DType::bf16;
  Storage a = Storage::row;
  Storage b = Storage::column;
  OutputType out = OutputType::same;
  bool bias = false;
  Activation activation = Activation::none;

  // How.
  int tile_m = 128;  ///< rows of a CTA's tile
  int tile_n = 256;
  int tile_k = 64;                        ///< of k a stage holds
  int stages = 4;                         ///< of A and B in shared memory
  int store_buffers = 2;                  ///< staging buffers of a consumer warpgroup, 64 rows of 128 bytes each
  int cluster = 2;                        ///< CTAs a cluster, on tiles below each other; they load each tile of B once
  int group_m = 8;                        ///< clusters' rows of tiles that are walked together over all columns
  int workers = 66;                       ///< clusters (CTAs when cluster == 1) that run at once
  int sub_slices = 1;                     ///< chunks of a slice that move and are waited for one by one
  OutputType partial = OutputType::same;  ///< partial sums travel in this type
  Transport transport = Transport::copy_engine;
  OverlapRoute route = OverlapRoute::direct;

  /// The rules of the type itself (ranges and combinations a kernel exists for), without a problem.
  [[nodiscard]] ORDO_API Result<void> validate() const;

  friend bool operator==(const OverlapPlan&, const OverlapPlan&) = default;
};

/// Canonical text, one line, every field, in declaration order: "overlap-gemm op=all-gather-gemm m=8192 ...".
ORDO_API std::string to_text(const OverlapGemm& problem);
/// Canonical text: "overlap-plan op=all-gather-gemm ranks=2 ...".
ORDO_API std::string to_text(const OverlapPlan& plan);

/// Read canonical text back; a key may be missing (its default), none may be unknown or repeated. They validate.
ORDO_API Result<OverlapGemm> parse_overlap_gemm(std::string_view text);
ORDO_API Result<OverlapPlan> parse_overlap_plan(std::string_view text);

/// Validates problem and plan and that the plan was made for such a problem. Errors: invalid_problem, invalid_plan.
ORDO_API Result<void> check_fit(const OverlapGemm& problem, const OverlapPlan& plan);

/// A plan and what the planner expects of it. Times in milliseconds, of one launch on every rank at once.
struct OverlapChoice {
  OverlapPlan plan;
  bool overlap = true;       ///< false: the exchange and the product one after the other
  double predicted_ms = 0;   ///< of what was chosen
  double exposed_ms = 0;     ///< of it: nobody computes
  double sequential_ms = 0;  ///< the exchange alone and the product alone, added
  std::string reason;        ///< one sentence
};

/// The plan for a problem, whether overlapping pays, and why. `peer_access`: the ranks map each other's memory; else NCCL moves
/// the slices. `route`: as asked; where every GPU reaches every other at full rate a ring gains nothing, so it is never chosen
/// unasked. Every rank makes the same choice from the same arguments. Pure. Errors: those of problem.validate(); invalid_plan (a
/// ring that the op cannot take).
ORDO_API Result<OverlapChoice> make_overlap_plan(const OverlapGemm& problem, const Target& target, bool peer_access = true,
                                                 OverlapRoute route = OverlapRoute::direct);

/// The one kernel of the plan ("overlap", entry ordo_overlap). Pure and thread-safe; plans that differ in run-time fields
/// (group_m, workers, sub_slices, route) give the same text.
ORDO_API Result<KernelSource> generate(const OverlapPlan& plan, const Target& target);

}  // namespace ordo
