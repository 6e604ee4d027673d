// How the sizes of a problem are cut into slices and tiles.
#pragma once

#include "ordo/overlap_kernel.hpp"
#include "templates/overlap/tiles.cuh"

namespace ordo {

struct SliceRange {
  std::int64_t begin = 0, size = 0;
};

/// Slice `slice` of `size` rows, columns or k cut into one a rank: templates/overlap/slices.cuh with unit 1.
SliceRange slice_range(std::int64_t size, std::int64_t ranks, int slice);

/// Rows of a slice: its own where rows are cut, else all m.
std::int64_t slice_rows(const OverlapGemm& problem, int slice);

overlap::Tiles tiles_of(const OverlapGemm& problem, const OverlapPlan& plan, int rank);

}  // namespace ordo
