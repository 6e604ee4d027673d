#include "runtime/measure/helper_kernels.hpp"

#include <utility>
#include <vector>

#include "codegen/generate/expand.hpp"
#include "runtime/kernel_set.hpp"
#include "runtime/launch.hpp"

namespace ordo::measure {

struct HelperKernels::Impl {
  KernelSet kernels;
};

HelperKernels::HelperKernels(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

namespace {

KernelSource source_of(const std::string& name) {
  return {name, "ordo_" + name, expand_template("helpers/" + name + ".cuh", "", ""), Target{}.arch, helpers::kThreads, 0};
}

template <class Params>
Result<void> launch(const KernelSet& kernels, const char* name, const char* what, Params params, CUstream_st* stream) {
  auto loaded = kernels.load(stream);
  if (!loaded) return loaded.error();
  return launch_kernel(*(*loaded)->driver, (*loaded)->find(name)->function, what, {helpers::kBlocks}, helpers::kThreads, 0,
                       params, stream, {});
}

}  // namespace

Result<HelperKernels> HelperKernels::create(const KernelBuilderOptions& options) {
  const std::vector<KernelSource> sources{source_of("normal"), source_of("differ"), source_of("product"), source_of("deviation"),
                                          source_of("padding")};
  auto built = KernelBuilder(options).build(sources, "helpers");
  if (!built) return built.error();
  std::vector<KernelImage> images;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const KernelSource& source = sources[i];
    images.push_back({source.name, source.entry, source.arch, source.threads, 0, 1, std::move((*built)[i].cubin)});
  }
  return HelperKernels(std::make_shared<const Impl>(Impl{KernelSet(std::move(images))}));
}

Result<void> HelperKernels::fill_normal(DeviceBuffer& buffer, DType dtype, std::uint64_t seed, CUstream_st* stream) const {
  const helpers::NormalParams params{.out = static_cast<unsigned int*>(buffer.data()),
                                     .pairs = static_cast<long long>(buffer.bytes() / 4),
                                     .seed = seed,
                                     .fp16 = dtype == DType::fp16};
  return launch(impl_->kernels, "normal", "launch of ordo_normal", params, stream);
}

Result<std::uint64_t> HelperKernels::count_differing_words(const DeviceBuffer& a, const DeviceBuffer& b,
                                                           CUstream_st* stream) const {
  auto count = DeviceBuffer::allocate(sizeof(std::uint64_t));
  if (!count) return count.error();
  if (auto ok = count->fill(0, stream); !ok) return ok.error();
  const helpers::DifferParams params{.a = static_cast<const unsigned int*>(a.data()),
                                     .b = static_cast<const unsigned int*>(b.data()),
                                     .words = static_cast<long long>(a.bytes() / 4),
                                     .count = static_cast<unsigned long long*>(count->data())};
  if (auto ok = launch(impl_->kernels, "differ", "launch of ordo_differ", params, stream); !ok) return ok.error();
  const auto done = Event::create();
  if (!done) return done.error();
  if (auto ok = done->record(stream); !ok) return ok.error();
  if (auto ok = done->synchronize(); !ok) return ok.error();
  std::uint64_t value = 0;
  if (auto ok = count->copy_to_host(&value, sizeof(value)); !ok) return ok.error();
  return value;
}

Result<void> HelperKernels::add_product(const helpers::ProductParams& params, CUstream_st* stream) const {
  return launch(impl_->kernels, "product", "launch of ordo_product", params, stream);
}

Result<void> HelperKernels::compare(const helpers::DeviationParams& params, CUstream_st* stream) const {
  return launch(impl_->kernels, "deviation", "launch of ordo_deviation", params, stream);
}

Result<void> HelperKernels::count_padding(const helpers::PaddingParams& params, CUstream_st* stream) const {
  return launch(impl_->kernels, "padding", "launch of ordo_padding", params, stream);
}

}  // namespace ordo::measure
