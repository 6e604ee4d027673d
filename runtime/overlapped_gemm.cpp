#include "ordo/overlapped_gemm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/overlap_kernel_impl.hpp"
#include "runtime/peers/overlap_runner.hpp"

namespace ordo {
namespace {

bool reduces(OverlapOp op) { return op == OverlapOp::gemm_reduce_scatter || op == OverlapOp::gemm_all_reduce; }

/// The plan, given or made, fitted to how the ranks are connected.
Result<OverlapChoice> choose(const Communicator& communicator, const Target& target, const OverlapGemm& problem,
                             const OverlappedGemmOptions& options) {
  if (problem.ranks != communicator.ranks())
    return Error{ErrorCode::invalid_problem,
                 fmt::format("the problem is one of {} ranks and the communicator has {}", problem.ranks, communicator.ranks())};
  const bool peer_access = communicator.transport() != PeerTransport::nccl;
  auto choice = make_overlap_plan(problem, target, peer_access);
  if (!choice) return choice;
  if (options.plan) {
    if (auto fits = check_fit(problem, *options.plan); !fits) return fits.error();
    choice->plan = *options.plan;
  }
  if (options.overlap && *options.overlap != choice->overlap) {
    choice->reason = fmt::format("asked for, against: {}", choice->reason);
    choice->overlap = *options.overlap;
  }
  if (!peer_access && choice->overlap) choice->overlap = false;
  if (reduces(problem.op) && !choice->overlap && problem.ranks > 1) {
    // The sum is part of the kernel, which waits for the others' partial sums: there is no order but this one.
    choice->overlap = true;
    choice->reason += "; partial sums are exchanged while the product runs all the same, for it adds them itself";
    if (!peer_access) {
      const int free = std::max(1, (target.sm_count - peers::kNcclCtas) / choice->plan.cluster);
      choice->plan.workers = std::min(choice->plan.workers, free);
      choice->reason += fmt::format(", on {} SMs less", peers::kNcclCtas);
    }
  }
  return choice;
}

}  // namespace

struct OverlappedGemm::Impl {
  OverlapGemm problem;
  OverlapChoice choice;
  OverlapGemmKernel kernel;
  std::unique_ptr<peers::OverlapRunner> runner;
};

OverlappedGemm::OverlappedGemm(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OverlappedGemm::OverlappedGemm(OverlappedGemm&&) noexcept = default;
OverlappedGemm::~OverlappedGemm() = default;

Result<OverlappedGemm> OverlappedGemm::create(Communicator& communicator, Engine& engine, const OverlapGemm& problem,
                                              const OverlappedGemmOptions& options) {
  Communicator::Impl& group = communicator.impl();
  auto choice = choose(communicator, engine.target(), problem, options);
  Result<void> mine = choice ? Result<void>() : Result<void>(choice.error());
  std::optional<OverlapGemmKernel> kernel;
  if (mine) {
    auto prepared = engine.prepare(choice->plan);
    if (prepared) {
      kernel = *std::move(prepared);
      mine = kernel->load();
    } else {
      mine = prepared.error();
    }
  }
  // One rank that cannot compile must not leave the others waiting for it.
  if (auto all = group.conclude(mine); !all) return all.error();
  auto impl = std::make_unique<Impl>(Impl{problem, *std::move(choice), *std::move(kernel), nullptr});
  auto runner = peers::OverlapRunner::create(
      group, problem, impl->choice.plan, impl->choice.overlap,
      [kernel = impl->kernel, problem](const OverlapGemmTensors& tensors, const OverlapExchange& exchange, CUstream stream) {
        return kernel.launch(problem, tensors, exchange, stream);
      });
  if (!runner) return runner.error();
  impl->runner = *std::move(runner);
  return OverlappedGemm(std::move(impl));
}

const OverlapGemm& OverlappedGemm::problem() const { return impl_->problem; }
const OverlapChoice& OverlappedGemm::choice() const { return impl_->choice; }
const KernelReport& OverlappedGemm::report() const { return impl_->kernel.report(); }
MatrixView OverlappedGemm::output() const { return impl_->runner->output(); }
std::int64_t OverlappedGemm::a_stride() const { return impl_->runner->a_stride(); }

Result<void> OverlappedGemm::launch(const OverlapGemmTensors& tensors, CUstream_st* stream) {
  return impl_->runner->launch(tensors, stream);
}

}  // namespace ordo
