// opforge/onchip_rows.h - row operators that need one statistic of a row: each row is read from memory once.
//
// A row waits in registers, as it was stored: those of a warp, of a block, or of the blocks of a
// cluster, a slice each. The statistic takes one exchange: every warp makes its own from registers,
// then the warps' and the blocks' are merged. Two ways to keep memory busy meanwhile:
//
//   a group for each row          other groups of the same SM load while this one computes
//   groups that stay (kStages)    bulk copies bring the next rows into shared memory by themselves: for
//                                 clusters, of which too few fit an SM to cover for each other
//
// An operator is a functor:
//   kInputs                       1, or 2 when it reads two rows of one shape
//   Stat, empty()                 the statistic, whole words; and that of no elements
//   gather(row)                   this warp's part of it, in every lane; row.visit(f) calls f(c, values[, values])
//                                 for the N elements from column c on, as often as gather likes
//   merge_lanes(stat)             the lanes' statistics merged, in every lane
//   finish(r, stat)               what emit gets of row r; called by every thread
//   leave(r, finished)            once for each row
//   emit(r, c, finished, values[, values])    (kEmits) the elements from column c on
#ifndef OPFORGE_ONCHIP_ROWS_H_
#define OPFORGE_ONCHIP_ROWS_H_

#include "opforge/bulk.h"
#include "opforge/device_rows.h"
#include "opforge/groups.h"
#include "opforge/packed.h"

namespace opforge {

constexpr int kOnchipWarps = 4;  // rows of a block when a warp takes one
constexpr int kOnchipMaxThreads = 1024;
constexpr int kOnchipMaxCluster = 16;

/// A row, or this thread's part of it: kVecs vectors of N elements of each input.
template <typename T, int N, int kVecs, int kInputs>
struct OnchipRow {
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
  /// Takes the row from shared memory, where a slice of each input lies: `threads` vectors from this thread's, kVecs times.
  __device__ __forceinline__ void take(const Packed<T, N>* slice, int rank, int threads) {
#pragma unroll
    for (int k = 0; k < kInputs; ++k) {
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        if (i * step < left) data[k][i] = slice[(k * kVecs + i) * threads + rank];
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

/// Parts of a row's statistic, two generations of them: one is read while the next is written.
template <class Stat>
struct StatExchange {
  Stat warps[2][kWarpSize];
  Stat blocks[2][kOnchipMaxCluster];
};

/// Merges one warp's statistic with those of its block, which waits for all its warps.
template <class Op>
__device__ __forceinline__ typename Op::Stat merge_in_block(typename Op::Stat part, StatExchange<typename Op::Stat>& exchange, int turn) {
  const int lane = threadIdx.x % kWarpSize, warps = blockDim.x / kWarpSize;
  if (lane == 0) exchange.warps[turn][threadIdx.x / kWarpSize] = part;
  __syncthreads();
  return Op::merge_lanes(lane < warps ? exchange.warps[turn][lane] : Op::empty());
}

/// Merges one block's statistic with those of its cluster, which waits for all its blocks.
template <class Op>
__device__ __forceinline__ typename Op::Stat merge_in_cluster(typename Op::Stat part, StatExchange<typename Op::Stat>& exchange, int turn, int blocks, int block) {
  const int lane = threadIdx.x % kWarpSize;
  if (static_cast<int>(threadIdx.x) < blocks) store_in_block(&exchange.blocks[turn][block], threadIdx.x, part);
  cluster_barrier();
  return Op::merge_lanes(lane < blocks ? exchange.blocks[turn][lane] : Op::empty());
}

template <int kVecs, class Op, class Row>
__device__ __forceinline__ void finish_row(const Op& op, const Row& row, int64_t r, typename Op::Stat stat) {
  const auto finished = op.finish(r, stat);
  if (row.first == 0) op.leave(r, finished);
  if constexpr (Op::kEmits) {
    row.visit([&](int c, const auto&... values) { op.emit(r, c, finished, values...); });
  }
}

/// A warp (kWarp), a block or a cluster for each row.
template <typename T, int N, int kVecs, bool kWarp, class Op>
__global__ void __launch_bounds__(kWarp ? kOnchipWarps * kWarpSize : kOnchipMaxThreads) onchip_rows(Op op, Rows<const T> a, Rows<const T> b) {
  const int threads = kWarp ? kWarpSize : blockDim.x, rank = kWarp ? threadIdx.x % kWarpSize : threadIdx.x;
  const int blocks = kWarp ? 1 : cluster_blocks(), block = kWarp ? 0 : cluster_block();
  const int64_t r = kWarp ? int64_t(blockIdx.x) * kOnchipWarps + threadIdx.x / kWarpSize : blockIdx.x / blocks;
  if (kWarp && r >= a.rows) return;
  // a block must have begun before anything is written to it; it may begin while the row is on its way
  if (blocks > 1) cluster_arrive();
  OnchipRow<T, N, kVecs, Op::kInputs> row;
  row.first = (block * kVecs * threads + rank) * N;
  row.step = threads * N, row.left = static_cast<int>(a.cols) - row.first;
  row.load(a, b, r);
  auto stat = op.gather(row);
  if constexpr (!kWarp) {
    __shared__ StatExchange<typename Op::Stat> exchange;
    stat = merge_in_block<Op>(stat, exchange, 0);
    if (blocks > 1) {
      cluster_wait();
      stat = merge_in_cluster<Op>(stat, exchange, 0, blocks, block);
    }
  }
  finish_row<kVecs>(op, row, r, stat);
}

/// Blocks or clusters that stay, with kStages slices of rows in shared memory or on their way there.
template <typename T, int N, int kVecs, int kStages, class Op>
__global__ void __launch_bounds__(kOnchipMaxThreads) streamed_rows(Op op, Rows<const T> a, Rows<const T> b) {
  OPFORGE_DYNAMIC_SHARED(unsigned char, shared);
  __shared__ StatExchange<typename Op::Stat> exchange;
  __shared__ Arrival arrivals[kStages];
  const int threads = blockDim.x, rank = threadIdx.x;
  const int blocks = cluster_blocks(), block = cluster_block();
  const int64_t groups = gridDim.x / blocks;
  const int start = block * kVecs * threads * N, slice = kVecs * threads;
  Packed<T, N>* stages = reinterpret_cast<Packed<T, N>*>(shared);

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
    finish_row<kVecs>(op, row, r, stat);
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
}

template <typename T, int N, int kVecs, bool kWarp, class Op>
inline void launch_onchip(const Op& op, const Rows<const T>& a, const Rows<const T>& b, int blocks, int threads, cudaStream_t stream) {
  const int64_t groups = kWarp ? ceil_div(a.rows, kOnchipWarps) : a.rows;
  OPFORGE_CHECK(groups * blocks <= INT32_MAX, ValueError, "a grid holds 2^31 - 1 blocks at most (got ", groups * blocks, ")");
  // prepares the kernel for clusters, and refuses them where there are none
  if (blocks > 1) resident_clusters(onchip_rows<T, N, kVecs, kWarp, Op>, blocks, threads, 0);
  OPFORGE_LAUNCH_CLUSTERS((onchip_rows<T, N, kVecs, kWarp, Op>), groups, blocks, threads, 0, stream, op, a, b);
}

template <typename T, int N, int kVecs, int kStages, class Op>
inline void launch_streamed(const Op& op, const Rows<const T>& a, const Rows<const T>& b, int blocks, int threads, cudaStream_t stream) {
  const std::size_t shared = std::size_t(kStages) * Op::kInputs * kVecs * threads * sizeof(Packed<T, N>);
  const int64_t most = resident_clusters(streamed_rows<T, N, kVecs, kStages, Op>, blocks, threads, shared);
  // as many groups as give each the same number of rows
  const int64_t groups = ceil_div(a.rows, ceil_div(a.rows, most));
  OPFORGE_LAUNCH_CLUSTERS((streamed_rows<T, N, kVecs, kStages, Op>), groups, blocks, threads, shared, stream, op, a, b);
}

/// Whether the current device has bulk copies.
inline bool has_bulk_copies() {
#ifdef OPFORGE_EMULATE
  return true;
#else
  int device = 0, major = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDevAttrComputeCapabilityMajor");
  return major >= 9;
#endif
}

/// kRowVecs: vectors of 16 bytes that a thread holds of a row. kSlice: threads of one block of a cluster. kStages: slices of rows
/// in shared memory, 0 for none, and 1 where they do not fit. kPlain: rows up to this many bytes (of each input) get a group each in any case.
template <typename T, int N, class Op, int kRowVecs, int kSlice, int kStages, int kPlain>
inline void launch_onchip_by(const Op& op, const Rows<const T>& a, const Rows<const T>& b, cudaStream_t stream) {
  // single elements go four times as many to a thread: the same registers
  constexpr int kMany = N == 1 ? 4 : 1;
  constexpr int kVecs = kRowVecs * kMany;
  const int64_t vecs = ceil_div(a.cols, N);
  constexpr int kWarpThreads = kOnchipWarps * kWarpSize;
  if (vecs <= kMany * kWarpSize) return launch_onchip<T, N, kMany, true>(op, a, b, 1, kWarpThreads, stream);
  if (vecs <= 2 * kMany * kWarpSize) return launch_onchip<T, N, 2 * kMany, true>(op, a, b, 1, kWarpThreads, stream);
  if (vecs <= 4 * kMany * kWarpSize) return launch_onchip<T, N, 4 * kMany, true>(op, a, b, 1, kWarpThreads, stream);
  if constexpr (Op::kInputs == 1) {
    if (vecs <= 8 * kMany * kWarpSize) return launch_onchip<T, N, 8 * kMany, true>(op, a, b, 1, kWarpThreads, stream);
  }
  const bool plain = a.cols * static_cast<int64_t>(sizeof(T)) <= kPlain && vecs <= kVecs * kOnchipMaxThreads;
  int blocks = 1;
  while (!plain && blocks < kOnchipMaxCluster && vecs > int64_t(blocks) * kVecs * kSlice) blocks *= 2;
  const int threads = static_cast<int>(ceil_div(ceil_div(vecs, int64_t(blocks) * kVecs), kWarpSize) * kWarpSize);
  OPFORGE_CHECK(threads <= kOnchipMaxThreads, ValueError, "a row of ", a.cols, " columns does not fit the registers of a cluster; use another implementation");
  if constexpr (kStages > 0 && N > 1) {
    const std::size_t stage = Op::kInputs * kVecs * sizeof(Packed<T, N>) * threads, most = static_cast<std::size_t>(max_dynamic_shared());
    if (!plain && has_bulk_copies()) {
      if (kStages * stage <= most) return launch_streamed<T, N, kVecs, kStages>(op, a, b, blocks, threads, stream);
      // a single slice is free again as soon as it has been taken to registers
      if (stage <= most) return launch_streamed<T, N, kVecs, 1>(op, a, b, blocks, threads, stream);
    }
  }
  launch_onchip<T, N, kVecs, false>(op, a, b, blocks, threads, stream);
}

/// Runs `op` on every row of a (and of b, where op takes two inputs; else give a again). `vectors` says whether everything that
/// op touches besides them allows 16-byte accesses.
template <typename T, class Op, int kRowVecs, int kSlice, int kStages, int kPlain>
inline void launch_onchip_rows(const Op& op, const Rows<const T>& a, const Rows<const T>& b, bool vectors, cudaStream_t stream) {
  if (a.rows == 0 || a.cols == 0) return;
  if (vectors && rows_vectorize(a) && rows_vectorize(b)) {
    launch_onchip_by<T, kVecSize<T>, Op, kRowVecs, kSlice, kStages, kPlain>(op, a, b, stream);
  } else {
    launch_onchip_by<T, 1, Op, kRowVecs, kSlice, kStages, kPlain>(op, a, b, stream);
  }
}

}  // namespace opforge

#endif  // OPFORGE_ONCHIP_ROWS_H_
