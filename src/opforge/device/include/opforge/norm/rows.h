// opforge/norm/rows.h - normalisation of rows on the GPU: each row is read from memory once.
//
// Short rows have a warp or a block each, long ones blocks or clusters that stay: they load the
// next row into registers before they reduce this one, and keep the weights of their columns in shared memory, which, read
// again for every row, would take as much of the L2 cache's bandwidth as the rows.
//
// An operator is a functor:
//   kInputs                                  1, or 2 when it reads two rows of one shape
//   kConstants, constant(k)                  how many vectors of one element per column it reads, and which
//   gather(row)                              the moments of this warp's elements, in every lane; row.visit(f) calls
//                                            f(c, values[, values]) for the N elements from column c on
//   kCentred                                 whether the mean counts; otherwise it is 0
//   finish(moments)                          what emit gets of the row; called by every thread
//   leave(r, finished)                       once for each row
//   emit(r, c, finished, constants, values[, values])    (kEmits) the elements from column c on
//   kStays                                   whether some rows are for groups that stay (kInputs 1, kConstants > 0)
//   kStaysFrom, kStaysTo, kSlice             see launch_norm_rows
//   kBlocks                                  blocks to a multiprocessor that the registers must allow where a warp has eight vectors of a row; 0: as
//                                            the compiler likes, which may make room for more and spill
//
// Mean and variance take one exchange: every warp takes two passes over its own registers, and the parts are merged
// (Chan, Golub and LeVeque, Algorithms for Computing the Sample Variance, 1983).
/* opforge
layouts = ["contiguous", "rows"]
[supports]
fits_a_cluster = "cols <= 262144"
*/
#ifndef OPFORGE_NORM_ROWS_H_
#define OPFORGE_NORM_ROWS_H_

#include "opforge/rows/device.h"
#include "opforge/arch/groups.h"
#include "opforge/arch/packed.h"

namespace opforge {

constexpr int kNormWarps = 4;  // rows of a block when a warp takes one
constexpr int kNormMaxThreads = 1024;
constexpr int kNormMaxCluster = 16;

/// A row, or this thread's part of it: kVecs vectors of N elements of each input.
template <typename T, int N, int kVecs, int kInputs>
struct NormRow {
  Packed<T, N> data[kInputs][kVecs];
  int first, step, left;

  /// Fetches row r of the inputs.
  __device__ __forceinline__ void load(const Rows<const T>& a, const Rows<const T>& b, int64_t r) {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (i * step < left) {
        data[0][i] = Packed<T, N>::load_once(a.data + r * a.stride + first + i * step);
        if constexpr (kInputs == 2) data[1][i] = Packed<T, N>::load_once(b.data + r * b.stride + first + i * step);
      }
    }
  }

  template <class F>
  __device__ __forceinline__ void visit(const F& f) const {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (i * step < left) {
        float values[N];
        data[0][i].unpack(values);
        if constexpr (kInputs == 2) {
          float others[N];
          data[1][i].unpack(others);
          f(first + i * step, values, others);
        } else {
          f(first + i * step, values);
        }
      }
    }
  }
};

/// What a row, or a part of it, knows of its values: how many, their mean, and the sum of squares of
/// the deviations from it (kCentred false: the mean is 0 and stays out of it).
struct Moments {
  float count, mean, squares;
};

/// Merges the moments of the lanes; every lane gets the result.
template <bool kCentred>
__device__ __forceinline__ Moments merge_moments(Moments part) {
  Moments all{warp_reduce_sum(part.count), 0.0f, part.squares};
  if constexpr (kCentred) {
    const float mean = warp_reduce_sum(part.count * part.mean);
    all.mean = all.count > 0.0f ? __fdividef(mean, all.count) : 0.0f;
    const float off = part.mean - all.mean;
    all.squares += part.count * off * off;
  }
  all.squares = warp_reduce_sum(all.squares);
  return all;
}

/// How many of a row's elements this warp has.
template <typename T, int N, int kVecs, int kInputs>
__device__ __forceinline__ float elements_of_warp(const NormRow<T, N, kVecs, kInputs>& row) {
  const int left = row.left + static_cast<int>(threadIdx.x) % kWarpSize * N;
  int count = 0;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) count += max(0, min(left - i * row.step, kWarpSize * N));
  return static_cast<float>(count);
}

/// The moments of a warp's elements, in every lane: two passes, so that nothing cancels.
template <bool kCentred, class Row>
__device__ __forceinline__ Moments moments_of_warp(const Row& row) {
  Moments part{elements_of_warp(row), 0.0f, 0.0f};
  if constexpr (kCentred) {
    float sum = 0.0f;
    row.visit([&](int, const auto& x) {
      for (float v : x) sum += v;
    });
    sum = warp_reduce_sum(sum);
    part.mean = part.count > 0.0f ? __fdividef(sum, part.count) : 0.0f;
  }
  row.visit([&](int, const auto& x) {
    for (float v : x) part.squares += (v - part.mean) * (v - part.mean);
  });
  part.squares = warp_reduce_sum(part.squares);
  return part;
}

/// Mean and the factor that a row is multiplied by.
struct Normaliser {
  float mean, scale;
};

/// Moments of the parts of a row, two generations of them: one is read while the next is written.
struct MomentExchange {
  Moments warps[2][kWarpSize];
  Moments blocks[2][kNormMaxCluster];
};

/// Merges one warp's moments with those of its block, and of its cluster.
template <bool kCentred>
__device__ __forceinline__ Moments merge_group(Moments part, MomentExchange& exchange, int turn, int blocks, int block) {
  const int lane = threadIdx.x % kWarpSize, warps = blockDim.x / kWarpSize;
  if (lane == 0) exchange.warps[turn][threadIdx.x / kWarpSize] = part;
  __syncthreads();
  part = merge_moments<kCentred>(lane < warps ? exchange.warps[turn][lane] : Moments{0.0f, 0.0f, 0.0f});
  if (blocks > 1) {
    if (static_cast<int>(threadIdx.x) < blocks) store_in_block(&exchange.blocks[turn][block], threadIdx.x, part);
    cluster_barrier();
    part = merge_moments<kCentred>(lane < blocks ? exchange.blocks[turn][lane] : Moments{0.0f, 0.0f, 0.0f});
  }
  return part;
}

/// A warp (kWarp), a block or a cluster for each row; constants come from the caches.
template <typename T, int N, int kVecs, bool kWarp, class Op>
__global__ void __launch_bounds__(kWarp ? kNormWarps * kWarpSize : kNormMaxThreads, kWarp && kVecs == 8 && N > 1 ? Op::kBlocks : 0)
    norm_rows(Op op, Rows<const T> a, Rows<const T> b) {
  const int threads = kWarp ? kWarpSize : blockDim.x, rank = kWarp ? threadIdx.x % kWarpSize : threadIdx.x;
  const int blocks = kWarp ? 1 : cluster_blocks(), block = kWarp ? 0 : cluster_block();
  const int64_t r = kWarp ? int64_t(blockIdx.x) * kNormWarps + threadIdx.x / kWarpSize : blockIdx.x / blocks;
  if (kWarp && r >= a.rows) return;
  // a block must have begun before anything is written to it; it may begin while the row is on its way
  if (blocks > 1) cluster_arrive();
  NormRow<T, N, kVecs, Op::kInputs> row;
  row.first = (block * kVecs * threads + rank) * N;
  row.step = threads * N, row.left = static_cast<int>(a.cols) - row.first;
  row.load(a, b, r);
  Moments moments = op.gather(row);
  if constexpr (!kWarp) {
    __shared__ MomentExchange exchange;
    if (blocks > 1) cluster_wait();
    moments = merge_group<Op::kCentred>(moments, exchange, 0, blocks, block);
  }
  const auto finished = op.finish(moments);
  if (row.first == 0) op.leave(r, finished);
  if constexpr (Op::kEmits) {
    row.visit([&](int c, const auto&... values) {
      float constants[Op::kConstants][N];
#pragma unroll
      for (int k = 0; k < Op::kConstants; ++k) Packed<T, N>::load(op.constant(k) + c).unpack(constants[k]);
      op.emit(r, c, finished, constants, values...);
    });
  }
}

/// Blocks or clusters that stay: the constants of their columns are in shared memory, the next row is on its way to registers.
template <typename T, int N, int kVecs, class Op>
__global__ void __launch_bounds__(kNormMaxThreads) staying_norm_rows(Op op, Rows<const T> x) {
  OPFORGE_DYNAMIC_SHARED(unsigned char, shared);
  __shared__ MomentExchange exchange;
  const int threads = blockDim.x, rank = threadIdx.x, blocks = cluster_blocks(), block = cluster_block();
  const int64_t groups = gridDim.x / blocks;
  const int slice = kVecs * threads;
  Packed<T, N>* staged = reinterpret_cast<Packed<T, N>*>(shared);

  NormRow<T, N, kVecs, 1> next;
  next.first = (block * slice + rank) * N;
  next.step = threads * N, next.left = static_cast<int>(x.cols) - next.first;
  int64_t r = blockIdx.x / blocks;
  if (r < x.rows) next.load(x, x, r);
  // each thread fetches the constants that it alone will read: no barrier is needed
#pragma unroll
  for (int k = 0; k < Op::kConstants; ++k) {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (i * next.step < next.left) staged[k * slice + i * threads + rank] = Packed<T, N>::load(op.constant(k) + next.first + i * next.step);
    }
  }
  if (blocks > 1) cluster_barrier();  // before anything is written to a block it must have begun
  for (int turn = 0; r < x.rows; r += groups, turn ^= 1) {
    const NormRow<T, N, kVecs, 1> row = next;
    if (r + groups < x.rows) next.load(x, x, r + groups);
    const auto finished = op.finish(merge_group<Op::kCentred>(op.gather(row), exchange, turn, blocks, block));
    if (row.first == 0) op.leave(r, finished);
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (i * row.step < row.left) {
        float values[N], constants[Op::kConstants][N];
        row.data[0][i].unpack(values);
#pragma unroll
        for (int k = 0; k < Op::kConstants; ++k) staged[k * slice + i * threads + rank].unpack(constants[k]);
        op.emit(r, row.first + i * row.step, finished, constants, values);
      }
    }
  }
}

template <typename T, int N, int kVecs, bool kWarp, class Op>
inline void launch_norm(const Op& op, const Rows<const T>& a, const Rows<const T>& b, int blocks, int threads, cudaStream_t stream) {
  const int64_t groups = kWarp ? ceil_div(a.rows, kNormWarps) : a.rows;
  OPFORGE_CHECK(groups * blocks <= INT32_MAX, ValueError, "a grid holds 2^31 - 1 blocks at most (got ", groups * blocks, ")");
  // prepares the kernel for clusters, and refuses them where there are none
  if (blocks > 1) resident_clusters(norm_rows<T, N, kVecs, kWarp, Op>, blocks, threads, 0);
  OPFORGE_LAUNCH_CLUSTERS((norm_rows<T, N, kVecs, kWarp, Op>), groups, blocks, threads, 0, stream, op, a, b);
}

template <typename T, int N, class Op>
inline void launch_norm_by(const Op& op, const Rows<const T>& a, const Rows<const T>& b, cudaStream_t stream) {
  // single elements go four times as many to a thread: the same registers
  constexpr int kMany = N == 1 ? 4 : 1, kVecs = 4 * kMany / Op::kInputs, kSliceThreads = 512;
  const int64_t vecs = ceil_div(a.cols, N);
  constexpr int kWarpThreads = kNormWarps * kWarpSize;
  if (vecs <= kMany * kWarpSize) return launch_norm<T, N, kMany, true>(op, a, b, 1, kWarpThreads, stream);
  if (vecs <= 2 * kMany * kWarpSize) return launch_norm<T, N, 2 * kMany, true>(op, a, b, 1, kWarpThreads, stream);
  if (vecs <= 4 * kMany * kWarpSize) return launch_norm<T, N, 4 * kMany, true>(op, a, b, 1, kWarpThreads, stream);
  if constexpr (Op::kInputs == 1) {
    if (vecs <= 8 * kMany * kWarpSize) return launch_norm<T, N, 8 * kMany, true>(op, a, b, 1, kWarpThreads, stream);
  }
  int blocks = 1;
  // up to 64 KiB a single block, of 1024 threads if need be
  if (vecs > kVecs * kNormMaxThreads) {
    while (blocks < kNormMaxCluster && vecs > int64_t(blocks) * kVecs * kSliceThreads) blocks *= 2;
  }
  const int threads = static_cast<int>(ceil_div(ceil_div(vecs, int64_t(blocks) * kVecs), kWarpSize) * kWarpSize);
  OPFORGE_CHECK(threads <= kNormMaxThreads, ValueError, "a row of ", a.cols, " columns does not fit the registers of a cluster; use another implementation");
  launch_norm<T, N, kVecs, false>(op, a, b, blocks, threads, stream);
}

/// Runs `op` on every row of a (and of b, where op takes two inputs; else give a again). `vectors` says whether everything that
/// op touches besides them allows 16-byte accesses.
///
/// Which rows stay belongs to the operator: those of kStaysFrom < bytes <= kStaysTo, in blocks of kSlice threads while the row
/// fits a cluster of them. Measured on an H200, bfloat16 and float32, 1K to 256K columns; see the operators' pages.
template <typename T, class Op>
inline void launch_norm_rows(const Op& op, const Rows<const T>& a, const Rows<const T>& b, bool vectors, cudaStream_t stream) {
  if (a.rows == 0 || a.cols == 0) return;
  vectors = vectors && rows_vectorize(a) && rows_vectorize(b);
  if constexpr (Op::kStays) {
    const int64_t bytes = a.cols * static_cast<int64_t>(sizeof(T));
    if (vectors && bytes > Op::kStaysFrom && bytes <= Op::kStaysTo) {
      constexpr int N = kVecSize<T>, kVecs = 4;
      const int64_t vecs = a.cols / N;
      int blocks = 1;
      while (blocks < kNormMaxCluster && vecs > int64_t(blocks) * kVecs * Op::kSlice) blocks *= 2;
      const int threads = static_cast<int>(ceil_div(ceil_div(vecs, int64_t(blocks) * kVecs), kWarpSize) * kWarpSize);
      const std::size_t shared = std::size_t(Op::kConstants) * kVecs * threads * sizeof(Packed<T, N>);
      if (threads <= kNormMaxThreads && shared <= static_cast<std::size_t>(max_dynamic_shared())) {
        const int64_t most = resident_clusters(staying_norm_rows<T, N, kVecs, Op>, blocks, threads, shared);
        // as many groups as give each the same number of rows
        const int64_t groups = ceil_div(a.rows, ceil_div(a.rows, most));
        OPFORGE_LAUNCH_CLUSTERS((staying_norm_rows<T, N, kVecs, Op>), groups, blocks, threads, shared, stream, op, a);
        return;
      }
    }
  }
  if (vectors) {
    launch_norm_by<T, kVecSize<T>>(op, a, b, stream);
  } else {
    launch_norm_by<T, 1>(op, a, b, stream);
  }
}

}  // namespace opforge

#endif  // OPFORGE_NORM_ROWS_H_
