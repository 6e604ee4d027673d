// Parameters of the attention-forward kernel: the contract between the host's launch code and the device, included by both.
#pragma once

#include "sm90/tensor_map.cuh"

namespace ordo::attention_forward {

/// ordo_forward. Grid: q_tiles * heads * batch blocks, Q tiles fastest.
struct Params {
  TensorMap q, k, v;
  void* o;     ///< [batch, seqlen_q, heads, head_dim]
  float* lse;  ///< contiguous [batch, heads, seqlen_q], natural log; -inf where a row sees nothing
  long long o_batch_stride, o_seqlen_stride, o_head_stride;  ///< elements
  int seqlen_q, seqlen_k;
  int heads, group;  ///< query heads; query heads a KV head
  int q_tiles;
  float scale_log2;  ///< softmax scale * log2(e)
};

}  // namespace ordo::attention_forward
