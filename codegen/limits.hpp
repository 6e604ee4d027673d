// Size limits that problem, plan and schedule share.
#pragma once

#include <cstdint>
#include <limits>

namespace ordo::limits {

/// templates/schedule/schedule.cuh counts rows and keys in int and rounds up to whole tiles: leave room for the rounding.
inline constexpr std::int64_t kLongestSequence = (std::int64_t{1} << 31) - (std::int64_t{1} << 16);

/// Rows of a Q tile or keys of a KV unit are at most this many, and divide it: positions that a kernel looks at stay below the
/// length rounded up to it.
inline constexpr std::int64_t kLargestTile = 256;

/// Elements of one tensor: byte offsets and strides stay far from 2^63.
inline constexpr std::int64_t kMostElements = std::int64_t{1} << 62;

/// m, n and k of a GEMM: the copy engine's coordinates and the number of tiles are ints, with room for rounding up.
inline constexpr std::int64_t kMostGemmSize = std::int64_t{1} << 24;

/// Items and dQ semaphores are numbered with int in the kernels.
inline constexpr std::int64_t kMostNumbered = std::numeric_limits<int>::max();

/// Tiles (unit x Q tile) of one head that the host is willing to prove one by one: about 10 s of work.
inline constexpr std::int64_t kMostProvedTiles = std::int64_t{1} << 31;

/// Keys that the int32 sums of Accumulate::exact are good for (accuracy: see docs of Accumulate).
inline constexpr std::int64_t kMostExactKeys = 32768;

}  // namespace ordo::limits
