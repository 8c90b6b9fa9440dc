// opforge/rows/onchip.h - row operators that need one statistic of a row: each row is read from memory once.
//
// A row waits in registers, as it was stored: those of a warp, of a block, or of the blocks of a
// cluster, a slice each. The statistic takes one exchange: every warp makes its own from registers,
// then the warps' and the blocks' are merged. There is a group of threads for each row, and while one
// computes, others on the same SM load. (Groups that stay and fetch rows ahead, into registers or by
// bulk copies into shared memory, leave fewer warps for the exponentials: 0.6 to 0.9 of this on an H200.)
//
// An operator is a functor:
//   kInputs                       1, or 2 when it reads two rows of one shape
//   kOutside                      a value that changes no statistic: what stands beyond the ends of a row
//   Stat, empty()                 the statistic, whole words; and that of no elements
//   gather(row)                   this warp's part of it, in every lane; row.visit(f) calls f(c, values[, values])
//                                 for the N elements from column c on, as often as gather likes
//   merge_lanes(stat)             the lanes' statistics merged, in every lane
//   finish(r, stat)               what compute gets of row r; called by every thread
//   leave(r, finished)            once for each row
//   out(r)                        (kEmits) where row r of the result begins, and its N elements from column c on:
//   compute(c, finished, result, values[, values])
//   mend(r, finished, wrote)      (kMends) writes single elements of row r once more, those columns c for which wrote(c) holds:
//                                 this thread has written them. A warp takes no rows of such an operator, however narrow
/* opforge
[supports]
fits_a_cluster = "cols <= 262144"
ends_off_the_grid_fit = "cols <= 262141 or cols % 8 == 0 or dtype != 'float32'"
[space]
VECS = [2, 4]
SLICE = [256, 512, 1024]
PLAIN = [32768, 65536]
[limits]
row_fits_a_cluster = "cols * itemsize <= 262144 * VECS"
ends_off_the_grid_fit = "cols * itemsize + 16 - itemsize <= 262144 * VECS or cols % 8 == 0"
[default]
VECS = 4
SLICE = 512
PLAIN = 65536
*/
#ifndef OPFORGE_ONCHIP_ROWS_H_
#define OPFORGE_ONCHIP_ROWS_H_

#include <utility>

#include "opforge/rows/device.h"
#include "opforge/arch/groups.h"
#include "opforge/arch/packed.h"

namespace opforge {

constexpr int kOnchipWarps = 4;  // rows of a block when a warp takes one
constexpr int kOnchipWarpBytes = 8 * kWarpSize * 16;  // of a row that a warp takes, where there is one input
constexpr int kOnchipMaxThreads = 1024;
constexpr int kOnchipMaxCluster = 16;

/// A row, or this thread's part of it: kVecs vectors of N elements of each input. With kEdges the first input may begin off
/// the 16-byte grid while its vectors lie on it: the first and the last of a row reach beyond its ends. What does not lie
/// like the first input (`alike` false) is accessed element by element.
template <typename T, int N, int kVecs, int kInputs, bool kEdges>
struct OnchipRow {
  Packed<T, N> data[kInputs][kVecs];
  int first, step, cols;

  /// Whether this thread has column c of the row.
  __device__ __forceinline__ bool has(int c) const {
    bool found = false;
#pragma unroll
    for (int i = 0; i < kVecs; ++i) found |= static_cast<unsigned>(c - first - i * step) < N;
    return found;
  }

  __device__ __forceinline__ bool whole(int c, bool same_alignment) const { return !kEdges || (same_alignment && c >= 0 && c + N <= cols); }

  __device__ __forceinline__ Packed<T, N> load(const T* row, int c, float outside, bool same_alignment) const {
    if (whole(c, same_alignment)) return Packed<T, N>::load_once(row + c);
    float values[N];
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = c + j >= 0 && c + j < cols ? load_as_float(row[c + j]) : outside;
    return Packed<T, N>::pack(values);
  }
  __device__ __forceinline__ void fetch(const T* a, const T* b, float outside, bool same_alignment) {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const int c = first + i * step;
      if (c < cols) {
        data[0][i] = load(a, c, outside, true);
        if constexpr (kInputs == 2) data[1][i] = load(b, c, outside, same_alignment);
      }
    }
  }

  template <class F>
  __device__ __forceinline__ void visit(const F& f) const {
    int c = first;
    // hides that these are the columns of the last visit too: the compiler would keep kVecs of them,
    // and as many comparisons, from one visit to the next, and spill them
    if constexpr (kEdges) asm volatile("" : "+r"(c));
#pragma unroll
    for (int i = 0; i < kVecs; ++i, c += step) {
      if (c < cols) {
        float values[N];
        data[0][i].unpack(values);
        if constexpr (kInputs == 2) {
          float others[N];
          data[1][i].unpack(others);
          f(c, values, others);
        } else {
          f(c, values);
        }
      }
    }
  }

  __device__ __forceinline__ void store(T* row, int c, const float (&values)[N], bool same_alignment) const {
    if (whole(c, same_alignment)) {
      Packed<T, N>::pack(values).store_once(row + c);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (c + j >= 0 && c + j < cols) row[c + j] = store_from_float<T>(values[j]);
      }
    }
  }
};

/// What an operator that writes a row of results has besides its arithmetic: where they go.
template <typename T>
struct EmitsRow {
  static constexpr bool kEmits = true, kMends = false;
  T* result;
  int64_t result_stride;

  void into(const Rows<T>& rows) { result = rows.data, result_stride = rows.stride; }
  template <class Finished>
  __device__ void leave(int64_t, const Finished&) const {}
  __device__ __forceinline__ T* out(int64_t r) const { return result + r * result_stride; }
};

/// What an operator has besides its arithmetic whose statistic is a sum of terms, one for each pair of elements of two inputs.
template <typename T>
struct SumOverPairs : EmitsRow<T> {
  static constexpr int kInputs = 2;
  static constexpr float kOutside = 0.0f;
  using Stat = float;

  __device__ static __forceinline__ float empty() { return 0.0f; }
  template <class Row, class F>
  __device__ static __forceinline__ float sum_of(const Row& row, const F& term) {
    float sum = 0.0f;
    row.visit([&](int, const auto& a, const auto& b) {
#pragma unroll
      for (int j = 0; j < static_cast<int>(sizeof(a) / sizeof(float)); ++j) sum += term(a[j], b[j]);
    });
    return warp_reduce_sum(sum);
  }
  __device__ static __forceinline__ float merge_lanes(float part) { return warp_reduce_sum(part); }
  __device__ __forceinline__ float finish(int64_t, float sum) const { return sum; }
};

/// Parts of a row's statistic.
template <class Stat>
struct StatExchange {
  Stat warps[kWarpSize];
  Stat blocks[kOnchipMaxCluster];
};

/// Merges one warp's statistic with those of its block, and with those of its cluster.
template <class Op>
__device__ __forceinline__ typename Op::Stat merge_stats(typename Op::Stat part, int blocks, int block) {
  __shared__ StatExchange<typename Op::Stat> exchange;
  const int lane = threadIdx.x % kWarpSize, warps = blockDim.x / kWarpSize;
  if (lane == 0) exchange.warps[threadIdx.x / kWarpSize] = part;
  __syncthreads();
  part = Op::merge_lanes(lane < warps ? exchange.warps[lane] : Op::empty());
  if (blocks == 1) return part;
  cluster_wait();  // every block has begun
  if (static_cast<int>(threadIdx.x) < blocks) store_in_block(&exchange.blocks[block], threadIdx.x, part);
  cluster_barrier();
  return Op::merge_lanes(lane < blocks ? exchange.blocks[lane] : Op::empty());
}

/// Whether 32 registers hold a row of an operator: one input, and two words about it. An SM then has room for two blocks of
/// 1024 threads, which cover for each other.
template <class Op>
constexpr bool kLight = Op::kInputs == 1 && sizeof(std::declval<const Op&>().finish(0, Op::empty())) <= 8;

/// Whether an operator writes elements once more after their row.
template <class Op>
constexpr bool mends() {
  if constexpr (Op::kEmits) return Op::kMends;
  return false;
}

/// A warp (kWarp), a block or a cluster for each row.
template <typename T, int N, int kVecs, bool kWarp, bool kEdges, class Op>
__global__ void __launch_bounds__(kWarp ? kOnchipWarps * kWarpSize : kOnchipMaxThreads, kLight<Op> && !kWarp && !kEdges ? 2 : 1)
    onchip_rows(Op op, Rows<const T> a, Rows<const T> b, bool b_same_alignment, bool out_same_alignment) {
  const int threads = kWarp ? kWarpSize : blockDim.x, rank = kWarp ? threadIdx.x % kWarpSize : threadIdx.x;
  const int blocks = kWarp ? 1 : cluster_blocks(), block = kWarp ? 0 : cluster_block();
  const int64_t r = kWarp ? int64_t(blockIdx.x) * kOnchipWarps + threadIdx.x / kWarpSize : blockIdx.x / blocks;
  if (kWarp && r >= a.rows) return;
  // a block must have begun before anything is written to it; it may begin while the row is on its way
  if (blocks > 1) cluster_arrive();
  const T* source = a.data + r * a.stride;
  OnchipRow<T, N, kVecs, Op::kInputs, kEdges> row;
  row.first = (block * kVecs * threads + rank) * N;
  if constexpr (kEdges) row.first -= static_cast<int>(reinterpret_cast<uintptr_t>(source) / sizeof(T) % N);
  row.step = threads * N, row.cols = static_cast<int>(a.cols);
  row.fetch(source, b.data + r * b.stride, Op::kOutside, b_same_alignment);
  auto stat = op.gather(row);
  if constexpr (!kWarp) stat = merge_stats<Op>(stat, blocks, block);
  const auto finished = op.finish(r, stat);
  if (rank == 0 && block == 0) op.leave(r, finished);
  if constexpr (Op::kEmits) {
    T* out = op.out(r);
    row.visit([&](int c, const auto&... values) {
      float result[N];
      op.compute(c, finished, result, values...);
      row.store(out, c, result, out_same_alignment);
    });
    if constexpr (mends<Op>()) op.mend(r, finished, [&](int c) { return row.has(c); });
  }
}

template <typename T, int kVecs, bool kWarp, bool kEdges, class Op>
inline void launch_onchip(const Op& op, const Rows<const T>& a, const Rows<const T>& b, bool b_same_alignment, bool out_same_alignment, int blocks, int threads, cudaStream_t stream) {
  constexpr int N = kVecSize<T>;
  const int64_t groups = kWarp ? ceil_div(a.rows, kOnchipWarps) : a.rows;
  OPFORGE_CHECK(groups * blocks <= INT32_MAX, ValueError, "a grid holds 2^31 - 1 blocks at most (got ", groups * blocks, ")");
  // prepares the kernel for clusters, and refuses them where there are none
  if (blocks > 1) resident_clusters(onchip_rows<T, N, kVecs, kWarp, kEdges, Op>, blocks, threads, 0);
  OPFORGE_LAUNCH_CLUSTERS((onchip_rows<T, N, kVecs, kWarp, kEdges, Op>), groups, blocks, threads, 0, stream, op, a, b, b_same_alignment, out_same_alignment);
}

template <typename T, bool kEdges, class Op, int kVecs, int kSlice, int kPlain>
inline void launch_onchip_by(const Op& op, const Rows<const T>& a, const Rows<const T>& b, bool b_same_alignment, bool out_same_alignment, cudaStream_t stream) {
  constexpr int N = kVecSize<T>;
  const int64_t vecs = ceil_div(a.cols + (kEdges ? N - 1 : 0), N);
  constexpr int kWarpThreads = kOnchipWarps * kWarpSize;
  if constexpr (!mends<Op>()) {
    if (vecs <= kWarpSize) return launch_onchip<T, 1, true, kEdges>(op, a, b, b_same_alignment, out_same_alignment, 1, kWarpThreads, stream);
    if (vecs <= 2 * kWarpSize) return launch_onchip<T, 2, true, kEdges>(op, a, b, b_same_alignment, out_same_alignment, 1, kWarpThreads, stream);
    if (vecs <= 4 * kWarpSize) return launch_onchip<T, 4, true, kEdges>(op, a, b, b_same_alignment, out_same_alignment, 1, kWarpThreads, stream);
    if constexpr (Op::kInputs == 1) {
      if (vecs <= 8 * kWarpSize) return launch_onchip<T, 8, true, kEdges>(op, a, b, b_same_alignment, out_same_alignment, 1, kWarpThreads, stream);
    }
  }
  const bool single = a.cols * static_cast<int64_t>(sizeof(T)) <= kPlain && vecs <= kVecs * kOnchipMaxThreads;
  int blocks = 1;
  while (!single && blocks < kOnchipMaxCluster && vecs > int64_t(blocks) * kVecs * kSlice) blocks *= 2;
  const int threads = static_cast<int>(ceil_div(ceil_div(vecs, int64_t(blocks) * kVecs), kWarpSize) * kWarpSize);
  OPFORGE_CHECK(threads <= kOnchipMaxThreads, ValueError, "a row of ", a.cols, " columns does not fit the registers of a cluster; use another implementation");
  launch_onchip<T, kVecs, false, kEdges>(op, a, b, b_same_alignment, out_same_alignment, blocks, threads, stream);
}

/// Runs `op` on every row of a (and of b, where op takes two inputs; else give a again); `out` is where it writes, or a again.
///
/// kRowVecs   vectors of 16 bytes that a thread of a block holds of a row
/// kSlice     threads of one block of a cluster, while 16 of them suffice
/// kPlain     rows up to this many bytes (of each input) take a single block
template <typename T, class Op, int kRowVecs, int kSlice, int kPlain, typename Out>
inline void launch_onchip_rows(const Op& op, const Rows<const T>& a, const Rows<const T>& b, const Rows<Out>& out, cudaStream_t stream) {
  if (a.rows == 0 || a.cols == 0) return;
  const auto same_alignment = [&](const void* data, int64_t stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == reinterpret_cast<uintptr_t>(a.data) % 16 && (stride - a.stride) % kVecSize<T> == 0;
  };
  if (rows_vectorize(a) && rows_vectorize(b) && rows_vectorize(out)) {
    launch_onchip_by<T, false, Op, kRowVecs, kSlice, kPlain>(op, a, b, true, true, stream);
  } else {
    launch_onchip_by<T, true, Op, kRowVecs, kSlice, kPlain>(op, a, b, same_alignment(b.data, b.stride), same_alignment(out.data, out.stride), stream);
  }
}

}  // namespace opforge

#endif  // OPFORGE_ONCHIP_ROWS_H_
