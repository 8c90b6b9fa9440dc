// One block per tile of c: tiles of a and b pass through shared memory, each thread keeps an 8 x 8 tile of float32 sums.
//
// moves     a is read ceil(n / BLOCK_N) times and b ceil(m / BLOCK_M) times; per product 1/4 of a shared-memory element
// limits    every product is an FFMA: float16 and bfloat16 run at float32 speed (cuda_mma uses the tensor cores)
// precision plain float32 multiply-adds, so that float32 results have all their digits
/* opforge
layouts = ["contiguous", "rows", "strided"]

[space]
BLOCK_M = [64, 128]
BLOCK_N = [64, 128]
BLOCK_K = [8, 16]
GROUP = [1, 4, 8, 16]

[default]
BLOCK_M = 128
BLOCK_N = 128
BLOCK_K = 8
GROUP = 8

[limits]
shared_memory_is_static = "(BLOCK_M + BLOCK_N + 8) * BLOCK_K * 8 <= 49152"
every_thread_loads_a_vector = "min(BLOCK_M, BLOCK_N) * BLOCK_K >= BLOCK_M * BLOCK_N // 16"
*/
#include "opforge/gemm/common.h"

#include <algorithm>

// Tunable: the tile of c, the terms per step, rows of tiles that are computed together.
#ifndef BLOCK_M
#define BLOCK_M 128
#endif
#ifndef BLOCK_N
#define BLOCK_N 128
#endif
#ifndef BLOCK_K
#define BLOCK_K 8
#endif
#ifndef GROUP
#define GROUP 8
#endif

namespace {

using opforge::Vec;

constexpr int kTile = 8;  // a thread's rows and columns, in two groups of four
constexpr int kPad = 4;   // spreads the columns of a tile over the banks of shared memory
constexpr int kVec = 4;   // elements of one load: 16 bytes of float32, 8 of the others
constexpr int kThreads = BLOCK_M / kTile * (BLOCK_N / kTile);
// 512 threads at once leave 128 registers to each, which is just enough (ptxas 13.0) where a thread holds one vector of
// each operand on its way; with more of them it needs 170
constexpr int kTogether = kThreads * kVec == BLOCK_K * (BLOCK_M > BLOCK_N ? BLOCK_M : BLOCK_N) ? 512 : 384;

// One operand seen from the sums: `outer` runs along m (for a) or n (for b), `depth` along k. Strides in elements.
template <typename T>
struct Operand {
  const T* data;
  int64_t outer_stride, depth_stride;
  int outer, depth;
  bool along_depth;  // whether neighbours in memory are neighbours in k
  bool vectors;      // whether kVec elements may be loaded at once
};

// Moves one tile of an operand from global memory through registers into shared memory, as float: tile[l][o].
template <typename T, int kOuter>
struct Stage {
  static constexpr int kHeld = kOuter * BLOCK_K / (kVec * kThreads);
  static_assert(kHeld * kVec * kThreads == kOuter * BLOCK_K, "every thread loads the same number of vectors");
  static constexpr int kPitch = kOuter + kPad;

  Vec<T, kVec> held[kHeld];

  // Where this thread's vector `i` begins in the tile.
  __device__ static __forceinline__ void place(const Operand<T>& from, int i, int& o, int& l) {
    const int slot = threadIdx.x + i * kThreads;
    if (from.along_depth) {
      o = slot / (BLOCK_K / kVec);
      l = slot % (BLOCK_K / kVec) * kVec;
    } else {
      l = slot / (kOuter / kVec);
      o = slot % (kOuter / kVec) * kVec;
    }
  }

  __device__ __forceinline__ void load(const Operand<T>& from, int o0, int l0) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      int o, l;
      place(from, i, o, l);
      o += o0;
      l += l0;
      const T* p = from.data + o * from.outer_stride + l * from.depth_stride;
      const int room = from.along_depth ? (o < from.outer ? from.depth - l : 0) : (l < from.depth ? from.outer - o : 0);
      if (from.vectors && room >= kVec) {
        held[i] = Vec<T, kVec>::load(p);
      } else {
        const int64_t step = from.along_depth ? from.depth_stride : from.outer_stride;
        // what lies beyond an edge is zero in both operands: zero times whatever is in memory there could be NaN
#pragma unroll
        for (int j = 0; j < kVec; ++j) held[i][j] = j < room ? p[j * step] : opforge::store_from_float<T>(0.0f);
      }
    }
  }

  __device__ __forceinline__ void store(const Operand<T>& from, float* tile) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      int o, l;
      place(from, i, o, l);
      if (from.along_depth) {
#pragma unroll
        for (int j = 0; j < kVec; ++j) tile[(l + j) * kPitch + o] = opforge::load_as_float(held[i][j]);
      } else {
        Vec<float, kVec> wide;
#pragma unroll
        for (int j = 0; j < kVec; ++j) wide[j] = opforge::load_as_float(held[i][j]);
        wide.store(tile + l * kPitch + o);
      }
    }
  }
};

// A thread's rows (or columns) of a tile: four at 4 * index and four at kOuter / 2 + 4 * index, which keeps a warp's
// 16-byte reads of shared memory free of bank conflicts.
template <int kOuter>
__device__ __forceinline__ int tile_offset(int index, int i) {
  return i / 4 * (kOuter / 2) + 4 * index + i % 4;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kTogether / kThreads)
    matmul_tile(Operand<T> a, Operand<T> b, T* __restrict__ c, int64_t c_row, int64_t c_col, bool c_vectors) {
  using StageA = Stage<T, BLOCK_M>;
  using StageB = Stage<T, BLOCK_N>;
  // 16-byte accesses: the arrays begin at multiples of 16 bytes
  __shared__ __align__(16) float tile_a[2][BLOCK_K * StageA::kPitch];
  __shared__ __align__(16) float tile_b[2][BLOCK_K * StageB::kPitch];

  // GROUP rows of tiles are visited column by column: blocks that run together read few distinct panels of a and b
  const int m = a.outer, n = b.outer, k = a.depth;
  const int tiles_m = (m + BLOCK_M - 1) / BLOCK_M, tiles_n = (n + BLOCK_N - 1) / BLOCK_N;
  const int in_group = GROUP * tiles_n;
  const int first = static_cast<int>(blockIdx.x) / in_group * GROUP;
  const int height = min(tiles_m - first, GROUP);
  const int within = static_cast<int>(blockIdx.x) % in_group;
  const int row0 = (first + within % height) * BLOCK_M, col0 = within / height * BLOCK_N;

  const int tx = threadIdx.x % (BLOCK_N / kTile), ty = threadIdx.x / (BLOCK_N / kTile);
  StageA stage_a;
  StageB stage_b;
  float sums[kTile][kTile] = {};
  if (k > 0) {
    stage_a.load(a, row0, 0);
    stage_b.load(b, col0, 0);
    stage_a.store(a, tile_a[0]);
    stage_b.store(b, tile_b[0]);
  }
  __syncthreads();
  int now = 0;
  for (int l0 = 0; l0 < k; l0 += BLOCK_K, now ^= 1) {
    const bool more = l0 + BLOCK_K < k;
    if (more) {
      // on its way while this step is computed
      stage_a.load(a, row0, l0 + BLOCK_K);
      stage_b.load(b, col0, l0 + BLOCK_K);
    }
#pragma unroll
    for (int l = 0; l < BLOCK_K; ++l) {
      Vec<float, 4> left[2], right[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        left[half] = Vec<float, 4>::load(tile_a[now] + l * StageA::kPitch + tile_offset<BLOCK_M>(ty, 4 * half));
        right[half] = Vec<float, 4>::load(tile_b[now] + l * StageB::kPitch + tile_offset<BLOCK_N>(tx, 4 * half));
      }
#pragma unroll
      for (int i = 0; i < kTile; ++i)
#pragma unroll
        for (int j = 0; j < kTile; ++j) sums[i][j] = fmaf(left[i / 4][i % 4], right[j / 4][j % 4], sums[i][j]);
    }
    if (more) {
      // the other buffer was last read before the barrier that ended the step before
      stage_a.store(a, tile_a[now ^ 1]);
      stage_b.store(b, tile_b[now ^ 1]);
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < kTile; ++i) {
    const int row = row0 + tile_offset<BLOCK_M>(ty, i);
    if (row >= m) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int col = col0 + tile_offset<BLOCK_N>(tx, 4 * half);
      T* p = c + row * c_row + col * c_col;
      if (c_vectors && col + 4 <= n) {
        Vec<T, 4> four;
#pragma unroll
        for (int j = 0; j < 4; ++j) four[j] = opforge::store_from_float<T>(sums[i][4 * half + j]);
        four.store(p);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (col + j < n) p[j * c_col] = opforge::store_from_float<T>(sums[i][4 * half + j]);
      }
    }
  }
}

// Whether rows that lie `pitch` elements apart, each contiguous, can be accessed kVec elements at a time.
template <typename T>
bool aligned(const T* data, int64_t step, int64_t pitch) {
  return step == 1 && pitch % kVec == 0 && reinterpret_cast<uintptr_t>(data) % (kVec * sizeof(T)) == 0;
}

// An operand with its contiguous direction found.
template <typename T>
Operand<T> describe(const opforge::TensorView& tensor, int outer_dim) {
  const int depth_dim = 1 - outer_dim;
  const T* data = opforge::data<T>(tensor);
  const int64_t outer_stride = tensor.stride(outer_dim), depth_stride = tensor.stride(depth_dim);
  const bool along_depth = depth_stride == 1 && tensor.size(depth_dim) > 1;
  const int64_t step = along_depth ? depth_stride : outer_stride, pitch = along_depth ? outer_stride : depth_stride;
  return {data,
          outer_stride,
          depth_stride,
          static_cast<int>(tensor.size(outer_dim)),
          static_cast<int>(tensor.size(depth_dim)),
          along_depth,
          aligned(data, step, pitch)};
}

template <typename T>
void matmul_tiles(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c) {
  T* out = opforge::data<T>(c);
  const int64_t c_row = c.stride(0), c_col = c.stride(1);
  const bool c_vectors = aligned(out, c_col, c_row);
  const int64_t tiles = opforge::ceil_div(c.size(0), BLOCK_M) * opforge::ceil_div(c.size(1), BLOCK_N);
  OPFORGE_CHECK(tiles <= 2147483647, ValueError, "c has ", tiles, " tiles, more than a grid may hold");
  OPFORGE_LAUNCH((matmul_tile<T>), tiles, kThreads, 0, opforge::current_stream(a), describe<T>(a, 0), describe<T>(b, 1), out, c_row, c_col, c_vectors);
}

void matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c, int64_t /*precision*/) {
  opforge::check_product(OPFORGE_DEVICE_MATRIX(a), OPFORGE_DEVICE_MATRIX(b), OPFORGE_DEVICE_MATRIX(c));
  OPFORGE_CHECK_SAME_DTYPE(a, c);
  if (c.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(a, T, matmul_tiles<T>(a, b, c));
}

}  // namespace

OPFORGE_EXPORT(run, matmul)
