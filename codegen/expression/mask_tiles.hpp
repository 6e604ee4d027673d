// Which tiles a mask's expression shows: none, some or all of their pairs, by intervals.
#pragma once

#include <cstdint>
#include <vector>

#include "ordo/problem.hpp"

namespace ordo::expression {

enum class Visible : std::uint8_t { none, some, all };

/// Keys of a slice: what a consumer warpgroup holds.
inline constexpr int kSliceKeys = 64;

/// The grid of (slice of 64 keys, Q tile) of one query head. Sound, not exact: `none` and `all` are certain, `some` may be
/// either where intervals do not tell. A mask that depends on head or batch: `none` and `all` hold for every head and batch.
/// Pairs beyond the sequences do not count, but a slice that reaches beyond seqlen_k is never `all`: its keys must be hidden.
class MaskTiles {
 public:
  /// For a valid problem with an expression mask. Time and memory grow with the number of slices times the changes along Q; about
  /// a millisecond for a window over 16384 x 16384.
  MaskTiles(const AttentionBackward& problem, int tile_q);

  [[nodiscard]] Visible at(int slice, int q) const;
  [[nodiscard]] int slices() const { return static_cast<int>(runs_.size()); }
  [[nodiscard]] int q_tiles() const { return q_tiles_; }

 private:
  struct Run {
    int end;  ///< one past its last Q tile
    Visible visible;
  };
  int q_tiles_;
  std::vector<std::vector<Run>> runs_;  ///< of each slice, in the order of Q tiles, neighbours different
};

/// The share of all pairs that the mask of `problem` shows, over all heads and batches: exact while partly visible 64 x 64 tiles
/// hold at most 2^20 pairs and heads do not matter, else from a fixed sample of those tiles. For problems with an expression
/// mask; 0 where a size is below 1.
double visible_share(const AttentionBackward& problem);

}  // namespace ordo::expression
