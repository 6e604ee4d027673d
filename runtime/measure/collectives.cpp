#include "runtime/measure/collectives.hpp"

#include "runtime/peers/communicator.hpp"

namespace ordo::measure {

struct Collectives::Impl {
  Communicator::Impl& group;
  std::unique_ptr<peers::NcclComm> comm;
};

Collectives::Collectives(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Collectives::Collectives(Collectives&&) noexcept = default;
Collectives::~Collectives() = default;

Result<Collectives> Collectives::connect(Communicator& communicator) {
  auto comm = peers::connect_nccl(communicator.impl(), 0);
  if (!comm) return comm.error();
  return Collectives(std::make_unique<Impl>(Impl{communicator.impl(), *std::move(comm)}));
}

Result<void> Collectives::exchange(const OverlapGemm& p, void* mine, void* all, CUstream_st* stream) const {
  constexpr int kSum = 0;  // ncclRedOp_t
  const auto ranks = static_cast<std::size_t>(p.ranks);
  const bool fp32 = p.out == OutputType::fp32;
  const peers::NcclType half = p.dtype == DType::bf16 ? peers::NcclType::bf16 : peers::NcclType::fp16;
  const int in = static_cast<int>(half), out = static_cast<int>(fp32 ? peers::NcclType::fp32 : half);
  const auto a = static_cast<std::size_t>(p.m * p.k), d = static_cast<std::size_t>(p.m * p.n);
  const auto blocks = [&](const peers::Nccl& n, void* comm, std::size_t count, int type, std::size_t bytes) {
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      const auto to = static_cast<int>(peer);
      if (const int sent = n.send(static_cast<char*>(mine) + peer * bytes, count, type, to, comm, stream); sent != 0) return sent;
      if (const int got = n.recv(static_cast<char*>(all) + peer * bytes, count, type, to, comm, stream); got != 0) return got;
    }
    return 0;
  };
  const auto calls = [&](const peers::Nccl& n, void* comm) {
    switch (p.op) {
      case OverlapOp::all_gather_gemm:
        return n.allGather(mine, all, a / ranks, in, comm, stream);
      case OverlapOp::gemm_reduce_scatter:
        return n.reduceScatter(all, mine, d / ranks, out, kSum, comm, stream);
      case OverlapOp::gemm_all_reduce:
        return n.allReduce(all, mine, d, out, kSum, comm, stream);
      case OverlapOp::all_to_all_gemm:
        return blocks(n, comm, a / ranks, in, a / ranks * 2);
      case OverlapOp::gemm_all_to_all:
        return blocks(n, comm, d / ranks, out, d / ranks * (fp32 ? 4 : 2));
      case OverlapOp::gemm:
        break;
    }
    return 0;
  };
  return impl_->comm->group(calls, impl_->group.deadline());
}

}  // namespace ordo::measure
