#include "runtime/peers/overlap_runner.hpp"

#include <fmt/format.h>

#include <utility>

#include "runtime/overlap_launch.hpp"
#include "runtime/overlap_slices.hpp"

namespace ordo::peers {
namespace {

static_assert(sizeof(KernelFailure) == sizeof(OverlapFailure));

template <class T>
T* pointer(CUdeviceptr address) {
  return reinterpret_cast<T*>(address);
}

bool gathers(OverlapOp op) { return op == OverlapOp::all_gather_gemm || op == OverlapOp::all_to_all_gemm; }

}  // namespace

Result<std::unique_ptr<OverlapRunner>> OverlapRunner::create(Communicator::Impl& group, const OverlapGemm& problem,
                                                             const OverlapPlan& plan, bool overlaps, Kernel kernel) {
  auto request = exchange_request(problem, plan, overlaps);
  if (!request) return request.error();
  auto exchange = SliceExchange::create(group, *std::move(request));
  if (!exchange) return exchange.error();
  return std::unique_ptr<OverlapRunner>(new OverlapRunner(group, problem, plan, std::move(kernel), *std::move(exchange)));
}

OverlapRunner::OverlapRunner(Communicator::Impl& group, const OverlapGemm& problem, const OverlapPlan& plan, Kernel kernel,
                             std::unique_ptr<SliceExchange> exchange)
    : group_(group),
      problem_(problem),
      plan_(plan),
      kernel_(std::move(kernel)),
      exchange_(std::move(exchange)),
      buffers_(overlap_buffers(problem, plan)) {
  const int rank = group_.links.rank(), ranks = group_.links.ranks();
  const LaunchWords words = exchange_->words();
  const std::size_t slots = static_cast<std::size_t>(buffers_.slots) * buffers_.receive_slot_bytes;
  if (buffers_.output_bytes > 0) output_ = {pointer<void>(words.received + slots), buffers_.output_pitch};
  words_.rank = rank;
  words_.received = pointer<void>(words.received);
  words_.sent = pointer<void>(words.sent);
  words_.ready = pointer<std::uint32_t>(words.ready);
  words_.done = pointer<std::uint32_t>(words.done);
  words_.abort = pointer<std::uint32_t>(words.abort);
  words_.failure = pointer<OverlapFailure>(words.failure);
  words_.timeout_ns = words.timeout_ns;
  if (plan_.transport != Transport::direct) return;
  const std::size_t block = problem_.op == OverlapOp::gemm_all_to_all
                                ? slots + static_cast<std::size_t>(rank * problem_.m * buffers_.output_pitch *
                                                                   (problem_.out == OutputType::fp32 ? 4 : 2))
                                : static_cast<std::size_t>(rank) * buffers_.receive_slot_bytes;
  for (int peer = 0; peer < ranks; ++peer) {
    peer_slot_.push_back(pointer<void>(exchange_->received_at(peer) + block));
    peer_ready_.push_back(pointer<std::uint32_t>(exchange_->ready_at(peer)));
  }
  words_.peer_slot = peer_slot_;
  words_.peer_ready = peer_ready_;
  words_.peer_pitch = buffers_.output_pitch;
}

std::int64_t OverlapRunner::a_stride() const { return gathers(problem_.op) ? buffers_.receive_pitch : 0; }

Result<void> OverlapRunner::check(OverlapGemmTensors& tensors) const {
  const auto bad = [](std::string message) { return Error{ErrorCode::invalid_argument, std::move(message)}; };
  if (output_.data != nullptr) {
    if (tensors.d.data == nullptr) tensors.d = output_;
    if (tensors.d.data != output_.data || tensors.d.stride != output_.stride)
      return bad(
          fmt::format("matrix d: other ranks write to the D of {} too; pass output(), or leave d out", to_string(problem_.op)));
  }
  const std::int64_t stride = a_stride();
  if (stride != 0 && tensors.a.stride != stride)
    return bad(
        fmt::format("matrix a: stride {}; rows that other ranks receive are copied as they lie and must be {} elements "
                    "apart (a_stride())",
                    tensors.a.stride, stride));
  return check_overlap_arguments(problem_, plan_, tensors, words_);
}

Result<void> OverlapRunner::launch(OverlapGemmTensors tensors, CUstream stream) {
  if (auto ok = check(tensors); !ok) return ok;
  const auto source = gathers(problem_.op) ? reinterpret_cast<CUdeviceptr>(tensors.a.data) : 0;
  auto begun = exchange_->begin(stream, source);
  if (!begun) return begun.error();
  words_.expected = begun->expected;
  if (auto launched = kernel_(tensors, words_, stream); !launched) {
    group_.watchdog->raise(launched.error());  // half a launch is enqueued: the peers would wait for the rest
    exchange_->abandon(stream);
    return launched;
  }
  return exchange_->end(stream);
}

}  // namespace ordo::peers
