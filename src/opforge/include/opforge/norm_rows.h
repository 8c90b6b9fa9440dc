// opforge/norm_rows.h - normalisation of rows on the GPU: each row is read from memory once.
//
// Short rows have a warp, a block or a cluster each (opforge/onchip_rows.h). Long ones have clusters that stay: bulk copies
// bring the next rows into shared memory by themselves, and the weights of a block's columns are fetched there once: read
// again for every row, they would take as much of the L2 cache's bandwidth as the rows.
//
// Mean and variance take one exchange: every warp takes two passes over its own registers, and the parts are merged
// (Chan, Golub and LeVeque, Algorithms for Computing the Sample Variance, 1983).
#ifndef OPFORGE_NORM_ROWS_H_
#define OPFORGE_NORM_ROWS_H_

#include "opforge/onchip_rows.h"

#ifndef NORM_SLICE
#define NORM_SLICE 512
#endif
#ifndef NORM_VECS
#define NORM_VECS 4
#endif
#ifndef NORM_STAGES
#define NORM_STAGES 1
#endif
#ifndef NORM_STAGED
#define NORM_STAGED 1
#endif
#ifndef NORM_PLAIN
#define NORM_PLAIN 16384
#endif

namespace opforge {

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
    all.mean = all.count > 0.0f ? mean / all.count : 0.0f;
    const float off = part.mean - all.mean;
    all.squares += part.count * off * off;
  }
  all.squares = warp_reduce_sum(all.squares);
  return all;
}

/// How many of a row's elements this warp has.
template <typename T, int N, int kVecs, int kInputs>
__device__ __forceinline__ float elements_of_warp(const OnchipRow<T, N, kVecs, kInputs>& row) {
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
    part.mean = part.count > 0.0f ? sum / part.count : 0.0f;
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

// An operator here is one of opforge/onchip_rows.h with vectors of one element per column besides:
//   kConstants, constant(k)                        how many, and which
//   emit(r, c, finished, constants, values[, values])
// This makes it one of that header: constants come from the caches.
template <typename T, class Op>
struct FetchingConstants : Op {
  template <class Finished, int N, class... Values>
  __device__ __forceinline__ void emit(int64_t r, int c, const Finished& finished, const float (&values)[N], const Values&... others) const {
    float constants[Op::kConstants + 1][N];
#pragma unroll
    for (int k = 0; k < Op::kConstants; ++k) Packed<T, N>::load(Op::constant(k) + c).unpack(constants[k]);
    Op::emit(r, c, finished, constants, values, others...);
  }
};

/// Blocks or clusters that stay, with the constants of their columns and kStages slices of rows in shared memory.
template <typename T, int N, int kVecs, int kStages, bool kStaged, int kThreads, class Op>
__global__ void __launch_bounds__(kThreads) streamed_norm_rows(Op op, Rows<const T> a, Rows<const T> b) {
  OPFORGE_DYNAMIC_SHARED(unsigned char, shared);
  __shared__ StatExchange<typename Op::Stat> exchange;
  __shared__ Arrival arrivals[kStages];
  const int threads = blockDim.x, rank = threadIdx.x;
  const int blocks = cluster_blocks(), block = cluster_block();
  const int64_t groups = gridDim.x / blocks;
  const int start = block * kVecs * threads * N, slice = kVecs * threads;
  Packed<T, N>* stages = reinterpret_cast<Packed<T, N>*>(shared);
  Packed<T, N>* staged = stages + kStages * Op::kInputs * slice;

  OnchipRow<T, N, kVecs, Op::kInputs> row;
  row.first = start + rank * N;
  row.step = threads * N, row.left = static_cast<int>(a.cols) - row.first;
  const uint32_t bytes = static_cast<uint32_t>(max(0, min(static_cast<int>(a.cols) - start, slice * N))) * sizeof(T);
  const auto fetch = [&](int stage, int64_t r) {
    if (bytes == 0 || r >= a.rows) return;
    arrivals[stage].expect(bytes * Op::kInputs);
    Packed<T, N>* target = stages + stage * Op::kInputs * slice;
    bulk_load(target, a.data + r * a.stride + start, bytes, arrivals[stage]);
    if constexpr (Op::kInputs == 2) bulk_load(target + slice, b.data + r * b.stride + start, bytes, arrivals[stage]);
  };
  int64_t r = blockIdx.x / blocks;
  if (rank == 0) {
    for (int s = 0; s < kStages; ++s) arrivals[s].begin();
    for (int s = 0; s < kStages; ++s) fetch(s, r + s * groups);
  }
  // each thread fetches the constants that it alone will read: no barrier is needed for them
  if constexpr (kStaged) {
#pragma unroll
    for (int k = 0; k < Op::kConstants; ++k) {
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        if (i * row.step < row.left) staged[k * slice + i * threads + rank] = Packed<T, N>::load(op.constant(k) + row.first + i * row.step);
      }
    }
  }
  __syncthreads();
  if (blocks > 1) cluster_barrier();  // before anything is written to a block it must have begun
  int stage = 0, turn = 0;
  uint32_t parity = 0;
  for (; r < a.rows; r += groups, turn ^= 1) {
    if (bytes > 0) arrivals[stage].wait(parity);
    row.take(stages + stage * Op::kInputs * slice, rank, threads);
    auto stat = merge_in_block<Op>(op.gather(row), exchange, turn);
    // every thread has taken its part: the slice may be overwritten
    if (rank == 0) fetch(stage, r + kStages * groups);
    if (blocks > 1) stat = merge_in_cluster<Op>(stat, exchange, turn, blocks, block);
    const auto finished = op.finish(r, stat);
    if (row.first == 0) op.leave(r, finished);
    if constexpr (Op::kEmits) {
      row.visit([&](int c, const auto&... values) {
        float constants[Op::kConstants + 1][N];
        const int i = (c - row.first) / N;
#pragma unroll
        for (int k = 0; k < Op::kConstants; ++k) {
          if constexpr (kStaged) {
            staged[k * slice + i + rank].unpack(constants[k]);
          } else {
            Packed<T, N>::load(op.constant(k) + c).unpack(constants[k]);
          }
        }
        op.emit(r, c, finished, constants, values...);
      });
    }
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
}

/// Runs `op` on every row of a (and of b, where op takes two inputs; else give a again). `vectors` says whether everything that
/// op touches besides them allows 16-byte accesses.
template <typename T, class Op>
inline void launch_norm_rows(const Op& op, const Rows<const T>& a, const Rows<const T>& b, bool vectors, cudaStream_t stream) {
  if (a.rows == 0 || a.cols == 0) return;
  const FetchingConstants<T, Op> fetching{op};
  constexpr int N = kVecSize<T>, kVecs = NORM_VECS / Op::kInputs, kStages = NORM_STAGES;
  vectors = vectors && rows_vectorize(a) && rows_vectorize(b);
  if (vectors && a.cols * static_cast<int64_t>(sizeof(T)) > NORM_PLAIN && has_bulk_copies()) {
    const int64_t vecs = a.cols / N;
    int blocks = 1;
    while (blocks < kOnchipMaxCluster && vecs > int64_t(blocks) * kVecs * NORM_SLICE) blocks *= 2;
    const int threads = static_cast<int>(ceil_div(ceil_div(vecs, int64_t(blocks) * kVecs), kWarpSize) * kWarpSize);
    constexpr bool kStaged = NORM_STAGED;
    const std::size_t shared = std::size_t(kStages * Op::kInputs + (kStaged ? Op::kConstants : 0)) * kVecs * threads * 16;
    const auto launch = [&](auto limit) {
      constexpr int kThreads = decltype(limit)::value;
      const int64_t most = resident_clusters(streamed_norm_rows<T, N, kVecs, kStages, kStaged, kThreads, Op>, blocks, threads, shared);
      // as many groups as give each the same number of rows
      const int64_t groups = ceil_div(a.rows, ceil_div(a.rows, most));
      OPFORGE_LAUNCH_CLUSTERS((streamed_norm_rows<T, N, kVecs, kStages, kStaged, kThreads, Op>), groups, blocks, threads, shared, stream, op, a, b);
    };
    if (threads <= NORM_SLICE && shared <= static_cast<std::size_t>(max_dynamic_shared())) return launch(std::integral_constant<int, NORM_SLICE>());
    if (threads <= 1024 && shared <= static_cast<std::size_t>(max_dynamic_shared())) return launch(std::integral_constant<int, 1024>());
  }
  launch_onchip_rows<T, FetchingConstants<T, Op>, 4 / Op::kInputs, 512, 0, NORM_PLAIN>(fetching, a, b, vectors, stream);
}

}  // namespace opforge

#endif  // OPFORGE_NORM_ROWS_H_
