// Stand-in for what the generator writes in place of this file: the Config of one kernel and the wgmma wrappers it needs.
// It lets editors and clangd read the templates; no kernel is built from it.
#pragma once

#include "attention_forward/config.cuh"
#include "expression/functions.cuh"
#include "sm90/basic.cuh"
#include "sm90/wgmma.cuh"

namespace ordo::attention_forward {

inline constexpr Config config{
    .fp16 = false,
    .head_dim = 128,
    .causal = false,
    .mask_expression = false,
};

/// Masks by expression: whether a query sees a key.
ORDO_DEVICE bool visible(int q, int k, int head, int batch, int seqlen_q, int seqlen_k);

}  // namespace ordo::attention_forward

namespace ordo {
/// Two floats to a pair of 16-bit elements, `low` in the low half, round to nearest even.
ORDO_DEVICE u32 pack(float low, float high);
}  // namespace ordo
