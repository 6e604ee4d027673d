#include "runtime/attention_forward.hpp"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <numbers>
#include <utility>

#include "codegen/generate/attention_forward.hpp"
#include "runtime/kernel_set.hpp"
#include "runtime/launch.hpp"
#include "runtime/tensor_view.hpp"
#include "templates/attention_forward/params.cuh"

namespace ordo {

namespace device = attention_forward;

struct AttentionForward::Impl {
  AttentionBackward made_for;
  KernelReport report;
  KernelSet kernels;
};

AttentionForward::AttentionForward(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

const KernelReport& AttentionForward::report() const { return impl_->report; }

Result<AttentionForward> AttentionForward::create(const AttentionBackward& problem, const KernelBuilderOptions& options) {
  if (auto valid = problem.validate(); !valid) return valid.error();
  const KernelSource source = generate_attention_forward(problem, Target{});
  const std::string what = fmt::format("attention-forward dtype={} head_dim={} mask={}", to_string(problem.dtype),
                                       problem.head_dim, to_string(problem.mask));
  auto built = KernelBuilder(options).build({source}, what);
  if (!built) return built.error();
  std::vector<KernelImage> images;
  images.push_back(
      {source.name, source.entry, source.arch, source.threads, source.shared_bytes, 1, std::move((*built)[0].cubin)});
  return AttentionForward(
      std::make_shared<const Impl>(Impl{problem, std::move((*built)[0].report), KernelSet(std::move(images))}));
}

namespace {

Result<void> check_tensors(const AttentionBackward& p, const AttentionForwardTensors& t) {
  if (auto ok = check_view("q", t.q, p.batch, p.seqlen_q, p.heads); !ok) return ok;
  if (auto ok = check_view("k", t.k, p.batch, p.seqlen_k, p.kv_heads); !ok) return ok;
  if (auto ok = check_view("v", t.v, p.batch, p.seqlen_k, p.kv_heads); !ok) return ok;
  if (auto ok = check_view("o", t.o, p.batch, p.seqlen_q, p.heads); !ok) return ok;
  if (t.lse == nullptr || reinterpret_cast<std::uintptr_t>(t.lse) % 4 != 0)
    return Error{ErrorCode::invalid_argument, "tensor lse: null or not 4-byte aligned; pass a device pointer to fp32"};
  return check_scale(t.scale);
}

}  // namespace

Result<void> AttentionForward::launch(const AttentionBackward& problem, const AttentionForwardTensors& tensors,
                                      CUstream_st* stream) const {
  if (auto valid = problem.validate(); !valid) return valid;
  const AttentionBackward& made_for = impl_->made_for;
  if (problem.dtype != made_for.dtype || problem.head_dim != made_for.head_dim || problem.mask != made_for.mask)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("this forward is for dtype {}, head_dim {}, mask {}; the problem is {}", to_string(made_for.dtype),
                             made_for.head_dim, to_string(made_for.mask), to_text(problem))};
  if (auto ok = check_tensors(problem, tensors); !ok) return ok;
  const std::int64_t q_tiles = (problem.seqlen_q + device::kTileQ - 1) / device::kTileQ;
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (problem.seqlen_q > most - device::kTileQ || problem.seqlen_k > most - device::kTileKv ||
      problem.batch > most / problem.heads || problem.batch * problem.heads > most / q_tiles)
    return Error{ErrorCode::unsupported, fmt::format("{} is more than one launch can number; split the batch", to_text(problem))};

  const auto loaded = impl_->kernels.load(stream);
  if (!loaded) return loaded.error();
  const Driver& driver = *(*loaded)->driver;
  device::Params params{};
  struct Wanted {
    TensorMap* map;
    const char* what;
    const TensorView* view;
    std::int64_t seqlen, heads;
  };
  const std::array<Wanted, 3> wanted{
      {{&params.q, "cuTensorMapEncodeTiled of q", &tensors.q, problem.seqlen_q, problem.heads},
       {&params.k, "cuTensorMapEncodeTiled of k", &tensors.k, problem.seqlen_k, problem.kv_heads},
       {&params.v, "cuTensorMapEncodeTiled of v", &tensors.v, problem.seqlen_k, problem.kv_heads}}};
  static_assert(device::kTileQ == device::kTileKv);
  for (const Wanted& w : wanted) {
    const MappedTensor tensor{*w.view, problem.batch, w.seqlen, w.heads, problem.head_dim, problem.dtype};
    if (auto ok = encode_tensor_map(driver, *w.map, w.what, tensor, device::kTileQ, static_cast<int>(problem.head_dim / 64)); !ok)
      return ok;
  }
  params.o = tensors.o.data;
  params.lse = tensors.lse;
  params.o_batch_stride = tensors.o.batch_stride;
  params.o_seqlen_stride = tensors.o.seqlen_stride;
  params.o_head_stride = tensors.o.head_stride;
  params.seqlen_q = static_cast<int>(problem.seqlen_q);
  params.seqlen_k = static_cast<int>(problem.seqlen_k);
  params.heads = static_cast<int>(problem.heads);
  params.group = static_cast<int>(problem.group());
  params.q_tiles = static_cast<int>(q_tiles);
  params.scale_log2 = static_cast<float>(tensors.scale * std::numbers::log2e);
  const auto blocks = static_cast<unsigned>(q_tiles * problem.batch * problem.heads);
  return launch_kernel(driver, (*loaded)->kernels.front().function, "launch of ordo_forward", {blocks}, device::kThreads,
                       device::layout_of(forward_config(problem)).bytes, params, stream, {});
}

}  // namespace ordo
