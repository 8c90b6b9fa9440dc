// Tensor cores through mma.sync: tiles of a and b arrive in shared memory by copies that overlap with the products.
//
// moves     as cuda_tiled, in 16-bit elements: half the shared-memory traffic of float32 tiles
// limits    mma.sync reaches about two thirds of what Hopper's wgmma can; operands whose rows do not begin at multiples
//           of 16 bytes are copied element by element, without overlap
// source    PTX ISA, sections on mma.m16n8k16, ldmatrix and cp.async; sm_80 and later
/* opforge
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float16", "bfloat16"]
space = {BLOCK_M = [32, 64, 128], BLOCK_N = [64, 128, 256], BLOCK_K = [32, 64], STAGES = [2, 3, 4], GROUP = [1, 4, 8, 16]}
default = {BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = 32, STAGES = 4, GROUP = 8}
limits = {stages_fit_shared_memory = "2 * STAGES * (BLOCK_M * (BLOCK_K + 8) + BLOCK_K * (BLOCK_N + 8)) <= 232448", sums_fit_registers = "BLOCK_M * BLOCK_N <= 32768", every_thread_copies_a_chunk = "min(BLOCK_M, BLOCK_N) * BLOCK_K >= 2048"}
*/
#include "opforge/tensor_core.h"

#include <algorithm>

// Tunable: the tile of c, the terms per step, steps under way at once, rows of tiles that are walked together.
#ifndef BLOCK_M
#define BLOCK_M 128
#endif
#ifndef BLOCK_N
#define BLOCK_N 128
#endif
#ifndef BLOCK_K
#define BLOCK_K 32
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef GROUP
#define GROUP 8
#endif

namespace {

using opforge::Pair;
using opforge::Vec;

constexpr int kThreads = 256;
constexpr int kWarpsM = 2, kWarpsN = 4;                           // how the eight warps share a tile
constexpr int kTilesM = BLOCK_M / kWarpsM / 16;                   // matrix products of a warp along m ...
constexpr int kTilesN = BLOCK_N / kWarpsN / 8;                    // ... and along n
constexpr int kPitchA = BLOCK_K + 8, kPitchB = BLOCK_N + 8;       // 16 bytes of padding keep ldmatrix free of bank conflicts
constexpr int kStageA = BLOCK_M * kPitchA, kStageB = BLOCK_K * kPitchB;
constexpr int kSharedBytes = 2 * STAGES * (kStageA + kStageB);
constexpr int kChunk = 8;                                         // elements in 16 bytes
static_assert(kTilesM >= 1 && kTilesN >= 2 && kTilesN % 2 == 0, "a warp's share is made of 16 x 16 pieces");

// An operand as rows of a matrix in memory: element (i, j) lies at data[i * row + j * col].
template <typename T>
struct Matrix {
  const T* data;
  int64_t row, col;
  int rows, cols;
  bool chunks;  // whether every row consists of 16-byte pieces
};

// Starts copying the kRows x kCols tile at (row0, col0) to shared memory; what lies beyond an edge is zero.
template <int kRows, int kCols, int kPitch, typename T>
__device__ __forceinline__ void copy_tile(const Matrix<T>& from, int row0, int col0, T* tile) {
  constexpr int kPerRow = kCols / kChunk;
  static_assert(kRows * kPerRow % kThreads == 0, "every thread copies the same number of chunks");
#pragma unroll
  for (int i = 0; i < kRows * kPerRow / kThreads; ++i) {
    const int chunk = threadIdx.x + i * kThreads;
    const int row = row0 + chunk / kPerRow, col = col0 + chunk % kPerRow * kChunk;
    T* target = tile + chunk / kPerRow * kPitch + chunk % kPerRow * kChunk;
    const int room = row < from.rows ? max(0, min(kChunk, from.cols - col)) : 0;
    const T* source = room > 0 ? from.data + row * from.row + col * from.col : from.data;
    if (from.chunks) {
      opforge::start_copy(target, source, room * static_cast<int>(sizeof(T)));
    } else {
      Vec<T, kChunk> held;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) held[j] = j < room ? source[j * from.col] : opforge::store_from_float<T>(0.0f);
      held.store(target);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, BLOCK_M * BLOCK_N <= 16384 ? 2 : 1)
    matmul_mma(Matrix<T> a, Matrix<T> b, T* __restrict__ c, int64_t c_row, int64_t c_col, bool c_pairs) {
  OPFORGE_DYNAMIC_SHARED(T, shared);
  T* tiles_a = shared;
  T* tiles_b = shared + STAGES * kStageA;

  // GROUP rows of tiles are walked column by column: blocks that run together read few distinct panels of a and b
  const int m = a.rows, n = b.cols, k = a.cols;
  const int count_m = (m + BLOCK_M - 1) / BLOCK_M, count_n = (n + BLOCK_N - 1) / BLOCK_N;
  const int in_group = GROUP * count_n;
  const int first = static_cast<int>(blockIdx.x) / in_group * GROUP;
  const int height = min(count_m - first, GROUP);
  const int within = static_cast<int>(blockIdx.x) % in_group;
  const int row0 = (first + within % height) * BLOCK_M, col0 = within / height * BLOCK_N;

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / kWarpsN * (BLOCK_M / kWarpsM), warp_col = warp % kWarpsN * (BLOCK_N / kWarpsN);

  const int steps = (k + BLOCK_K - 1) / BLOCK_K;
  const auto start = [&](int step) {
    if (step < steps) {
      const int slot = step % STAGES;
      copy_tile<BLOCK_M, BLOCK_K, kPitchA>(a, row0, step * BLOCK_K, tiles_a + slot * kStageA);
      copy_tile<BLOCK_K, BLOCK_N, kPitchB>(b, step * BLOCK_K, col0, tiles_b + slot * kStageB);
    }
    // an empty group too: the count of groups tells which step has arrived
    opforge::close_copies();
  };

  float sums[kTilesM][kTilesN][4] = {};
  for (int step = 0; step < STAGES - 1; ++step) start(step);
  for (int step = 0; step < steps; ++step) {
    opforge::wait_for_copies<STAGES - 2>();
    // everyone's copies have arrived, and everyone has read the slot that is filled next
    __syncthreads();
    start(step + STAGES - 1);
    const T* tile_a = tiles_a + step % STAGES * kStageA;
    const T* tile_b = tiles_b + step % STAGES * kStageB;
#pragma unroll
    for (int l = 0; l < BLOCK_K; l += 16) {
      Pair left[kTilesM][4], right[kTilesN / 2][4];
#pragma unroll
      for (int i = 0; i < kTilesM; ++i)
        opforge::load_matrices(left[i], tile_a + (warp_row + 16 * i + lane % 16) * kPitchA + l + lane / 16 * 8);
#pragma unroll
      for (int j = 0; j < kTilesN / 2; ++j)
        opforge::load_matrices_transposed(right[j], tile_b + (l + lane % 16) * kPitchB + warp_col + 16 * j + lane / 16 * 8);
#pragma unroll
      for (int i = 0; i < kTilesM; ++i)
#pragma unroll
        for (int j = 0; j < kTilesN; ++j) {
          const Pair two[2] = {right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]};
          opforge::multiply_matrices<T>(sums[i][j], left[i], two);
        }
    }
  }
  opforge::wait_for_copies<0>();

#pragma unroll
  for (int i = 0; i < kTilesM; ++i)
#pragma unroll
    for (int j = 0; j < kTilesN; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row0 + warp_row + 16 * i + lane / 4 + 8 * half, col = col0 + warp_col + 8 * j + lane % 4 * 2;
        if (row >= m || col >= n) continue;
        T* p = c + row * c_row + col * c_col;
        const T low = opforge::store_from_float<T>(sums[i][j][2 * half]), high = opforge::store_from_float<T>(sums[i][j][2 * half + 1]);
        if (c_pairs && col + 1 < n) {
          Vec<T, 2> two;
          two[0] = low;
          two[1] = high;
          two.store(p);
        } else {
          p[0] = low;
          if (col + 1 < n) p[c_col] = high;
        }
      }
}

template <typename T>
Matrix<T> describe(const opforge::TensorView& tensor) {
  const T* data = opforge::data<T>(tensor);
  const bool chunks = tensor.stride(1) == 1 && opforge::can_vectorize(data, tensor.stride(0));
  return {data, tensor.stride(0), tensor.stride(1), static_cast<int>(tensor.size(0)), static_cast<int>(tensor.size(1)), chunks};
}

template <typename T>
void matmul_tiles(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c) {
  T* out = opforge::data<T>(c);
  const int64_t c_row = c.stride(0), c_col = c.stride(1);
  const bool c_pairs = c_col == 1 && c_row % 2 == 0 && reinterpret_cast<uintptr_t>(out) % (2 * sizeof(T)) == 0;
  const int64_t tiles = opforge::ceil_div(c.size(0), BLOCK_M) * opforge::ceil_div(c.size(1), BLOCK_N);
  OPFORGE_CHECK(tiles <= 2147483647, ValueError, "c has ", tiles, " tiles, more than a grid may hold");
  OPFORGE_LAUNCH((matmul_mma<T>), tiles, kThreads, kSharedBytes, opforge::current_stream(a), describe<T>(a), describe<T>(b), out, c_row, c_col, c_pairs);
}

void matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c) {
  OPFORGE_CHECK_NDIM(a, 2);
  OPFORGE_CHECK_NDIM(b, 2);
  OPFORGE_CHECK_NDIM(c, 2);
  OPFORGE_CHECK(a.size(1) == b.size(0) && a.size(0) == c.size(0) && b.size(1) == c.size(1), ValueError,
                "a must be m x k, b k x n and c m x n");
  OPFORGE_CHECK(std::max({c.size(0), c.size(1), a.size(1)}) < 2147483647 - 256, ValueError, "an axis is longer than 2^31 - 257");
  OPFORGE_CHECK_SAME_DTYPE(a, b);
  OPFORGE_CHECK_SAME_DTYPE(a, c);
  OPFORGE_CHECK_DEVICE(a);
  OPFORGE_CHECK_DEVICE(b);
  OPFORGE_CHECK_DEVICE(c);
  if (c.numel() == 0) return;
  switch (opforge::float_kind(a.dtype())) {
    case opforge::FloatKind::kFloat16: return matmul_tiles<opforge::half_t>(a, b, c);
    case opforge::FloatKind::kBFloat16: return matmul_tiles<opforge::bfloat16_t>(a, b, c);
    default: opforge::raise("TypeError", "a must be float16 or bfloat16 (got ", opforge::dtype_name(a.dtype()), ")");
  }
}

}  // namespace

OPFORGE_EXPORT(run, matmul)
