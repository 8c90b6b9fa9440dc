// opforge/gemm/formula_product.h - products of matrices whose sums meet a formula before they are stored. 16-bit operands go through the
// tensor cores (gemm/mma.h), float ones through multiply-adds of tiles in shared memory, so that they keep all their digits.
//
// A formula is a functor: `formula(sums, matrix, row, col)` gives what is stored of a float32 sum. It is called inside the edges only.
// Places say which matrix of each operand the product's matrix takes: `places.a(matrix)`, `places.b(matrix)`. kUniform: each is the
// number itself, or always 0, as the tensor cores' kernel wants them; with others every dtype goes through multiply-adds.
#ifndef OPFORGE_GEMM_FORMULA_PRODUCT_H_
#define OPFORGE_GEMM_FORMULA_PRODUCT_H_

#include "opforge/gemm/mma.h"

namespace opforge {
namespace formula {

/// Places of a product of two matrices.
struct OneMatrix {
  static constexpr bool kUniform = true;
  __device__ __forceinline__ int64_t a(int64_t) const { return 0; }
  __device__ __forceinline__ int64_t b(int64_t) const { return 0; }
};

/// A formula as an epilogue of gemm/mma.h, which has two neighbours of a row at once and asks beyond the edges too.
template <typename Formula>
struct Paired {
  Formula formula;
  int m, n;
  int64_t matrix;

  __device__ __forceinline__ void begin(int at) { matrix = at; }
  __device__ __forceinline__ void operator()(float& low, float& high, int row, int col) const {
    if (row >= m) return;
    if (col < n) low = formula(low, matrix, row, col);
    if (col + 1 < n) high = formula(high, matrix, row, col + 1);
  }
};

constexpr int kTile = 64, kTerms = 16, kEach = 4;            // a block's rows and columns, terms of a step, a thread's rows and columns
constexpr int kAcross = kTile / kEach, kThreads = kAcross * kAcross;
constexpr int kLoads = kTile * kTerms / kThreads;            // elements of each operand that a thread moves in a step
constexpr int kPitch = kTile + 4;                            // keeps 16-byte reads aligned, and spreads stores over the banks

/// Elements of a kTile x kTerms tile on their way to shared memory. kAlongTerms: neighbours in memory are terms.
template <typename T, bool kAlongTerms>
struct Moved {
  float values[kLoads];

  __device__ __forceinline__ static int outer(int i) {
    const int at = threadIdx.x + i * kThreads;
    return kAlongTerms ? at / kTerms : at % kTile;
  }
  __device__ __forceinline__ static int term(int i) {
    const int at = threadIdx.x + i * kThreads;
    return kAlongTerms ? at % kTerms : at / kTile;
  }
  /// outers, terms: of the matrix; what lies beyond is zero in both operands, since zero times what lies in memory may be NaN.
  __device__ __forceinline__ void load(const T* data, int outer0, int term0, int outers, int terms) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int o = outer0 + outer(i), l = term0 + term(i);
      const int64_t at = kAlongTerms ? int64_t(o) * terms + l : int64_t(l) * outers + o;
      values[i] = o < outers && l < terms ? load_as_float(data[at]) : 0.0f;
    }
  }
  __device__ __forceinline__ void store(float* tile) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) tile[term(i) * kPitch + outer(i)] = values[i];
  }
};

/// c = formula(a b) in float32 multiply-adds: a block for each tile, a thread for 4 x 4 of its elements. Matrices lie one after another.
template <typename T, bool kByColumns, typename Places, typename Formula>
__global__ void __launch_bounds__(kThreads)
    product_tiles(const T* a, const T* b, T* c, int m, int n, int k, Places places, Formula formula) {
  __shared__ __align__(16) float tile_a[kTerms * kPitch];
  __shared__ __align__(16) float tile_b[kTerms * kPitch];
  const int tiles_n = (n + kTile - 1) / kTile, tiles = (m + kTile - 1) / kTile * tiles_n;
  const int64_t matrix = blockIdx.x / tiles;
  const int tile = static_cast<int>(blockIdx.x % tiles), row0 = tile / tiles_n * kTile, col0 = tile % tiles_n * kTile;
  a += places.a(matrix) * m * k;
  b += places.b(matrix) * n * k;
  const int ty = threadIdx.x / kAcross * kEach, tx = threadIdx.x % kAcross * kEach;
  Moved<T, true> from_a;
  Moved<T, kByColumns> from_b;
  float sums[kEach][kEach] = {};
  from_a.load(a, row0, 0, m, k);
  from_b.load(b, col0, 0, n, k);
  for (int l0 = 0; l0 < k; l0 += kTerms) {
    from_a.store(tile_a);
    from_b.store(tile_b);
    __syncthreads();
    if (l0 + kTerms < k) {
      // on its way while this step is computed
      from_a.load(a, row0, l0 + kTerms, m, k);
      from_b.load(b, col0, l0 + kTerms, n, k);
    }
#pragma unroll
    for (int l = 0; l < kTerms; ++l) {
      const Vec<float, kEach> left = Vec<float, kEach>::load(tile_a + l * kPitch + ty);
      const Vec<float, kEach> right = Vec<float, kEach>::load(tile_b + l * kPitch + tx);
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
    }
    // everyone has read this step before the next one is written over it
    __syncthreads();
  }
  T* out = c + matrix * m * n;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int row = row0 + ty + i, col = col0 + tx + j;
      if (row < m && col < n) out[int64_t(row) * n + col] = store_from_float<T>(formula(sums[i][j], matrix, row, col));
    }
}

/// c = formula(a b), for a batch with kBatched. The matrices are contiguous; of b the columns or (b.row == 1) the terms are neighbours.
/// An operand that the product's matrices share has a batch stride of 0.
template <int block_m, int block_n, int block_k, int stages, int group, typename T, bool kBatched, typename Places, typename Formula>
void launch(const Matrix& a, const Matrix& b, const Matrix& c, cudaStream_t stream, const Places& places, const Formula& formula) {
  if (c.numel() == 0) return;
  const int m = static_cast<int>(c.rows), n = static_cast<int>(c.cols);
  if constexpr (sizeof(T) == 2 && Places::kUniform) {
    mma::launch_product<block_m, block_n, block_k, stages, group, T, T, kBatched>(a, b, c, stream, Paired<Formula>{formula, m, n, 0});
  } else {
    const unsigned tiles = static_cast<unsigned>(gemm::count_tiles(c, kTile, kTile));
    const int k = static_cast<int>(a.cols);
    if (b.col == 1 || n == 1) {
      OPFORGE_LAUNCH((product_tiles<T, false, Places, Formula>), tiles, kThreads, 0, stream, a.typed<const T>(), b.typed<const T>(), c.typed<T>(), m, n, k, places, formula);
    } else {
      OPFORGE_LAUNCH((product_tiles<T, true, Places, Formula>), tiles, kThreads, 0, stream, a.typed<const T>(), b.typed<const T>(), c.typed<T>(), m, n, k, places, formula);
    }
  }
}

/// A tensor as `batch` matrices of rows x cols that lie one after another; shared: as the one that all of them share.
inline Matrix matrices_of(const TensorView& tensor, const char* name, int64_t batch, int64_t rows, int64_t cols, bool shared = false) {
  for (const int64_t extent : {rows, cols})
    OPFORGE_CHECK(extent < 2147483647 - 1024, ValueError, name, " has an axis of ", extent, ", longer than 2^31 - 1025");
  return {name, tensor.data_ptr(), tensor.dtype(), batch, rows, cols, shared ? 0 : rows * cols, cols, 1};
}

}  // namespace formula
}  // namespace opforge

#endif  // OPFORGE_GEMM_FORMULA_PRODUCT_H_
