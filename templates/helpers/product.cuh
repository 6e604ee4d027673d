// Plain fp64 matrix products: what the results of overlapped GEMMs are held against. Shares nothing with their kernels.
#pragma once

#include "helpers/element.cuh"

namespace ordo::helpers {

inline constexpr int kTile = 64;   ///< rows and columns of a block's tile; each thread has 4 x 4 of them
inline constexpr int kDepth = 16;  ///< of k at a time

struct ProductTile {
  float a[kDepth][kTile + 1], b[kDepth][kTile + 1];
};

/// Elements (i, j) of `kTile` lines from `line` on and kDepth of k from `k` on, neighbouring threads on neighbouring addresses.
ORDO_DEVICE void load_tile(float (&out)[kDepth][kTile + 1], const Operand& matrix, bool fp16, bool is_b, int line, int lines,
                           int k, int depth) {
  const bool k_contiguous = matrix.column == is_b;
  for (int e = static_cast<int>(threadIdx.x); e < kTile * kDepth; e += kThreads) {
    const int l = k_contiguous ? e / kDepth : e % kTile, z = k_contiguous ? e % kDepth : e / kTile;
    const bool inside = line + l < lines && k + z < depth;
    out[z][l] = !inside ? 0.f : is_b ? element(matrix, fp16, k + z, line + l) : element(matrix, fp16, line + l, k + z);
  }
}

ORDO_DEVICE void add_tile(const ProductParams& p, ProductTile& tile, int row, int column) {
  const int x = static_cast<int>(threadIdx.x) % 16, y = static_cast<int>(threadIdx.x) / 16;
  double sum[4][4] = {}, mass[4][4] = {};
  for (int k = 0; k < p.k; k += kDepth) {
    __syncthreads();
    load_tile(tile.a, p.a, p.fp16, false, row, p.m, k, p.k);
    load_tile(tile.b, p.b, p.fp16, true, column, p.n, k, p.k);
    __syncthreads();
    for (int z = 0; z < kDepth; ++z) {
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) {
          const double product = static_cast<double>(tile.a[z][y + 16 * i]) * static_cast<double>(tile.b[z][x + 16 * j]);
          sum[i][j] += product;
          mass[i][j] += fabs(product);
        }
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const int r = row + y + 16 * i, c = column + x + 16 * j;
      if (r >= p.m || c >= p.n) continue;
      const long long at = static_cast<long long>(r) * p.n + c;
      p.sum[at] += sum[i][j];
      p.parts[at] += fabs(sum[i][j]);
      p.mass[at] += mass[i][j];
    }
  }
}

}  // namespace ordo::helpers

extern "C" __global__ void __launch_bounds__(ordo::helpers::kThreads)
    ordo_product(const __grid_constant__ ordo::helpers::ProductParams params) {
  using namespace ordo::helpers;
  __shared__ ProductTile tile;
  const int columns = (params.n + kTile - 1) / kTile;
  const long long tiles = static_cast<long long>((params.m + kTile - 1) / kTile) * columns;
  for (long long t = blockIdx.x; t < tiles; t += gridDim.x)
    add_tile(params, tile, static_cast<int>(t / columns) * kTile, static_cast<int>(t % columns) * kTile);
}
