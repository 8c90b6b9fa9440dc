// Shared memory: a block's threads load a tile of a and a tile of b together, and each sums one element of c from them.
//
// moves     a is read ceil(n / TILE) times and b ceil(m / TILE) times, where cuda_naive reads them n and m times
// limits    two loads from shared memory per multiply-add: the load units still give the pace. cuda_tiled keeps 64 sums per
//           thread and needs a quarter of a load
// precision plain float32 multiply-adds in the order of k
/* opforge
layouts = ["contiguous", "rows", "strided"]

[space]
TILE = [16, 32]

[default]
TILE = 32
*/
#include "opforge/gemm/common.h"

#include <algorithm>

// Tunable: rows and columns of a tile, and terms per step.
#ifndef TILE
#define TILE 32
#endif

namespace {

// A matrix in memory: element (i, j) lies at data[i * row + j * col].
template <typename T>
struct Matrix {
  T* data;
  int64_t row, col;
};

template <typename T>
__global__ void __launch_bounds__(TILE* TILE) matmul_shared(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, int m, int n, int k, int tiles_n) {
  // a's tile is read along a row by all threads of a warp at once (a broadcast), b's along neighbouring columns
  __shared__ float tile_a[TILE][TILE], tile_b[TILE][TILE];
  const int x = static_cast<int>(threadIdx.x) % TILE, y = static_cast<int>(threadIdx.x) / TILE;
  const int i = static_cast<int>(blockIdx.x) / tiles_n * TILE + y, j = static_cast<int>(blockIdx.x) % tiles_n * TILE + x;
  float sum = 0.0f;
  for (int l0 = 0; l0 < k; l0 += TILE) {
    // what lies beyond an edge is zero in both tiles: zero times whatever is in memory there could be NaN
    tile_a[y][x] = i < m && l0 + x < k ? opforge::load_as_float(a.data[i * a.row + (l0 + x) * a.col]) : 0.0f;
    tile_b[y][x] = l0 + y < k && j < n ? opforge::load_as_float(b.data[(l0 + y) * b.row + j * b.col]) : 0.0f;
    __syncthreads();
#pragma unroll
    for (int l = 0; l < TILE; ++l) sum = fmaf(tile_a[y][l], tile_b[l][x], sum);
    // nobody may load the next tiles before everybody has read these
    __syncthreads();
  }
  if (i < m && j < n) c.data[i * c.row + j * c.col] = opforge::store_from_float<T>(sum);
}

template <typename T>
void matmul_tiles(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c) {
  const int64_t tiles_n = opforge::ceil_div(c.size(1), TILE), tiles = opforge::ceil_div(c.size(0), TILE) * tiles_n;
  OPFORGE_CHECK(tiles <= 2147483647, ValueError, "c has ", tiles, " tiles, more than a grid may hold");
  const Matrix<const T> left{opforge::data<const T>(a), a.stride(0), a.stride(1)}, right{opforge::data<const T>(b), b.stride(0), b.stride(1)};
  const Matrix<T> out{opforge::data<T>(c), c.stride(0), c.stride(1)};
  OPFORGE_LAUNCH((matmul_shared<T>), tiles, TILE * TILE, 0, opforge::current_stream(a), left, right, out, static_cast<int>(c.size(0)),
                 static_cast<int>(c.size(1)), static_cast<int>(a.size(1)), static_cast<int>(tiles_n));
}

void matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c, int64_t /*precision*/) {
  opforge::check_product(OPFORGE_DEVICE_MATRIX(a), OPFORGE_DEVICE_MATRIX(b), OPFORGE_DEVICE_MATRIX(c));
  OPFORGE_CHECK_SAME_DTYPE(a, c);
  if (c.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(a, T, matmul_tiles<T>(a, b, c));
}

}  // namespace

OPFORGE_EXPORT(run, matmul)
