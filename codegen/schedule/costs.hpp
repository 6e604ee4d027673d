// What the tasks of a schedule cost: the units of the simulator and of arrival orders.
#pragma once

namespace ordo {

/// Time to compute one tile, by how much of it is visible.
struct TileCosts {
  double full = 1;
  double diagonal = 1;  ///< crossed by the mask's boundary
  double partial = 1;   ///< cut off by the end of Q or K, and not diagonal
};

struct SimulationCosts {
  TileCosts compute;
  double reduce = 1;    ///< one add into a dQ tile; adds into one tile exclude each other
  double handover = 0;  ///< from the end of an add to the earliest start of the next into the same tile
  double unit = 0;      ///< before a unit's first tile: its K and V are loaded, and dK and dV of the one before stored
  /// 0: the worker adds its tiles itself and computes nothing meanwhile. n > 0: a store warp beside it adds, one tile at a time,
  /// and the worker computes on, until n of its tiles are staged and not yet added.
  int staging = 0;
};

}  // namespace ordo
