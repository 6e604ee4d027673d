// What is baked into one generated kernel.
#pragma once

#include "schedule/schedule.cuh"

namespace ordo::attention_backward {

enum class Accumulate : int { atomic, ordered, exact };

struct Config {
  bool fp16;  ///< else bf16
  int head_dim;
  bool causal;
  int group;  ///< query heads a KV head
  schedule::Kind schedule;
  Accumulate accumulate;
  int tile_q, tile_kv;
  int stages;
  int cluster;     ///< CTAs of a cluster on neighbouring KV tiles
  int dq_buffers;  ///< dQ staging buffers
  bool static_shape;
  int seqlen_q, seqlen_k, kv_heads, walks;  ///< static_shape only
};

}  // namespace ordo::attention_backward
