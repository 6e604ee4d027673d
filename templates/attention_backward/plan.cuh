// Stand-in for what the generator writes in place of this file: the Config of one plan and the wgmma wrappers it needs.
// It lets editors and clangd read the templates; no kernel is built from it.
#pragma once

#include "attention_backward/config.cuh"
#include "expression/functions.cuh"
#include "sm90/basic.cuh"
#include "sm90/wgmma.cuh"

namespace ordo::attention_backward {

inline constexpr Config config{
    .fp16 = false,
    .head_dim = 128,
    .causal = false,
    .mask_expression = false,
    .mask_reads_head = false,
    .group = 1,
    .schedule = schedule::Kind::ascending,
    .accumulate = Accumulate::ordered,
    .tile_q = 64,
    .tile_kv = 128,
    .stages = 2,
    .cluster = 2,
    .dq_buffers = 1,
    .state_in_consumer = false,
    .consumer_registers = 0,
    .static_shape = false,
    .seqlen_q = 0,
    .seqlen_k = 0,
    .kv_heads = 0,
    .walks = 0,
};

/// Masks by expression: whether a query sees a key.
ORDO_DEVICE bool visible(int q, int k, int head, int batch, int seqlen_q, int seqlen_k);

}  // namespace ordo::attention_backward

namespace ordo {
/// Two floats to a pair of 16-bit elements, `low` in the low half, round to nearest even.
ORDO_DEVICE u32 pack(float low, float high);
/// The inverse.
ORDO_DEVICE float2 unpack_pair(u32 pair);
}  // namespace ordo
