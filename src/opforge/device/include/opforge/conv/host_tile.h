// opforge/conv/host_tile.h - a register tile of a convolution on a CPU: sums of some filters for neighbouring pixels.
//
// source    the tile is that of a matrix product (opforge/gemm/host_tile.h); neither operand is packed: a filter's weights lie in a row,
//           and what one tap reads for neighbouring pixels lies side by side in a plane. Georganas et al., Anatomy of high-performance
//           deep learning convolutions on SIMD architectures, SC 2018
#ifndef OPFORGE_CONV_HOST_TILE_H_
#define OPFORGE_CONV_HOST_TILE_H_

#include "opforge/gemm/host_tile.h"

namespace opforge {
namespace conv {

// out[i][j] = start[i] + sum over l of weights[i * row + l] * x[offsets[l] + j], for R filters and V vectors of pixels.
// A macro, because the compiler lowers vectors function by function, for the target that stands on the function.
#define OPFORGE_CONV_TILE(NAME, TARGET, LANES, ROWS, VECTORS, WIDE)                                                   \
  struct NAME {                                                                                                       \
    static constexpr int kLanes = LANES, kRows = ROWS, kVectors = VECTORS, kWide = WIDE;                              \
    template <int R, int V>                                                                                           \
    TARGET static void sums(const float* weights, int64_t row, const float* x, const int64_t* offsets, int64_t terms, \
                            const float* start, float* out) {                                                         \
      typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));                                       \
      Vector tile[R][V];                                                                                              \
      const float* rows[R];                                                                                           \
      _Pragma("GCC unroll 16") for (int i = 0; i < R; ++i) {                                                          \
        rows[i] = weights + i * row;                                                                                  \
        _Pragma("GCC unroll 16") for (int j = 0; j < V; ++j) tile[i][j] = Vector{} + start[i];                        \
      }                                                                                                               \
      for (int64_t l = 0; l < terms; ++l) {                                                                           \
        const float* at = x + offsets[l];                                                                             \
        Vector seen[V];                                                                                               \
        _Pragma("GCC unroll 16") for (int j = 0; j < V; ++j)                                                          \
            __builtin_memcpy(&seen[j], at + j * LANES, sizeof(Vector));                                               \
        _Pragma("GCC unroll 16") for (int i = 0; i < R; ++i) {                                                        \
          const float weight = rows[i][l];                                                                            \
          _Pragma("GCC unroll 16") for (int j = 0; j < V; ++j) tile[i][j] += weight * seen[j];                        \
        }                                                                                                             \
      }                                                                                                               \
      _Pragma("GCC unroll 16") for (int i = 0; i < R; ++i) _Pragma("GCC unroll 16") for (int j = 0; j < V; ++j) *     \
          reinterpret_cast<Vector*>(out + (i * V + j) * LANES) = tile[i][j];                                          \
    }                                                                                                                 \
  }

OPFORGE_CONV_TILE(PlainTile, , 4, 4, 3, 6);  // 12 sums of 16 registers
#if defined(__x86_64__)
OPFORGE_CONV_TILE(Avx2Tile, __attribute__((target("avx2,fma"))), 8, 4, 3, 6);
OPFORGE_CONV_TILE(Avx512Tile, __attribute__((target("avx512f"))), 16, 7, 4, 8);  // 28 sums of 32 registers
#endif

using Sums = void (*)(const float*, int64_t, const float*, const int64_t*, int64_t, const float*, float*);

// The tile of so many filters and vectors. One filter alone has more vectors: a sum waits for the one before.
template <typename Tile, int R = Tile::kRows, int V = Tile::kVectors>
Sums tile_of(int rows, int vectors) {
  if constexpr (R > 1) {
    if (rows < R) return tile_of<Tile, R - 1, R == 2 ? Tile::kWide : V>(rows, vectors);
  }
  if constexpr (V > 1) {
    if (vectors < V) return tile_of<Tile, R, V - 1>(rows, vectors);
  }
  return &Tile::template sums<R, V>;
}

}  // namespace conv
}  // namespace opforge

#endif  // OPFORGE_CONV_HOST_TILE_H_
