// Parameters of the attention-backward kernels: the contract between the host's launch code and the device, included by both.
// Sizes are elements unless said; a "tile" counts Q tiles of all batches and query heads: tile = (batch * heads + head) * q_tiles
// + q.
#pragma once

#include "sm90/tensor_map.cuh"

namespace ordo::attention_backward {

/// What a schedule needs of the shape (schedule::Geometry without the fields that are baked into the kernel).
struct Shape {
  int seqlen_q, seqlen_k;
  int kv_heads;
  int q_tiles, units, walks;
  int head_group, wave, stride;
};

/// A [batch, seqlen, heads, head_dim] tensor outside TMA; strides in elements.
struct Strides {
  long long batch, seqlen, head;
};

/// Scratch in the caller's workspace.
struct Scratch {
  float* neg_lse2;        ///< [tile][tile_q]: -LSE * log2(e); -inf where a row sees nothing or lies beyond seqlen_q
  float* neg_delta;       ///< [tile][tile_q]: -rowsum(dO * O); 0 in such rows
  void* dq;               ///< [tile][2 slices][64 x 64 in wgmma fragment order]: fp32, or int32 for exact
  unsigned int* control;  ///< [0]: ticket; [32 ...]: semaphores, two a tile. Zeroed by preprocess
  float* row_scale;       ///< exact: [tile][tile_q]: 2^30 / R_i
  unsigned int* poison;   ///< exact: [tile][tile_q]: nonzero where a non-finite partial was met
  int* key_exponents;  ///< exact: [walk][head_dim + 1]: exponents of max_j |K_jd| and of max_j ||V_j||, biased; filled by scales
};

/// Scratch::key_exponents holds exponents plus this bias, so that zeroed memory means "nothing but zeros seen".
inline constexpr int kExponentBias = 1024;

/// First semaphore in Scratch::control: a cache line away from the ticket.
inline constexpr int kFirstSemaphore = 32;

/// dQ in the caller's layout and type.
struct DqOutput {
  void* data;
  Strides strides;
  float scale;  ///< softmax scale: dQ = scale * dS K
};

/// measure_stalls: what an adding warp of a CTA did, in SM clocks.
struct AdderClocks {
  long long waited;   ///< for turns to add
  long long running;  ///< from its first step to the end of its last add
};

/// ordo_main
struct MainParams {
  TensorMap q, d_o, k, v, dk, dv;
  DqOutput dq;  ///< `ordered` only: there the main kernel writes dQ itself
  Scratch scratch;
  Shape shape;
  float scale;
  float scale_log2;             ///< scale * log2(e)
  const unsigned int* arrival;  ///< schedule arrival and masks by expression: the table of visits (schedule/schedule.cuh)
  AdderClocks* stalls;          ///< measure_stalls only: [CTA][2]
};

/// ordo_preprocess: one block a Q tile
struct PreprocessParams {
  const void* o;
  const void* d_o;
  const float* lse;  ///< contiguous [batch, heads, seqlen_q]
  Strides o_strides, do_strides;
  Scratch scratch;
  Shape shape;
};

/// ordo_convert (`atomic` and `exact`): one block a Q tile
struct ConvertParams {
  DqOutput dq;
  Scratch scratch;
  Shape shape;
};

inline constexpr int kScaleRows = 128;  // keys a block of ordo_scales reads

/// ordo_scales: blocks {ceil(seqlen_k / kScaleRows), walks}
struct ScalesParams {
  const void* k;
  const void* v;
  Strides k_strides, v_strides;
  Scratch scratch;
  Shape shape;
};

}  // namespace ordo::attention_backward
