// opforge/gemm/mma.h - the product of two matrices by mma.sync: tiles pass through shared memory in copies that overlap with the
// products of a pipeline of stages.  sm_80 and later; 16-bit operands, or float ones that are cut off to TF32.  What happens to the sums
// before they are stored is an epilogue (see gemm/common.h).
//
// source    PTX ISA, sections on mma.m16n8k16 and m16n8k8, ldmatrix and cp.async
#ifndef OPFORGE_GEMM_MMA_H_
#define OPFORGE_GEMM_MMA_H_

#include "opforge/gemm/common.h"
#include "opforge/arch/tensor_core.h"

namespace opforge {
namespace mma {

constexpr int kThreads = 256;
constexpr int kWarpsM = 2, kWarpsN = 4;  // how the eight warps share a tile
template <typename T>
constexpr int kChunk = 16 / sizeof(T);   // elements in 16 bytes

/// The tile of c, the terms per step, steps under way at once, rows of tiles that are computed together; and whether b's neighbours in
/// memory are terms (b stored column by column, a weight of n x k) and not columns.
template <typename T, int block_m, int block_n, int block_k, int stages, int group, bool along_k>
struct Tiles {
  static constexpr int kBlockM = block_m, kBlockN = block_n, kBlockK = block_k, kStages = stages, kGroup = group;
  static constexpr bool kAlongK = along_k;
  static constexpr int kTilesM = kBlockM / kWarpsM / 16, kTilesN = kBlockN / kWarpsN / 8;  // matrix products of a warp along m and along n
  static constexpr int kTerms = 32 / sizeof(T);  // of one instruction
  // of shared memory: b's rows are terms, or columns; 16 bytes of padding keep ldmatrix free of bank conflicts, and 8 elements where
  // float rows of columns are read one by one: then four terms lie eight banks apart
  static constexpr int kRowsB = kAlongK ? kBlockN : kBlockK, kColsB = kAlongK ? kBlockK : kBlockN;
  static constexpr int kPitchA = kBlockK + kChunk<T>, kPitchB = kColsB + (kAlongK ? kChunk<T> : 8), kStageA = kBlockM * kPitchA, kStageB = kRowsB * kPitchB;
  static constexpr int kSharedBytes = static_cast<int>(sizeof(T)) * kStages * (kStageA + kStageB);
  static_assert(kTilesM >= 1 && kTilesN >= 2 && kTilesN % 2 == 0, "a warp's share is made of 16 x 16 pieces");
};

// An operand as rows of a matrix in memory: element (i, j) lies at data[i * row + j * col].
template <typename T>
struct Operand {
  const T* data;
  int64_t row, col;
  int rows, cols;
  bool chunks;  // whether every row consists of 16-byte pieces
};

// Starts copying the kRows x kCols tile at (row0, col0) to shared memory; what lies beyond an edge is zero.
template <int kRows, int kCols, int kPitch, typename T>
__device__ __forceinline__ void copy_tile(const Operand<T>& from, int row0, int col0, T* tile) {
  constexpr int kEach = kChunk<T>, kPerRow = kCols / kEach;
  static_assert(kRows * kPerRow % kThreads == 0, "every thread copies the same number of chunks");
#pragma unroll
  for (int i = 0; i < kRows * kPerRow / kThreads; ++i) {
    const int chunk = threadIdx.x + i * kThreads;
    const int row = row0 + chunk / kPerRow, col = col0 + chunk % kPerRow * kEach;
    T* target = tile + chunk / kPerRow * kPitch + chunk % kPerRow * kEach;
    const int room = row < from.rows ? max(0, min(kEach, from.cols - col)) : 0;
    const T* source = room > 0 ? from.data + row * from.row + col * from.col : from.data;
    if (from.chunks) {
      start_copy(target, source, room * static_cast<int>(sizeof(T)));
    } else {
      Vec<T, kEach> loaded;
#pragma unroll
      for (int j = 0; j < kEach; ++j) loaded[j] = j < room ? source[j * from.col] : store_from_float<T>(0.0f);
      loaded.store(target);
    }
  }
}

// Of several matrices: how far apart they lie.
struct Batch {
  int64_t a, b, c;
};

template <typename S, typename T, typename TOut, typename Epilogue, bool kBatched>
__global__ void __launch_bounds__(kThreads, S::kBlockM * S::kBlockN <= 16384 ? 2 : 1)
    product_mma(Operand<T> a, Operand<T> b, gemm::ByPairs<TOut> c, Epilogue epilogue, Batch batch) {
  OPFORGE_DYNAMIC_SHARED(T, shared);
  T* tiles_a = shared;
  T* tiles_b = shared + S::kStages * S::kStageA;

  const int m = a.rows, n = S::kAlongK ? b.rows : b.cols, k = a.cols;
  const int count_m = (m + S::kBlockM - 1) / S::kBlockM, count_n = (n + S::kBlockN - 1) / S::kBlockN;
  int tile = static_cast<int>(blockIdx.x);
  if constexpr (kBatched) {
    const int matrix = tile / (count_m * count_n);
    tile %= count_m * count_n;
    a.data += matrix * batch.a;
    b.data += matrix * batch.b;
  }
  const gemm::Place at = gemm::place(tile, count_m, count_n, S::kGroup);
  const int row0 = at.row * S::kBlockM, col0 = at.col * S::kBlockN;

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / kWarpsN * (S::kBlockM / kWarpsM), warp_col = warp % kWarpsN * (S::kBlockN / kWarpsN);

  const int steps = (k + S::kBlockK - 1) / S::kBlockK;
  const auto start = [&](int step) {
    if (step < steps) {
      const int slot = step % S::kStages, term = step * S::kBlockK;
      copy_tile<S::kBlockM, S::kBlockK, S::kPitchA>(a, row0, term, tiles_a + slot * S::kStageA);
      copy_tile<S::kRowsB, S::kColsB, S::kPitchB>(b, S::kAlongK ? col0 : term, S::kAlongK ? term : col0, tiles_b + slot * S::kStageB);
    }
    // an empty group too: the count of groups tells which step has arrived
    commit_copies();
  };

  float sums[S::kTilesM][S::kTilesN][4] = {};
  for (int step = 0; step < S::kStages - 1; ++step) start(step);
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<S::kStages - 2>();
    // everyone's copies have arrived, and everyone has read the slot that is filled next
    __syncthreads();
    start(step + S::kStages - 1);
    const T* tile_a = tiles_a + step % S::kStages * S::kStageA;
    const T* tile_b = tiles_b + step % S::kStages * S::kStageB;
    // products of floats one after another: unrolled, they take more registers than two blocks of a multiprocessor have
    constexpr int kUnrolled = sizeof(T) == 4 && kBatched ? 1 : S::kBlockK / S::kTerms;
#pragma unroll kUnrolled
    for (int l = 0; l < S::kBlockK; l += S::kTerms) {
      Pair left[S::kTilesM][4], right[S::kTilesN / 2][4];
#pragma unroll
      for (int i = 0; i < S::kTilesM; ++i) load_matrices(left[i], tile_a + (warp_row + 16 * i + lane % 16) * S::kPitchA + l + lane / 16 * kChunk<T>);
#pragma unroll
      for (int j = 0; j < S::kTilesN / 2; ++j) {
        if constexpr (S::kAlongK) {
          // rows are columns of b already: the first two of the four 8 x 8 matrices are the terms of eight columns, as without
          load_matrices(right[j], tile_b + (warp_col + 16 * j + lane / 16 * 8 + lane % 8) * S::kPitchB + l + lane / 8 % 2 * kChunk<T>);
        } else if constexpr (sizeof(T) == 4) {
          // ldmatrix transposes 16-bit elements only
          const T* first = tile_b + (l + lane % 4) * S::kPitchB + warp_col + 16 * j + lane / 4;
#pragma unroll
          for (int i = 0; i < 4; ++i) right[j][i] = __float_as_uint(first[i % 2 * 4 * S::kPitchB + i / 2 * 8]);
        } else {
          load_matrices_transposed(right[j], tile_b + (l + lane % 16) * S::kPitchB + warp_col + 16 * j + lane / 16 * 8);
        }
      }
#pragma unroll
      for (int i = 0; i < S::kTilesM; ++i)
#pragma unroll
        for (int j = 0; j < S::kTilesN; ++j) {
          const Pair two[2] = {right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]};
          multiply_matrices<T>(sums[i][j], left[i], two);
        }
    }
  }
  wait_for_copies<0>();

  if constexpr (kBatched) {
    // not before: the addresses would be kept in registers through the products
    const int matrix = static_cast<int>(blockIdx.x) / (count_m * count_n);
    c.data += matrix * batch.c;
    epilogue.begin(matrix);
  }
#pragma unroll
  for (int i = 0; i < S::kTilesM; ++i)
#pragma unroll
    for (int j = 0; j < S::kTilesN; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row0 + warp_row + 16 * i + lane / 4 + 8 * half, col = col0 + warp_col + 8 * j + lane % 4 * 2;
        float& low = sums[i][j][2 * half];
        float& high = sums[i][j][2 * half + 1];
        epilogue(low, high, row, col);
        c.store(low, high, row, col, m, n);
      }
}

template <typename T>
Operand<T> describe(const Matrix& matrix) {
  const T* data = matrix.typed<const T>();
  const bool chunks = matrix.col == 1 && can_vectorize(data, matrix.row) && (matrix.batch == 1 || matrix.batch_stride % kChunk<T> == 0);
  return {data, matrix.row, matrix.col, static_cast<int>(matrix.rows), static_cast<int>(matrix.cols), chunks};
}

/// c = epilogue(a b), or a batch of them with kBatched (then `epilogue.begin(matrix)` says which one a block is at).  The matrices
/// have been checked.  Of float operands a step has half the terms, and as many bytes.  b is read along its terms or along its columns, as it lies.
template <int block_m, int block_n, int block_k, int stages, int group, typename T, typename TOut, bool kBatched = false, typename Epilogue>
void launch_product(const Matrix& a, const Matrix& b, const Matrix& c, cudaStream_t stream, const Epilogue& epilogue) {
  constexpr int kTerms = block_k * 2 / static_cast<int>(sizeof(T));
  const Batch batch{a.batch_stride, b.batch_stride, c.batch_stride};
  const unsigned tiles = static_cast<unsigned>(gemm::count_tiles(c, block_m, block_n));
  // a row of one matrix of c begins where pairs do only if every matrix does
  gemm::ByPairs<TOut> out = gemm::pairs_of<TOut>(c);
  out.pairs = out.pairs && c.batch_stride % 2 == 0;
  const auto launch = [&](auto shape, const Operand<T>& right) {
    using S = decltype(shape);
    OPFORGE_LAUNCH((product_mma<S, T, TOut, Epilogue, kBatched>), tiles, kThreads, S::kSharedBytes, stream, describe<T>(a), right, out, epilogue, batch);
  };
  if (b.row == 1 && b.col != 1) {
    launch(Tiles<T, block_m, block_n, kTerms, stages, group, true>(), describe<T>(b.transposed()));
  } else {
    launch(Tiles<T, block_m, block_n, kTerms, stages, group, false>(), describe<T>(b));
  }
}

}  // namespace mma
}  // namespace opforge

#endif  // OPFORGE_GEMM_MMA_H_
