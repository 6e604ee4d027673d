// What is baked into one attention-forward kernel, and what follows from it. Plain C++: the host needs the sizes.
//
// The forward serves benchmarks, checks and examples of the backward: it makes the O and LSE that a training step would have
// made. It is written to be read: one CTA a Q tile, no overlap of products and softmax within a warpgroup (the two overlap each
// other). Of an expression mask it visits and masks every tile.
#pragma once

namespace ordo::attention_forward {

struct Config {
  bool fp16;  ///< else bf16
  int head_dim;
  bool causal;
  bool mask_expression;  ///< the mask is visible(), which the generator writes; then not causal
};

inline constexpr int kTileQ = 128;  // two warpgroups of 64 rows
inline constexpr int kTileKv = 128;
inline constexpr int kStages = 2;     // of K and of V
inline constexpr int kThreads = 384;  // one producer warpgroup, two consumers

/// Byte offsets from the start of dynamic shared memory; tiles are 1024-byte aligned.
struct Layout {
  int q;
  int k, v;  ///< [kStages]
  int barriers;
  int bytes;
};

constexpr Layout layout_of(const Config& c) {
  const int tile = kTileKv * c.head_dim * 2;
  Layout l{};
  l.q = 0;
  l.k = kTileQ * c.head_dim * 2;
  l.v = l.k + kStages * tile;
  l.barriers = l.v + kStages * tile;
  l.bytes = l.barriers + (1 + 4 * kStages) * 8;
  return l;
}

}  // namespace ordo::attention_forward
