#include "runtime/attention_launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numbers>

#include "codegen/generate/config.hpp"
#include "codegen/schedule/proof.hpp"
#include "codegen/schedule/visit_table.hpp"
#include "runtime/kernel_impl.hpp"
#include "runtime/launch.hpp"
#include "runtime/tensor_view.hpp"
#include "templates/attention_backward/params.cuh"
#include "templates/attention_backward/shared_memory.cuh"

namespace ordo {
namespace {

namespace device = attention_backward;

std::size_t tiles_of(const AttentionBackward& problem, const Plan& plan) {
  return static_cast<std::size_t>(problem.batch * problem.heads * ((problem.seqlen_q + plan.tile_q - 1) / plan.tile_q));
}

device::Strides strides_of(const TensorView& view) { return {view.batch_stride, view.seqlen_stride, view.head_stride}; }

device::Scratch scratch_of(void* workspace, const WorkspaceLayout& layout) {
  char* base = static_cast<char*>(workspace);
  return {.neg_lse2 = reinterpret_cast<float*>(base + layout.neg_lse2),
          .neg_delta = reinterpret_cast<float*>(base + layout.neg_delta),
          .dq = base + layout.dq,
          .control = reinterpret_cast<unsigned int*>(base + layout.control),
          .row_scale = reinterpret_cast<float*>(base + layout.row_scale),
          .poison = reinterpret_cast<unsigned int*>(base + layout.poison),
          .key_exponents = reinterpret_cast<int*>(base + layout.key_exponents)};
}

/// Lets a kernel start while the one before it drains; it waits itself (griddepcontrol.wait) before it reads what that one wrote.
CUlaunchAttribute early_start() {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

CUlaunchAttribute cooperative() {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  return attribute;
}

}  // namespace

/// CTAs of a launch that Flavour::stalls has room for: more than any device holds at once.
constexpr std::size_t kMostMeasured = 4096;

WorkspaceLayout workspace_layout(const AttentionBackward& problem, const Plan& plan, Flavour flavour) {
  const std::size_t tiles = tiles_of(problem, plan), rows = tiles * static_cast<std::size_t>(plan.tile_q);
  const auto walks = static_cast<std::size_t>(problem.batch * problem.kv_heads);
  const bool exact = plan.accumulate == Accumulate::exact;
  WorkspaceLayout layout;
  const auto take = [&](std::size_t bytes) {
    const std::size_t first = layout.total;
    layout.total += (bytes + 255) / 256 * 256;
    return first;
  };
  layout.dq = take(rows * static_cast<std::size_t>(plan.head_dim) * 4);
  layout.neg_lse2 = take(rows * 4);
  layout.neg_delta = take(rows * 4);
  layout.control = take((static_cast<std::size_t>(device::kFirstSemaphore) + 2 * tiles) * 4);
  layout.row_scale = take(exact ? rows * 4 : 0);
  layout.poison = take(exact ? rows * 4 : 0);
  layout.key_exponent_bytes = exact ? walks * (static_cast<std::size_t>(plan.head_dim) + 1) * 4 : 0;
  layout.key_exponents = take(layout.key_exponent_bytes);
  layout.stall_bytes = flavour == Flavour::stalls ? kMostMeasured * 2 * sizeof(device::AdderClocks) : 0;
  layout.stalls = take(layout.stall_bytes);
  return layout;
}

Result<void> check_tensors(const AttentionBackward& problem, const AttentionBackwardTensors& tensors) {
  struct Named {
    const char* name;
    const TensorView* view;
    bool keys;
  };
  const std::array<Named, 8> views{{{"q", &tensors.q, false},
                                    {"k", &tensors.k, true},
                                    {"v", &tensors.v, true},
                                    {"o", &tensors.o, false},
                                    {"do", &tensors.d_o, false},
                                    {"dq", &tensors.dq, false},
                                    {"dk", &tensors.dk, true},
                                    {"dv", &tensors.dv, true}}};
  for (const Named& tensor : views)
    if (auto ok = check_view(tensor.name, *tensor.view, problem.batch, tensor.keys ? problem.seqlen_k : problem.seqlen_q,
                             tensor.keys ? problem.kv_heads : problem.heads);
        !ok)
      return ok;
  if (tensors.lse == nullptr || reinterpret_cast<std::uintptr_t>(tensors.lse) % 4 != 0)
    return Error{ErrorCode::invalid_argument, "tensor lse: null or not 4-byte aligned; pass a device pointer to fp32"};
  return check_scale(tensors.scale);
}

namespace {

struct Launcher {
  const Driver& driver;
  const AttentionFunctions& functions;
  const AttentionBackward& problem;
  const Plan& plan;
  const AttentionBackwardTensors& tensors;
  CUstream stream;
  schedule::Geometry geometry;
  device::Scratch scratch;
  device::Shape shape;
  device::AdderClocks* stalls;  ///< null unless they are measured

  Result<void> scales(void* key_exponents, std::size_t bytes) const {
    // The maxima of this launch, not of the one before. Zero means "nothing seen".
    const auto address = reinterpret_cast<CUdeviceptr>(key_exponents);
    if (auto ok = driver.check(driver.memsetD8Async(address, 0, bytes, stream), "cuMemsetD8Async of the key exponents"); !ok)
      return ok;
    device::ScalesParams params{tensors.k.data, tensors.v.data, strides_of(tensors.k), strides_of(tensors.v), scratch, shape};
    const auto blocks = static_cast<unsigned>((problem.seqlen_k + device::kScaleRows - 1) / device::kScaleRows);
    return launch_kernel(driver, functions.scales, "launch of ordo_scales", {blocks, static_cast<unsigned>(shape.walks)},
                         device::kElementwiseThreads, 0, params, stream, {});
  }

  [[nodiscard]] unsigned tiles() const { return static_cast<unsigned>(tiles_of(problem, plan)); }

  Result<void> preprocess() const {
    device::PreprocessParams params{tensors.o.data,          tensors.d_o.data, tensors.lse, strides_of(tensors.o),
                                    strides_of(tensors.d_o), scratch,          shape};
    return launch_kernel(driver, functions.preprocess, "launch of ordo_preprocess", {tiles()}, device::kElementwiseThreads, 0,
                         params, stream, {});
  }

  Result<void> main() const {
    device::MainParams params{};
    // In a cluster each CTA fetches half of every Q and dO tile, 64 columns at a time; alone it fetches whole rows.
    const int chunks = plan.cluster == 2 ? 1 : plan.head_dim / 64;
    const int q_rows = plan.tile_q / plan.cluster;
    struct Wanted {
      TensorMap* map;
      const char* name;
      const TensorView* view;
      bool keys;
      int rows, chunks;
    };
    const std::array<Wanted, 6> wanted{{{&params.q, "cuTensorMapEncodeTiled of q", &tensors.q, false, q_rows, chunks},
                                        {&params.d_o, "cuTensorMapEncodeTiled of do", &tensors.d_o, false, q_rows, chunks},
                                        {&params.k, "cuTensorMapEncodeTiled of k", &tensors.k, true, plan.tile_kv, chunks},
                                        {&params.v, "cuTensorMapEncodeTiled of v", &tensors.v, true, plan.tile_kv, chunks},
                                        {&params.dk, "cuTensorMapEncodeTiled of dk", &tensors.dk, true, 64, 1},
                                        {&params.dv, "cuTensorMapEncodeTiled of dv", &tensors.dv, true, 64, 1}}};
    for (const Wanted& w : wanted) {
      const std::int64_t seqlen = w.keys ? problem.seqlen_k : problem.seqlen_q, heads = w.keys ? problem.kv_heads : problem.heads;
      const MappedTensor tensor{*w.view, problem.batch, seqlen, heads, problem.head_dim, problem.dtype};
      if (auto ok = encode_tensor_map(driver, *w.map, w.name, tensor, w.rows, w.chunks); !ok) return ok;
    }
    params.dq = dq_output();
    params.scratch = scratch;
    params.shape = shape;
    params.scale = tensors.scale;
    params.scale_log2 = static_cast<float>(tensors.scale * std::numbers::log2e);
    params.arrival = functions.arrival;
    params.stalls = stalls;
    const int shared_bytes = device::layout_of(device_config(plan)).bytes;
    const std::int64_t items = schedule::items(geometry);
    if (plan.accumulate == Accumulate::ordered && schedule::waits_on_later_items(geometry.kind)) {
      // These schedules are proved for plan.workers resident clusters: the launch must guarantee them.
      if (functions.resident_clusters < plan.workers)
        return Error{
            ErrorCode::invalid_plan,
            fmt::format(
                "schedule {} needs {} clusters of {} CTAs resident at once and this device holds {}; plan for this device "
                "or use schedule descending",
                to_string(plan.schedule), plan.workers, plan.cluster, functions.resident_clusters)};
      const auto clusters = static_cast<unsigned>(std::min<std::int64_t>(items, plan.workers));
      return launch_kernel(driver, functions.main, "launch of ordo_main", {clusters * static_cast<unsigned>(plan.cluster)},
                           device::kMainThreads, shared_bytes, params, stream, {cooperative()});
    }
    const auto clusters = static_cast<unsigned>(std::min<std::int64_t>(items, std::max(functions.resident_clusters, 1)));
    return launch_kernel(driver, functions.main, "launch of ordo_main", {clusters * static_cast<unsigned>(plan.cluster)},
                         device::kMainThreads, shared_bytes, params, stream, {early_start()});
  }

  [[nodiscard]] device::DqOutput dq_output() const { return {tensors.dq.data, strides_of(tensors.dq), tensors.scale}; }

  Result<void> convert() const {
    device::ConvertParams params{dq_output(), scratch, shape};
    return launch_kernel(driver, functions.convert, "launch of ordo_convert", {tiles()},
                         device::convert_threads(device_config(plan)), 0, params, stream, {early_start()});
  }
};

}  // namespace

Result<void> launch_attention_backward(const Driver& driver, const AttentionFunctions& functions,
                                       const AttentionBackward& problem, const Plan& plan, Flavour flavour,
                                       const AttentionBackwardTensors& tensors, void* workspace, CUstream stream) {
  const WorkspaceLayout layout = workspace_layout(problem, plan, flavour);
  const schedule::Geometry g = make_geometry(problem, plan);
  const device::Shape shape{.seqlen_q = g.seqlen_q,
                            .seqlen_k = g.seqlen_k,
                            .kv_heads = static_cast<int>(problem.kv_heads),
                            .q_tiles = g.q_tiles,
                            .units = g.units,
                            .walks = g.walks,
                            .head_group = g.head_group,
                            .wave = g.wave,
                            .stride = g.stride};
  device::AdderClocks* stalls = nullptr;
  if (layout.stall_bytes > 0) {
    stalls = reinterpret_cast<device::AdderClocks*>(static_cast<char*>(workspace) + layout.stalls);
    // CTAs beyond the grid stay 0 and are told so from those in it.
    const auto address = reinterpret_cast<CUdeviceptr>(stalls);
    if (auto ok = driver.check(driver.memsetD8Async(address, 0, layout.stall_bytes, stream), "cuMemsetD8Async of the stalls");
        !ok)
      return ok;
  }
  const Launcher launcher{driver, functions, problem, plan, tensors, stream, g, scratch_of(workspace, layout), shape, stalls};
  if (plan.accumulate == Accumulate::exact)
    if (auto ok = launcher.scales(launcher.scratch.key_exponents, layout.key_exponent_bytes); !ok) return ok;
  if (auto ok = launcher.preprocess(); !ok) return ok;
  if (auto ok = launcher.main(); !ok) return ok;
  if (plan.accumulate == Accumulate::ordered) return {};  // the main kernel has converted dQ
  return launcher.convert();
}

Result<std::size_t> AttentionBackwardKernel::workspace_bytes(const AttentionBackward& problem) const {
  if (auto fits = check_fit(problem, impl_->plan); !fits) return fits.error();
  return workspace_layout(problem, impl_->plan, impl_->flavour).total;
}

Result<std::vector<CtaStalls>> AttentionBackwardKernel::stalls(const AttentionBackward& problem, const void* workspace,
                                                               CUstream_st* stream) const {
  if (impl_->flavour != Flavour::stalls)
    return Error{ErrorCode::invalid_argument, "stalls are measured by kernels that were prepared with Flavour::stalls"};
  const auto loaded = impl_->kernels.load(stream);
  if (!loaded) return loaded.error();
  const Driver& d = *(*loaded)->driver;
  const WorkspaceLayout layout = workspace_layout(problem, impl_->plan, impl_->flavour);
  std::vector<device::AdderClocks> clocks(layout.stall_bytes / sizeof(device::AdderClocks));
  const auto from = reinterpret_cast<CUdeviceptr>(static_cast<const char*>(workspace) + layout.stalls);
  if (auto ok = d.check(d.memcpyDtoHAsync(clocks.data(), from, layout.stall_bytes, stream), "cuMemcpyDtoHAsync of the stalls");
      !ok)
    return ok.error();
  if (auto ok = d.check(d.streamSynchronize(stream), "cuStreamSynchronize"); !ok) return ok.error();
  std::vector<CtaStalls> out;
  for (std::size_t cta = 0; 2 * cta < clocks.size(); ++cta) {
    CtaStalls sum;
    for (const device::AdderClocks& adder : {clocks[2 * cta], clocks[2 * cta + 1]}) {
      sum.waited = std::max(sum.waited, static_cast<std::int64_t>(adder.waited));
      sum.running = std::max(sum.running, static_cast<std::int64_t>(adder.running));
    }
    if (sum.running > 0) out.push_back(sum);
  }
  return out;
}

Result<void> AttentionBackwardKernel::launch(const AttentionBackward& problem, const AttentionBackwardTensors& tensors,
                                             void* workspace, std::size_t workspace_bytes, CUstream_st* stream) const {
  const Plan& plan = impl_->plan;
  if (auto fits = check_fit(problem, plan); !fits) return fits;
  if (auto ok = check_tensors(problem, tensors); !ok) return ok;
  const std::size_t needed = workspace_layout(problem, plan, impl_->flavour).total;
  if (workspace == nullptr || reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0)
    return Error{ErrorCode::invalid_argument, fmt::format("workspace {} is null or not 256-byte aligned", workspace)};
  if (workspace_bytes < needed)
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("the workspace has {} bytes; this problem needs {} (see workspace_bytes())", workspace_bytes, needed)};
  const auto loaded = impl_->kernels.load(stream);
  if (!loaded && loaded.error().code == ErrorCode::not_prepared) {
    return Error{ErrorCode::not_prepared,
                 fmt::format("{} It was '{}', by plan '{}'.", loaded.error().message, to_text(problem), to_text(plan))};
  }
  if (!loaded) return loaded.error();
  const LoadedKernels& kernels = **loaded;
  const auto function = [&](std::string_view name) {
    const LoadedKernel* kernel = kernels.find(name);
    return kernel == nullptr ? nullptr : kernel->function;
  };
  const LoadedKernel* main = kernels.find("main");
  AttentionFunctions functions{main->function, function("preprocess"), function("convert"), function("scales"),
                               main->resident_clusters};
  if (reads_table(plan)) {
    const auto table = impl_->arrival.get(kernels, problem, plan, stream);
    if (!table) return table.error();
    functions.arrival = *table;
  }
  return launch_attention_backward(*kernels.driver, functions, problem, plan, impl_->flavour, tensors, workspace, stream);
}

}  // namespace ordo
