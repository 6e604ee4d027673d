#include "cli/gpu_problem.hpp"

#include <utility>

namespace ordo::cli {

Result<GpuProblem> GpuProblem::create(int index, const AttentionBackward& problem, float scale,
                                      const reference::HostInputs& inputs) {
  auto context = DeviceContext::open(index);
  if (!context) return context.error();
  auto stream = Stream::create();
  if (!stream) return stream.error();
  GpuProblem out(*std::move(context), *std::move(stream), problem);
  if (auto uploaded = out.upload(scale, inputs); !uploaded) return uploaded.error();
  return out;
}

Result<void> GpuProblem::upload(float scale, const reference::HostInputs& inputs) {
  const auto place = [](DeviceBuffer& buffer, const auto& values, bool copy) -> Result<void> {
    const std::size_t bytes = values.size() * sizeof(values[0]);
    auto allocated = DeviceBuffer::allocate(bytes);
    if (!allocated) return allocated.error();
    buffer = *std::move(allocated);
    return copy ? buffer.copy_from_host(values.data(), bytes) : Result<void>();
  };
  for (const auto& [buffer, values, copy] : {std::tuple{&q_, &inputs.q, true},
                                             {&k_, &inputs.k, true},
                                             {&v_, &inputs.v, true},
                                             {&o_, &inputs.o, true},
                                             {&d_o_, &inputs.d_o, true},
                                             {&dq_, &inputs.q, false},
                                             {&dk_, &inputs.k, false},
                                             {&dv_, &inputs.v, false}}) {
    if (auto placed = place(*buffer, *values, copy); !placed) return placed;
  }
  if (auto placed = place(lse_, inputs.lse, true); !placed) return placed;
  const auto queries = [&](const DeviceBuffer& b) {
    return contiguous(b.data(), problem_.seqlen_q, problem_.heads, problem_.head_dim);
  };
  const auto keys = [&](const DeviceBuffer& b) {
    return contiguous(b.data(), problem_.seqlen_k, problem_.kv_heads, problem_.head_dim);
  };
  tensors_ = {queries(q_),  keys(k_),  keys(v_),  queries(o_), queries(d_o_), static_cast<const float*>(lse_.data()),
              queries(dq_), keys(dk_), keys(dv_), scale};
  return {};
}

Result<void> GpuProblem::use(const AttentionBackwardKernel& kernel) {
  auto bytes = kernel.workspace_bytes(problem_);
  if (!bytes) return bytes.error();
  auto workspace = DeviceBuffer::allocate(*bytes);
  if (!workspace) return workspace.error();
  workspace_ = *std::move(workspace);
  kernel_ = kernel;
  return {};
}

Result<void> GpuProblem::poison() {
  for (DeviceBuffer* buffer : {&dq_, &dk_, &dv_, &workspace_}) {
    if (auto filled = buffer->fill(0xff, stream_.get()); !filled) return filled;
  }
  return {};
}

Result<void> GpuProblem::launch() {
  if (!kernel_) return Error{ErrorCode::internal, "no kernel was given to the problem"};
  return kernel_->launch(problem_, tensors_, workspace_.data(), workspace_.bytes(), stream_.get());
}

Result<reference::HostGradients> GpuProblem::download() const {
  if (auto done = stream_.synchronize(); !done) return done.error();
  reference::HostGradients out;
  for (const auto& [buffer, values] : {std::pair{&dq_, &out.dq}, {&dk_, &out.dk}, {&dv_, &out.dv}}) {
    values->resize(buffer->bytes() / sizeof(std::uint16_t));
    if (auto copied = buffer->copy_to_host(values->data(), buffer->bytes()); !copied) return copied.error();
  }
  return out;
}

Result<reference::HostGradients> GpuProblem::run() {
  if (auto poisoned = poison(); !poisoned) return poisoned.error();
  if (auto launched = launch(); !launched) return launched.error();
  return download();
}

}  // namespace ordo::cli
