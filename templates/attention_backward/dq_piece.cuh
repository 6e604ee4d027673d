// Turns finished dQ sums into the caller's layout and type: one warp, one 16 x 64 piece at a time, all in registers.
#pragma once

#include "attention_backward/layout.cuh"

namespace ordo::attention_backward {

/// Where a Q tile lies.
struct TilePlace {
  int tile, q, head, batch, first_row;
};
ORDO_DEVICE TilePlace place_of(const Shape& shape, const schedule::Geometry& g, int tile) {
  const int heads = kv_heads(shape) * config.group;
  const int head_of_all = tile / g.q_tiles;
  const int q = tile - head_of_all * g.q_tiles;
  const int batch = head_of_all / heads;
  return {tile, q, head_of_all - batch * heads, batch, q * config.tile_q};
}

/// Element offset of a row.
ORDO_DEVICE long long row_offset(const Strides& strides, int batch, int row, int head) {
  return batch * strides.batch + row * strides.seqlen + head * strides.head;
}

/// A piece of a tile, 16 rows by 64 columns: slice and quarter of it. Its sums lie in wgmma fragment order, 16 bytes a lane: word
/// pairs j of rows lane / 4 and lane / 4 + 8. Slices are 64 columns wide.
struct Piece {
  int slice;
  int quarter;
  __device__ __forceinline__ int row() const { return 16 * quarter; }
  __device__ __forceinline__ int column() const { return 64 * slice; }
};

/// Transposes 4 x 4 words over the four lanes of a quad: word i of lane t becomes word t of lane i.
ORDO_DEVICE void transpose_quad(u32& a, u32& b, u32& c, u32& d) {
  const auto exchange = [](u32& low, u32& high, int mask) {
    const bool upper = (lane_id() & mask) != 0;
    const u32 got = __shfl_xor_sync(0xffffffffu, upper ? low : high, mask);
    low = upper ? got : low;
    high = upper ? high : got;
  };
  exchange(a, b, 1);
  exchange(c, d, 1);
  exchange(a, c, 2);
  exchange(b, d, 2);
}

/// Scales, rounds and stores half of a piece: the rows lane / 4 + 8 `half`, x[j] their columns 8j + 2 (lane % 4) and the next. 16
/// bytes a lane; rows beyond the sequence are dropped.
ORDO_DEVICE void store_half_piece(const DqOutput& out, const schedule::Geometry& g, const TilePlace& place, Piece piece, int half,
                                  const float2 (&x)[8]) {
  const int lane = fresh_lane();
  u32 words[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) words[j] = pack(x[j].x * out.scale, x[j].y * out.scale);
  transpose_quad(words[0], words[1], words[2], words[3]);
  transpose_quad(words[4], words[5], words[6], words[7]);
  const int row = place.first_row + piece.row() + 8 * half + lane / 4;
  if (row >= g.seqlen_q) return;
  u16* to = static_cast<u16*>(out.data) + row_offset(out.strides, place.batch, row, place.head) + piece.column() + 8 * (lane % 4);
  *reinterpret_cast<uint4*>(to) = uint4{words[0], words[1], words[2], words[3]};
  *reinterpret_cast<uint4*>(to + 32) = uint4{words[4], words[5], words[6], words[7]};
}

}  // namespace ordo::attention_backward
