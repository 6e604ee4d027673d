// What a mask shows of each (KV unit, Q tile): what proof, simulator and arrival orders know of a mask.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "templates/schedule/schedule.cuh"

namespace ordo {

enum class TileKind : std::uint8_t {
  none,      ///< no pair is visible: the tile is skipped
  full,      ///< every pair is
  diagonal,  ///< some are: the mask's boundary crosses the tile
  partial,   ///< cut off by the end of Q or K, and not diagonal
};

/// The tiles of one query head, by the geometry's own mask or by any predicate. Thread-safe if the predicate is.
class TileMap {
 public:
  explicit TileMap(const schedule::Geometry& geometry) : g_(&geometry) {}
  /// `mask(unit, q)` says what is visible. The closed-form schedules are made for the geometry's own mask: with another one only
  /// arrival passes its proof. `geometry` must outlive the map.
  TileMap(const schedule::Geometry& geometry, std::function<TileKind(int unit, int q)> mask)
      : g_(&geometry), mask_(std::move(mask)) {}

  [[nodiscard]] TileKind operator()(int unit, int q) const {
    if (mask_) return mask_(unit, q);
    const std::int64_t first_row = std::int64_t{q} * g_->tile_q, first_key = std::int64_t{unit} * g_->unit_kv;
    const std::int64_t last_row = std::min<std::int64_t>(first_row + g_->tile_q, g_->seqlen_q) - 1;
    const std::int64_t last_key = std::min<std::int64_t>(first_key + g_->unit_kv, g_->seqlen_k) - 1;
    if (g_->causal) {
      const std::int64_t shift = std::int64_t{g_->seqlen_k} - g_->seqlen_q;  // row i sees the keys up to i + shift
      if (first_key > last_row + shift) return TileKind::none;
      if (last_key > first_row + shift) return TileKind::diagonal;
    }
    const bool cut = first_row + g_->tile_q > g_->seqlen_q || first_key + g_->unit_kv > g_->seqlen_k;
    return cut ? TileKind::partial : TileKind::full;
  }
  [[nodiscard]] bool live(int unit, int q) const { return (*this)(unit, q) != TileKind::none; }
  [[nodiscard]] int units() const { return g_->units; }
  [[nodiscard]] int q_tiles() const { return g_->q_tiles; }

 private:
  const schedule::Geometry* g_;
  std::function<TileKind(int, int)> mask_;
};

}  // namespace ordo
