// Stand-in for what the generator writes in place of this file: the Config of one plan and the wgmma wrappers it needs.
// It lets editors and clangd read the templates; no kernel is built from it.
#pragma once

#include "overlap/config.cuh"
#include "sm90/basic.cuh"
#include "sm90/wgmma.cuh"

namespace ordo::overlap {

inline constexpr Config config{
    .op = Op::gemm,
    .ranks = 1,
    .fp16 = false,
    .a_column = false,
    .b_column = true,
    .out_fp32 = false,
    .bias = false,
    .activation = Activation::none,
    .partial_fp32 = false,
    .direct = false,
    .tile_m = 128,
    .tile_n = 256,
    .stages = 4,
    .cluster = 2,
    .store_buffers = 2,
};

}  // namespace ordo::overlap

namespace ordo {
/// Two floats to a pair of 16-bit elements, `low` in the low half, round to nearest even.
ORDO_DEVICE u32 pack(float low, float high);
/// The inverse.
ORDO_DEVICE float2 unpack_pair(u32 pair);
}  // namespace ordo
