#include "runtime/tensor_view.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace ordo {

Result<void> check_view(const char* name, const TensorView& view, std::int64_t batch, std::int64_t seqlen, std::int64_t heads) {
  const auto error = [&](const std::string& what) {
    return Error{ErrorCode::invalid_argument, fmt::format("tensor {}: {}", name, what)};
  };
  if (view.data == nullptr) return error("null pointer; pass a device pointer");
  if (reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0)
    return error(fmt::format("pointer {} is not 16-byte aligned; align it to 16 bytes", view.data));
  const std::array<std::array<std::int64_t, 2>, 3> dimensions{
      {{batch, view.batch_stride}, {seqlen, view.seqlen_stride}, {heads, view.head_stride}}};
  constexpr std::array names{"batch", "seqlen", "head"};
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    const auto [size, stride] = dimensions[i];
    if (size == 1) continue;
    if (stride <= 0 || stride % 8 != 0 || stride >= (std::int64_t{1} << 39))
      return error(
          fmt::format("{} stride of {} elements; it must be a positive multiple of 8 elements (16 bytes) below 2^39; "
                      "copy the tensor to a contiguous one otherwise",
                      names[i], stride));
  }
  return {};
}

Result<void> check_scale(float scale) {
  if (scale > 0 && std::isfinite(scale)) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("softmax scale is {}; it must be positive and finite (1/sqrt(head_dim) is usual)", scale)};
}

Result<void> encode_tensor_map(const Driver& driver, TensorMap& map, const char* what, const MappedTensor& tensor, int rows,
                               int chunks) {
  const std::array<cuuint64_t, 5> sizes{64, static_cast<cuuint64_t>(tensor.seqlen), static_cast<cuuint64_t>(tensor.head_dim) / 64,
                                        static_cast<cuuint64_t>(tensor.heads), static_cast<cuuint64_t>(tensor.batch)};
  // Strides in bytes, innermost left out. A dimension of size 1 is never stepped over: give it any legal stride.
  const auto bytes = [&](std::int64_t size, std::int64_t stride) {
    return static_cast<cuuint64_t>(size == 1 ? 128 : stride * 2);
  };
  const TensorView& view = tensor.view;
  const std::array<cuuint64_t, 4> strides{bytes(tensor.seqlen, view.seqlen_stride), 128, bytes(tensor.heads, view.head_stride),
                                          bytes(tensor.batch, view.batch_stride)};
  const std::array<cuuint32_t, 5> box{64, static_cast<cuuint32_t>(rows), static_cast<cuuint32_t>(chunks), 1, 1};
  const std::array<cuuint32_t, 5> steps{1, 1, 1, 1, 1};
  const CUtensorMapDataType type =
      tensor.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
  return driver.check(
      driver.tensorMapEncodeTiled(reinterpret_cast<CUtensorMap*>(&map), type, 5, view.data, sizes.data(), strides.data(),
                                  box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      what);
}

}  // namespace ordo
