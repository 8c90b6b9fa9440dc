// opforge/rows/slices.h - row operators whose rows are wide: small blocks that come and go, a slice of a row each.
//
// A cluster of blocks shares a row. A slice waits in registers, or (where rows are so wide that slices of registers would be too many) in shared
// memory, each thread's part in its own words, so that no barrier of threads is needed. Each warp sends its statistic to every block of the cluster, to a barrier
// in shared memory that counts the bytes: one exchange, for which no thread waits that has not sent, and no block longer than it needs to. While blocks of one row
// exchange, others on the same SM load: three blocks of 32 KiB on an SM are more than enough of loads in flight, and more of them cost memory's bandwidth.
//
// Best are rows whose slices wait in registers: 16 blocks of 32 KiB.
//
// An operator is a functor:
//   kKeeps                        whether it keeps something else than x of a row that waits in registers: gather changes it (row.change)
//   Stat, empty()                 the statistic of a part of a row, whole words; and that of no elements
//   gather(row)                   this warp's, in every lane; row.visit(f) calls f(c, values) for the N elements from column c on
//   merge_lanes(stat)             the lanes' statistics merged, in every lane
//   merge_two(a, b)               the same for two
//   Finished, finish<kKept>(stat, own)    what compute gets: of the row's statistic and this warp's; kKept: whether gather could change the row
//   kConstants, constant(k)       how many vectors of one element per column it reads, and which
//   compute<kKept>(finished, result, x, constants)    N elements
/* opforge
layouts = ["contiguous", "rows"]
[supports]
whole_16_byte_vectors = "cols % 8 == 0 or dtype == 'float32' and cols % 4 == 0"
fits_a_cluster = "cols <= 262144"
[best]
slices_wait_in_registers = "cols * itemsize <= 524288"
[space]
THREADS = [128, 256, 512]
VECS = [4, 8]
RESIDENT = [2, 3, 4, 5]
HELD = [0, 1]
SPREAD = [4, 8, 16]
[limits]
registers_suffice = "THREADS * RESIDENT * (6 * VECS * HELD + 24) <= registers_per_unit"
shared_memory_suffices = "HELD == 1 or (16 * THREADS * VECS + 4096) * RESIDENT <= shared_bytes_per_unit"
[default]
THREADS = 256
VECS = 8
RESIDENT = 3
HELD = 1
SPREAD = 16
*/
#ifndef OPFORGE_SLICE_ROWS_H_
#define OPFORGE_SLICE_ROWS_H_

#include <algorithm>

#include "opforge/rows/device.h"
#include "opforge/rows/wide_pieces.h"

namespace opforge {

/// Starts copying 16 bytes from global memory to this block's shared memory, for this thread to read after wait_for_copies.
__device__ __forceinline__ void start_copy_16(void* shared, const void* global) {
#ifdef OPFORGE_EMULATE
  std::memcpy(shared, global, 16);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))), "l"(global) : "memory");
#endif
}
__device__ __forceinline__ void wait_for_copies() {
#ifndef OPFORGE_EMULATE
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

constexpr int kSliceBatch = 4;  // vectors that are read, or written, one after the other

/// This thread's part of a slice: one vector of N elements every kThreads vectors. kHeld: in registers, as it was stored or (kFloats) as float; otherwise in
/// shared memory.
template <typename T, int N, int kThreads, int kVecs, bool kHeld, bool kFloats>
struct SliceRow {
  Packed<T, N> packed[kHeld && !kFloats ? kVecs : 1];
  float floats[kHeld && kFloats ? kVecs : 1][N];
  const Packed<T, N>* shared;
  mutable Packed<T, N> fetched[kHeld ? 1 : kSliceBatch];
  int left, column;  // left: vectors from this thread's first one on; column: of that one

  __device__ __forceinline__ bool has(int i) const { return i * kThreads < left; }
  /// Before get(i) of kSliceBatch vectors from `from` on: reads them from shared memory, if they are there, all at once.
  __device__ __forceinline__ void fetch(int from) const {
    if constexpr (!kHeld) {
#pragma unroll
      for (int i = 0; i < kSliceBatch; ++i) {
        if (has(from + i)) fetched[i] = shared[(from + i) * kThreads];
      }
    }
  }
  __device__ __forceinline__ void get(int i, float (&values)[N]) const {
    if constexpr (!kHeld) {
      fetched[i % kSliceBatch].unpack(values);
    } else if constexpr (kFloats) {
#pragma unroll
      for (int j = 0; j < N; ++j) values[j] = floats[i][j];
    } else {
      packed[i].unpack(values);
    }
  }
  template <class F>
  __device__ __forceinline__ void visit(const F& f) const {
    // hides that shared memory is as it was at the last visit: the compiler would keep the row in registers from one to the next
    if constexpr (!kHeld) asm volatile("" ::: "memory");
#pragma unroll
    for (int batch = 0; batch < kVecs; batch += kSliceBatch) {
      fetch(batch);
#pragma unroll
      for (int i = batch; i < batch + kSliceBatch; ++i) {
        if (has(i)) {
          float values[N];
          get(i, values);
          f(column + i * kThreads * N, values);
        }
      }
    }
  }
  /// The same, and f may change the values for those who come after (kHeld and kFloats).
  template <class F>
  __device__ __forceinline__ void change(const F& f) {
    static_assert(kHeld && kFloats, "what waits as it was stored does not change");
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (has(i)) f(column + i * kThreads * N, floats[i]);
    }
  }
};

/// What the warps of a cluster send to each of its blocks.
template <int kWarps, class Stat>
struct SliceStats {
  SharedBarrier arrived;
  Stat of[kWideMaxCluster * kWarps];
};

/// A cluster for each row; `slice` is vectors of a block. kResident blocks share an SM. `on_grid` says whether all rows and constants begin on 16-byte boundaries (if
/// not, elements are read and written one by one).
template <typename T, int kThreads, int kVecs, int kResident, bool kHeld, class Op>
__global__ void __launch_bounds__(kThreads, kResident) slice_rows(Op op, Rows<const T> x, Rows<T> y, int slice, bool on_grid) {
  constexpr int N = kVecSize<T>, kWarps = kThreads / kWarpSize, kBatch = kSliceBatch;
  constexpr bool kKept = kHeld && Op::kKeeps, kEarly = Op::kConstants > 0 && Op::kConstants * kVecs <= 8;
  static_assert(kVecs % kBatch == 0, "vectors are written in batches");
  OPFORGE_DYNAMIC_SHARED(unsigned char, shared);
  __shared__ SliceStats<kWarps, typename Op::Stat> stats;
  const int thread = threadIdx.x;
  const int blocks = cluster_blocks(), block = cluster_block();
  const int begin = block * slice;

  if (thread == 0) {
    init_shared_barrier(&stats.arrived, 1);
    publish_shared_barriers();
  }
  // the instruction that makes a barrier is the warp's, not a lane's: ptxas predicates it for the whole warp, and racecheck takes it for a write of every lane
  __syncwarp();
  // whether there are other blocks is not asked here: the compiler would take this thread past the others to the cluster's barrier, which counts warps
  if (thread == 0) arrive_shared_expecting(&stats.arrived, blocks * kWarps * static_cast<int>(sizeof(typename Op::Stat)));
  __syncwarp();
  // a block must have begun before anything is sent to it; it may begin while the row is on its way
  if (blocks > 1) cluster_arrive();

  SliceRow<T, N, kThreads, kVecs, kHeld, kKept> row;
  row.left = max(0, min(slice, static_cast<int>(x.cols / N) - begin)) - thread, row.column = (begin + thread) * N;
  // constants are asked for with the row, if registers hold them
  constexpr int kAhead = kEarly ? kVecs : kBatch;
  Packed<T, N> constants[Op::kConstants + 1][kAhead];
  const auto fetch = [&](int from) {
    if constexpr (Op::kConstants > 0) {
#pragma unroll
      for (int k = 0; k < Op::kConstants; ++k) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (row.has(from + i)) constants[k][i] = load_vector<T, N>(op.constant(k) + row.column + (from + i) * kThreads * N, on_grid);
        }
      }
    }
  };
  const T* source = x.data + int64_t(blockIdx.x / blocks) * x.stride + row.column;
  if constexpr (kHeld) {
    Packed<T, N> data[kVecs];
    if (on_grid) {
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        if (row.has(i)) data[i] = Packed<T, N>::load_once(source + i * kThreads * N);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        if (row.has(i)) data[i] = load_vector<T, N>(source + i * kThreads * N, false);
      }
    }
    if constexpr (kEarly) fetch(0);
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if constexpr (kKept) {
        if (row.has(i)) data[i].unpack(row.floats[i]);
      } else {
        row.packed[i] = data[i];
      }
    }
  } else {
    Packed<T, N>* mine = reinterpret_cast<Packed<T, N>*>(shared) + thread;
    row.shared = mine;
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (!row.has(i)) continue;
      if (on_grid) {
        start_copy_16(mine + i * kThreads, source + i * kThreads * N);
      } else {
        mine[i * kThreads] = load_vector<T, N>(source + i * kThreads * N, false);
      }
    }
    if constexpr (kEarly) fetch(0);
    wait_for_copies();
  }

  const auto own = op.gather(row);
  const int lane = thread % kWarpSize, warp = thread / kWarpSize;
  if (blocks > 1) {
    cluster_wait();  // every block has begun
    if (lane < blocks) send_to_block(&stats.of[block * kWarps + warp], lane, own, &stats.arrived);
  } else if (lane == 0) {
    stats.of[warp] = own;
  }

  if (blocks > 1) {
    wait_shared_sent(&stats.arrived, 0);
  } else {
    __syncthreads();
  }
  auto stat = lane < blocks * kWarps ? stats.of[lane] : Op::empty();
#pragma unroll 1
  for (int i = lane + kWarpSize; i < blocks * kWarps; i += kWarpSize) stat = Op::merge_two(stat, stats.of[i]);
  const auto finished = op.template finish<kKept>(Op::merge_lanes(stat), own);

  // hides that these are the columns of the loads: the compiler would keep kVecs comparisons and addresses, and spill
  asm volatile("" : "+r"(row.left), "+r"(row.column));
  T* target = y.data + int64_t(blockIdx.x / cluster_blocks()) * y.stride + row.column;
  if constexpr (!kHeld) asm volatile("" ::: "memory");
#pragma unroll
  for (int batch = 0; batch < kVecs; batch += kBatch) {
    if constexpr (Op::kConstants > 0 && !kEarly) fetch(batch);
    row.fetch(batch);
#pragma unroll
    for (int i = batch; i < batch + kBatch; ++i) {
      if (row.has(i)) {
        float values[N], result[N], known[Op::kConstants + 1][N];
        row.get(i, values);
#pragma unroll
        for (int k = 0; k < Op::kConstants; ++k) constants[k][kEarly ? i : i - batch].unpack(known[k]);
        op.template compute<kKept>(finished, result, values, known);
        store_vector<T, N>(target + i * kThreads * N, result, on_grid);
      }
    }
  }
}

template <typename T, int kThreads, int kVecs, int kResident, bool kHeld, class Op>
inline void launch_slices(const Op& op, const Rows<const T>& x, const Rows<T>& y, int blocks, bool on_grid, cudaStream_t stream) {
  const int64_t slice = ceil_div(x.cols / kVecSize<T>, blocks);
  const std::size_t shared = kHeld ? 0 : static_cast<std::size_t>(slice) * 16;
  OPFORGE_CHECK(x.rows <= INT32_MAX / blocks, ValueError, "a grid holds 2^31 - 1 blocks at most (got ", x.rows, " times ", blocks, ")");
  const auto kernel = slice_rows<T, kThreads, kVecs, kResident, kHeld, Op>;
  resident_clusters(kernel, blocks, kThreads, shared);  // prepares the kernel for clusters and its shared memory, and refuses them where there are none
  OPFORGE_LAUNCH_CLUSTERS(kernel, x.rows, blocks, kThreads, shared, stream, op, x, y, static_cast<int>(slice), on_grid);
}

/// Runs `op` on every row of x, whose columns are a multiple of kVecSize<T>, and writes y; `on_grid` says whether its constants begin on 16-byte boundaries.
/// Rows that more than kSpread slices of kThreads * kVecs vectors would take have larger ones, in shared memory. Raises ValueError for rows wider than
/// kWideMaxColumns, RuntimeError for clusters before sm_90.
template <typename T, int kThreads, int kVecs, int kResident, bool kHeld, int kSpread, class Op>
inline void launch_slice_rows(const Op& op, const Rows<const T>& x, const Rows<T>& y, bool on_grid, cudaStream_t stream) {
  if (!check_wide_rows(x)) return;
  const int64_t vecs = x.cols / kVecSize<T>;
  on_grid = on_grid && rows_vectorize(x) && rows_vectorize(y);
  const auto blocks_of = [&](int slice) {
    int blocks = 1;
    while (vecs > int64_t(blocks) * slice) blocks *= 2;
    return blocks;
  };
  if (const int blocks = blocks_of(kThreads * kVecs); blocks <= kSpread) return launch_slices<T, kThreads, kVecs, kResident, kHeld>(op, x, y, blocks, on_grid, stream);
  if constexpr (Op::kConstants > 0) {
    if (const int blocks = blocks_of(256 * 8); blocks <= kWideMaxCluster) return launch_slices<T, 256, 8, 3, false>(op, x, y, blocks, on_grid, stream);
  }
  launch_slices<T, 512, 8, (Op::kConstants > 0 ? 2 : 3), false>(op, x, y, blocks_of(512 * 8), on_grid, stream);
}

}  // namespace opforge

#endif  // OPFORGE_SLICE_ROWS_H_
