// One thread per element of c: it reads its row of a and its column of b, and keeps one sum in a register.
//
// moves     2 k loads for k multiply-adds; neighbouring threads share a row of a and read neighbouring columns of b, so that
//           the caches turn most of the loads away. Nothing else is reused
// limits    a load per multiply-add: the load units are full long before the arithmetic is; cuda_tiled loads once for 8
// precision plain float32 multiply-adds in the order of k
/* opforge
layouts = ["contiguous", "rows", "strided"]

[space]
BLOCK_N = [16, 32, 64]
BLOCK_M = [4, 8, 16]

[default]
BLOCK_N = 32
BLOCK_M = 8
*/
#include "opforge/gemm/common.h"

#include <algorithm>

// Tunable: threads along n and along m.
#ifndef BLOCK_N
#define BLOCK_N 32
#endif
#ifndef BLOCK_M
#define BLOCK_M 8
#endif

namespace {

// A matrix in memory: element (i, j) lies at data[i * row + j * col].
template <typename T>
struct Matrix {
  T* data;
  int64_t row, col;
};

template <typename T>
__global__ void __launch_bounds__(BLOCK_M * BLOCK_N) matmul_naive(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, int m, int n, int k, int tiles_n) {
  const int j = static_cast<int>(blockIdx.x) % tiles_n * BLOCK_N + static_cast<int>(threadIdx.x) % BLOCK_N;
  const int i = static_cast<int>(blockIdx.x) / tiles_n * BLOCK_M + static_cast<int>(threadIdx.x) / BLOCK_N;
  if (i >= m || j >= n) return;
  const T* left = a.data + i * a.row;
  const T* right = b.data + j * b.col;
  float sum = 0.0f;
  for (int l = 0; l < k; ++l, left += a.col, right += b.row) sum = fmaf(opforge::load_as_float(*left), opforge::load_as_float(*right), sum);
  c.data[i * c.row + j * c.col] = opforge::store_from_float<T>(sum);
}

template <typename T>
void matmul_elements(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c) {
  const int64_t tiles_n = opforge::ceil_div(c.size(1), BLOCK_N), tiles = opforge::ceil_div(c.size(0), BLOCK_M) * tiles_n;
  OPFORGE_CHECK(tiles <= 2147483647, ValueError, "c has ", tiles, " tiles, more than a grid may hold");
  const Matrix<const T> left{opforge::data<const T>(a), a.stride(0), a.stride(1)}, right{opforge::data<const T>(b), b.stride(0), b.stride(1)};
  const Matrix<T> out{opforge::data<T>(c), c.stride(0), c.stride(1)};
  OPFORGE_LAUNCH((matmul_naive<T>), tiles, BLOCK_M * BLOCK_N, 0, opforge::current_stream(a), left, right, out, static_cast<int>(c.size(0)),
                 static_cast<int>(c.size(1)), static_cast<int>(a.size(1)), static_cast<int>(tiles_n));
}

void matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c, int64_t /*precision*/) {
  opforge::check_product(OPFORGE_DEVICE_MATRIX(a), OPFORGE_DEVICE_MATRIX(b), OPFORGE_DEVICE_MATRIX(c));
  OPFORGE_CHECK_SAME_DTYPE(a, c);
  if (c.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(a, T, matmul_elements<T>(a, b, c));
}

}  // namespace

OPFORGE_EXPORT(run, matmul)
