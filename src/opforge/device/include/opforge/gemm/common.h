// opforge/gemm/common.h - what CUDA kernels for products of matrices have in common: checks, the order of tiles, bare epilogues.
//
// An epilogue is what happens to float32 sums before they are stored: `epilogue(low, high, row, col)` changes two neighbours of a
// row in place, at columns col (even) and col + 1; `apply(sums, row0, col0, thread)` all sums of a thread of a warpgroup (see
// each_pair).  What lies beyond an edge is computed and thrown away, so it may be given too, and must not be followed into memory.
// kReads says whether it reads what a kernel before this one may have written.
#ifndef OPFORGE_GEMM_H_
#define OPFORGE_GEMM_H_

#include "opforge/device.h"
#include "opforge/gemm/matrix.h"

namespace opforge {
namespace gemm {

/// A tensor argument as a Matrix, checked to lie where the kernels run: of 2 dimensions, or of 3 as a batch.
#define OPFORGE_DEVICE_MATRIX(tensor) ::opforge::gemm::device_matrix(tensor, #tensor, false)
#define OPFORGE_DEVICE_MATRICES(tensor) ::opforge::gemm::device_matrix(tensor, #tensor, true)

inline Matrix device_matrix(const TensorView& tensor, const char* name, bool batch) {
#ifdef OPFORGE_EMULATE
  OPFORGE_CHECK(tensor.device().device_type == kDLCPU, ValueError, name, " must be a CPU tensor (emulated kernel)");
#else
  OPFORGE_CHECK(tensor.device().device_type == kDLCUDA, ValueError, name, " must be a CUDA tensor");
#endif
  return detail::matrix_of(name, tensor, batch);
}

/// Runs the statement with `T` naming the 16-bit element type of a Matrix. Anything else raises TypeError naming the argument.
#define OPFORGE_DISPATCH_16_BITS(matrix, T, ...)                                                                        \
  do {                                                                                                                  \
    switch (::opforge::float_kind((matrix).dtype)) {                                                                    \
      case ::opforge::FloatKind::kFloat16: {                                                                            \
        using T = ::opforge::half_t; __VA_ARGS__; break;                                                                \
      }                                                                                                                 \
      case ::opforge::FloatKind::kBFloat16: {                                                                           \
        using T = ::opforge::bfloat16_t; __VA_ARGS__; break;                                                            \
      }                                                                                                                 \
      default:                                                                                                          \
        ::opforge::raise("TypeError", (matrix).name, " must be float16 or bfloat16 (got ", ::opforge::dtype_name((matrix).dtype), ")"); \
    }                                                                                                                   \
  } while (0)

/// Runs the statement with `T` naming the element type of a Matrix that tensor cores take, `float` for TF32 if `tf32`; anything else raises
/// TypeError naming the argument.
#define OPFORGE_DISPATCH_TENSOR_CORES(matrix, tf32, T, ...)                                                                  \
  do {                                                                                                                       \
    if ((tf32) && ::opforge::float_kind((matrix).dtype) == ::opforge::FloatKind::kFloat32) {                                 \
      using T = float; __VA_ARGS__;                                                                                          \
    } else {                                                                                                                 \
      OPFORGE_DISPATCH_16_BITS(matrix, T, __VA_ARGS__);                                                                      \
    }                                                                                                                        \
  } while (0)

/// A tile's first row and column, in tiles.  `group` rows of tiles are visited column by column: blocks that run together read few
/// distinct panels of both operands.
struct Place {
  int row, col;
};
__device__ __forceinline__ Place place(int tile, int rows, int cols, int group) {
  const int in_group = group * cols;
  const int first = tile / in_group * group, within = tile % in_group;
  const int height = min(rows - first, group);
  return {first + within % height, within / height};
}

/// How many tiles a result has; raises ValueError where a grid cannot count them.
inline int64_t count_tiles(const Matrix& c, int64_t tile_rows, int64_t tile_cols) {
  const int64_t tiles = c.batch * ceil_div(c.rows, tile_rows) * ceil_div(c.cols, tile_cols);
  OPFORGE_CHECK(tiles <= 2147483647 / 2, ValueError, c.name, " has ", tiles, " tiles, more than can be counted");
  return tiles;
}

/// c element by element, or two neighbours at a time where that is allowed: any dtype, any strides, any address.
template <typename T>
struct ByPairs {
  T* data;
  int64_t row, col;
  bool pairs;

  __device__ __forceinline__ void store(float low, float high, int at_row, int at_col, int m, int n) const {
    if (at_row >= m || at_col >= n) return;
    T* p = data + at_row * row + at_col * col;
    if (pairs && at_col + 1 < n) {
      Vec<T, 2> two;
      two[0] = store_from_float<T>(low);
      two[1] = store_from_float<T>(high);
      two.store(p);
    } else {
      p[0] = store_from_float<T>(low);
      if (at_col + 1 < n) p[col] = store_from_float<T>(high);
    }
  }
};

/// Where tiles of c go without the TMA.
template <typename TOut>
ByPairs<TOut> pairs_of(const Matrix& c) {
  const bool pairs = c.col == 1 && c.row % 2 == 0 && reinterpret_cast<uintptr_t>(c.data) % (2 * sizeof(TOut)) == 0;
  return {c.typed<TOut>(), c.row, c.col, pairs};
}

/// Calls `body(low, high, row, col)` for every pair of neighbouring sums of a thread of a warpgroup, as wgmma spreads them: 64 rows from
/// row0 on, twice `count` columns from col0 on.
template <int count, typename Body>
__device__ __forceinline__ void each_pair(float (&sums)[count], int row0, int col0, int thread, const Body& body) {
  const int row = row0 + thread / 32 * 16 + thread % 32 / 4, col = col0 + thread % 4 * 2;
#pragma unroll
  for (int i = 0; i < count; i += 2) body(sums[i], sums[i + 1], row + i / 2 % 2 * 8, col + i / 4 * 8);
}

/// The epilogue of a bare product.
struct Unchanged {
  static constexpr bool kReads = false;
  __device__ __forceinline__ void operator()(float&, float&, int, int) const {}
  template <int count>
  __device__ __forceinline__ void apply(float (&)[count], int, int, int) const {}
};

}  // namespace gemm
}  // namespace opforge

#endif  // OPFORGE_GEMM_H_
