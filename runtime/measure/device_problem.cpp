#include "runtime/measure/device_problem.hpp"

#include <cmath>
#include <utility>

namespace ordo::measure {
namespace {

Result<void> place(DeviceBuffer& buffer, std::size_t bytes) {
  auto allocated = DeviceBuffer::allocate(bytes);
  if (!allocated) return allocated.error();
  buffer = *std::move(allocated);
  return {};
}

template <class Value>
Result<void> copy(DeviceBuffer& buffer, const std::vector<Value>& values) {
  return buffer.copy_from_host(values.data(), values.size() * sizeof(Value));
}

template <class Value>
Result<void> fetch(const DeviceBuffer& buffer, std::vector<Value>& values) {
  values.resize(buffer.bytes() / sizeof(Value));
  return buffer.copy_to_host(values.data(), buffer.bytes());
}

/// Waits for what was enqueued on `stream`.
Result<void> wait(CUstream_st* stream) {
  const auto done = Event::create();
  if (!done) return done.error();
  if (auto ok = done->record(stream); !ok) return ok;
  return done->synchronize();
}

}  // namespace

Result<void> DeviceProblem::allocate(float scale) {
  const AttentionBackward& p = problem_;
  const auto rows = static_cast<std::size_t>(p.batch * p.heads * p.seqlen_q);
  const auto query_bytes = rows * static_cast<std::size_t>(p.head_dim) * 2;
  const auto key_bytes = static_cast<std::size_t>(p.batch * p.kv_heads * p.seqlen_k * p.head_dim) * 2;
  for (DeviceBuffer* buffer : {&q_, &o_, &d_o_, &dq_})
    if (auto ok = place(*buffer, query_bytes); !ok) return ok;
  for (DeviceBuffer* buffer : {&k_, &v_, &dk_, &dv_})
    if (auto ok = place(*buffer, key_bytes); !ok) return ok;
  if (auto ok = place(lse_, rows * sizeof(float)); !ok) return ok;
  for (DeviceBuffer* buffer : {&o_, &lse_, &dq_, &dk_, &dv_})
    if (auto ok = buffer->fill(0xff, stream_); !ok) return ok;
  const auto queries = [&](const DeviceBuffer& b) { return contiguous(b.data(), p.seqlen_q, p.heads, p.head_dim); };
  const auto keys = [&](const DeviceBuffer& b) { return contiguous(b.data(), p.seqlen_k, p.kv_heads, p.head_dim); };
  tensors_ = {queries(q_),  keys(k_),  keys(v_),  queries(o_), queries(d_o_), static_cast<const float*>(lse_.data()),
              queries(dq_), keys(dk_), keys(dv_), scale};
  return {};
}

Result<DeviceProblem> DeviceProblem::upload(const AttentionBackward& problem, float scale, const reference::HostInputs& inputs,
                                            CUstream_st* stream) {
  DeviceProblem out(problem, stream);
  if (auto ok = out.allocate(scale); !ok) return ok.error();
  if (auto ok = out.synchronize(); !ok) return ok.error();  // copies from the host do not wait for the stream
  for (const auto& [buffer, values] : {std::pair{&out.q_, &inputs.q},
                                       {&out.k_, &inputs.k},
                                       {&out.v_, &inputs.v},
                                       {&out.o_, &inputs.o},
                                       {&out.d_o_, &inputs.d_o}})
    if (auto ok = copy(*buffer, *values); !ok) return ok.error();
  if (auto ok = copy(out.lse_, inputs.lse); !ok) return ok.error();
  if (auto ok = wait(nullptr); !ok) return ok.error();  // a small copy returns before it has arrived
  return out;
}

Result<DeviceProblem> DeviceProblem::random(const AttentionBackward& problem, std::uint64_t seed, const HelperKernels& helpers,
                                            CUstream_st* stream) {
  DeviceProblem out(problem, stream);
  if (auto ok = out.allocate(1 / std::sqrt(static_cast<float>(problem.head_dim))); !ok) return ok.error();
  std::uint64_t number = 4 * seed;
  for (DeviceBuffer* buffer : {&out.q_, &out.k_, &out.v_, &out.d_o_})
    if (auto ok = helpers.fill_normal(*buffer, problem.dtype, number++, stream); !ok) return ok.error();
  return out;
}

Result<void> DeviceProblem::run_forward(const AttentionForward& forward) {
  const AttentionBackwardTensors& t = tensors_;
  return forward.launch(problem_, {t.q, t.k, t.v, t.o, static_cast<float*>(lse_.data()), t.scale}, stream_);
}

Result<void> DeviceProblem::download_forward(reference::HostInputs& inputs) const {
  if (auto ok = synchronize(); !ok) return ok;
  if (auto ok = fetch(o_, inputs.o); !ok) return ok;
  return fetch(lse_, inputs.lse);
}

Result<void> DeviceProblem::reserve(const AttentionBackwardKernel& kernel) {
  auto bytes = kernel.workspace_bytes(problem_);
  if (!bytes) return bytes.error();
  if (*bytes <= workspace_.bytes()) return {};
  if (auto ok = synchronize(); !ok) return ok;  // a launch may use the one that goes
  workspace_ = DeviceBuffer();
  return place(workspace_, *bytes);
}

Result<void> DeviceProblem::poison(std::uint8_t byte) {
  for (DeviceBuffer* buffer : {&dq_, &dk_, &dv_, &workspace_})
    if (auto ok = buffer->fill(byte, stream_); !ok) return ok;
  return {};
}

Result<void> DeviceProblem::launch(const AttentionBackwardKernel& kernel) {
  return kernel.launch(problem_, tensors_, workspace_.data(), workspace_.bytes(), stream_);
}

Result<std::vector<CtaStalls>> DeviceProblem::stalls(const AttentionBackwardKernel& kernel) const {
  return kernel.stalls(problem_, workspace_.data(), stream_);
}

Result<void> DeviceProblem::synchronize() const { return wait(stream_); }

Result<reference::HostGradients> DeviceProblem::download() const {
  if (auto ok = synchronize(); !ok) return ok.error();
  reference::HostGradients out;
  for (const auto& [buffer, values] : {std::pair{&dq_, &out.dq}, {&dk_, &out.dk}, {&dv_, &out.dv}})
    if (auto ok = fetch(*buffer, *values); !ok) return ok.error();
  return out;
}

Result<std::uint64_t> DeviceProblem::differing_words(const AttentionBackwardKernel& kernel, int repeats,
                                                     const HelperKernels& helpers) {
  const std::array<DeviceBuffer*, 3> outputs{&dq_, &dk_, &dv_};
  std::array<DeviceBuffer, 3> first;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (auto ok = place(first[i], outputs[i]->bytes()); !ok) return ok.error();
  std::uint64_t differing = 0;
  for (int repeat = 0; repeat <= repeats; ++repeat) {
    if (auto ok = poison(static_cast<std::uint8_t>(0xff - 50 * repeat)); !ok) return ok.error();
    if (auto ok = launch(kernel); !ok) return ok.error();
    if (auto ok = synchronize(); !ok) return ok.error();
    if (repeat == 0) {  // the next launch writes the other set
      std::swap(dq_, first[0]);
      std::swap(dk_, first[1]);
      std::swap(dv_, first[2]);
      tensors_.dq.data = dq_.data();
      tensors_.dk.data = dk_.data();
      tensors_.dv.data = dv_.data();
      continue;
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      auto words = helpers.count_differing_words(*outputs[i], first[i], stream_);
      if (!words) return words.error();
      differing += *words;
    }
  }
  return differing;
}

}  // namespace ordo::measure
