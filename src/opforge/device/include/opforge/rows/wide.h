// opforge/rows/wide.h - row operators whose rows are wide: memory is read without a pause while statistics travel.
//
// A cluster of blocks shares a row, a slice each. In every block one warp copies slices into a ring in shared memory, as far
// ahead as the ring allows, one warp exchanges statistics with the other blocks, and the rest compute. Those do not wait for
// a row's statistic: they gather from the next rows first (kDelay of them), and write the row when its statistic has long
// arrived. So neither the exchange nor the slowest block of a cluster keeps memory waiting, and a block has all of its shared
// memory for loads, where blocks that hold their rows in registers have half of those.
//
// An operator is a functor:
//   Stat, empty()                 the statistic of a part of a row, whole words; and that of no elements
//   gather(row)                   this warp's, in every lane; row.visit(f) calls f(c, values) for the N elements from column c on
//   merge_lanes(stat)             the lanes' statistics merged, in every lane
//   Finished, finish(stat)        what compute gets of the row
//   kConstants, constant(k)       how many vectors of one element per column it reads, and which: they stay in registers
//   compute(finished, result, x, constants)    N elements
//
// Without let_copies_follow one of about 450 results on an H200 was wrong, with it none of 23976 (softmax's README).
// Run by the CPU emulator too, which has the barriers, copies and stores used here, but makes a copy at once.
/* opforge
layouts = ["contiguous", "rows"]
[supports]
whole_16_byte_vectors = "cols % 8 == 0 or dtype == 'float32' and cols % 4 == 0"
fits_a_cluster = "cols <= 262144"
[space]
THREADS = [128, 256, 512]
VECS = [4, 8, 16]
RESIDENT = [1, 2, 3, 4, 6]
DELAY = [0, 1, 2]
STAY = [0, 1, 2]
[limits]
rows_fit_the_ring = "16 * THREADS * VECS * (DELAY + 1) <= shared_bytes_per_unit // RESIDENT - 4096"
registers_suffice = "(THREADS + 64) * RESIDENT <= 1536"
a_single_row_has_no_next = "STAY != 0 or DELAY == 0"
[default]
THREADS = 512
VECS = 8
RESIDENT = 1
DELAY = 1
STAY = 1
*/
#ifndef OPFORGE_WIDE_ROWS_H_
#define OPFORGE_WIDE_ROWS_H_

#include <algorithm>

#include "opforge/rows/device.h"
#include "opforge/rows/wide_pieces.h"

namespace opforge {

constexpr int kWideHelpers = 2 * kWarpSize;  // threads that compute nothing: a warp that copies, a warp that exchanges
constexpr int kWideDeals = kWideMaxStages + 2;  // a row's number is dealt while at most as many rows before it are in the ring

/// How clusters share the rows: one each; in turns; or whoever is free takes the next.
enum WideStay { kWideComes = 0, kWideTurns = 1, kWideDealt = 2 };

/// What a block has in shared memory beside the ring. A slot belongs to row r until row r + kSlots (rows counted as this cluster
/// takes them). Nobody still needs what is overwritten then:
///
///   a warp gathers from row r + kSlots, kSlots = kDelay + 2, after it has written row r + 1, so after `known` of that row
///   warps      the exchanging warp says `known` of row r + 1 after it has read warps[] of rows r and r + 1
///   finished   is written again after `gathered` of row r + kSlots: every lane of every warp has written row r by then
///   blocks     what another block sends for row r + kSlots is sent after `known` of row r + 1 there, so after this block has
///              sent its part of row r + 1, which the exchanging warp does after all of its lanes have used blocks[] of row r
///
///   row        of a stage: all have read it before they give the stage back
///   deal       the first block deals row r + kWideDeals when its ring has room for the row before, so when it has written row r; it knew that row's
///              statistic by then, of which every block has sent a part
///
/// By the same chain no barrier ends a second phase while a thread still asks for the first, so parities suffice, and bytes of
/// row r + kSlots never reach `arrived` in the phase of row r. (Bytes of a row may come before they are expected; the phase
/// waits for this block's own arrival, which expects them.)
template <int kWarps, int kSlots, class Op>
struct WideShared {
  SharedBarrier full[kWideMaxStages], empty[kWideMaxStages];  // of a stage: its bytes have come (or every lane's elements); every warp has read them
  SharedBarrier gathered[kSlots], arrived[kSlots], known[kSlots];  // of a row: the warps' statistics, the blocks', the row's
  SharedBarrier dealt[kWideDeals];  // of a row: its number
  typename Op::Stat warps[kSlots][kWarps];
  typename Op::Stat blocks[kSlots][kWideMaxCluster];
  typename Op::Finished finished[kSlots];
  int row[kWideMaxStages];  // of a stage that begins a row: which
  int deal[kWideDeals];     // what the first block says comes next
};

/// This thread's part of a block's slice in the ring: one vector of N elements in each stage from `stage` on. kBatch are read at
/// a time.
template <typename T, int N, int kThreads, int kVecs, int kBatch>
struct WideRow {
  const Packed<T, N>* ring;
  int stage, stages, left, column;  // left: vectors from this thread's first one on; column: of that one

  __device__ __forceinline__ bool has(int i) const { return i * kThreads < left; }
  __device__ __forceinline__ int at(int i) const { return stage + i < stages ? stage + i : stage + i - stages; }
  __device__ __forceinline__ const Packed<T, N>& piece(int i) const { return ring[at(i) * kThreads + threadIdx.x]; }

  template <class F>
  __device__ __forceinline__ void visit(const F& f) const {
#pragma unroll(4 / kBatch)
    for (int batch = 0; batch < kVecs; batch += kBatch) {
      Packed<T, N> data[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (has(batch + i)) data[i] = piece(batch + i);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (has(batch + i)) {
          float values[N];
          data[i].unpack(values);
          f(column + (batch + i) * kThreads * N, values);
        }
      }
    }
  }
};

/// How many of a row's elements this warp has.
template <typename T, int N, int kThreads, int kVecs, int kBatch>
__device__ __forceinline__ float elements_of_warp(const WideRow<T, N, kThreads, kVecs, kBatch>& row) {
  const int left = row.left + static_cast<int>(threadIdx.x) % kWarpSize;
  int count = 0;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) count += max(0, min(left - i * kThreads, kWarpSize)) * N;
  return static_cast<float>(count);
}

/// kThreads threads compute; a slice has kVecs vectors of each at most; kResident blocks share an SM. `slice` is vectors of a
/// block; `on_grid` says whether all rows and constants begin on 16-byte boundaries (if not, elements are copied one by one).
template <typename T, int kThreads, int kVecs, int kResident, int kDelay, bool kDeal, class Op>
__global__ void __launch_bounds__(kThreads + kWideHelpers, kResident) wide_rows(Op op, Rows<const T> x, Rows<T> y, int slice, int stages, bool on_grid, int* counter) {
  static_assert(kVecs % 4 == 0, "vectors are read in batches");
  constexpr int N = kVecSize<T>, kWarps = kThreads / kWarpSize, kSlots = kDelay + 2, kBatch = Op::kConstants > 0 ? 1 : 4;
  OPFORGE_DYNAMIC_SHARED(unsigned char, shared);
  Packed<T, N>* ring = reinterpret_cast<Packed<T, N>*>(shared);
  auto& held = *reinterpret_cast<WideShared<kWarps, kSlots, Op>*>(ring + stages * kThreads);
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int blocks = cluster_blocks(), block = cluster_block();
  const int rows = static_cast<int>(x.rows), groups = gridDim.x / blocks, first_row = blockIdx.x / blocks;
  const int begin = block * slice, vecs = max(0, min(slice, static_cast<int>(x.cols / N) - begin)), pieces = (vecs + kThreads - 1) / kThreads;

  if (threadIdx.x < kWideDeals) {
    const int i = threadIdx.x;
    // bytes of a bulk copy are counted, elements that lanes copy are not: each lane arrives after its own
    if (i < stages) init_shared_barrier(&held.full[i], on_grid ? 1 : kWarpSize), init_shared_barrier(&held.empty[i], kWarps);
    if (i < kSlots) init_shared_barrier(&held.gathered[i], kWarps), init_shared_barrier(&held.arrived[i], 1), init_shared_barrier(&held.known[i], 1);
    if (kDeal) init_shared_barrier(&held.dealt[i], 1);
    publish_shared_barriers();
  }
  __syncthreads();  // warps are whole again at the cluster's barrier, which counts warps
  if (blocks > 1) cluster_barrier();  // before anything is sent to a block it must have begun

  if (warp == kWarps) {  // copies
    WideTurn turn, deal;
    if (lane == 0 || !on_grid) {
      for (int r = first_row, later = r + groups;;) {
        int after = later + groups, asked = 0;
        const bool leads = kDeal && lane == 0 && block == 0;
        if constexpr (kDeal) {
          wait_shared(&held.empty[turn.place], turn.parity ^ 1);
          if (lane == 0) held.row[turn.place] = r;
          if (r >= rows) arrive_shared(&held.full[turn.place]);
          // the first block says what comes next, and asks what comes then: the answer has a row's time to arrive
          if (leads && r < rows) {
            for (int b = 0; blocks > 1 && b < blocks; ++b) send_to_block(&held.deal[deal.place], b, later, &held.dealt[deal.place]);
            asked = atomicAdd(counter, 1);
          }
        }
        if (r >= rows) break;
        const T* source = x.data + r * x.stride + int64_t(begin) * N;
        for (int i = 0; i < pieces; ++i, turn.next(stages)) {
          const int count = min(kThreads, vecs - i * kThreads);
          Packed<T, N>* target = ring + turn.place * kThreads;
          wait_shared(&held.empty[turn.place], turn.parity ^ 1);
          if (on_grid) {
            arrive_shared_expecting(&held.full[turn.place], count * 16);
            start_bulk_load(target, source + i * kThreads * N, count * 16, &held.full[turn.place]);
          } else {
            for (int v = lane; v < count; v += kWarpSize) target[v] = load_vector<T, N>(source + (i * kThreads + v) * N, false);
            arrive_shared(&held.full[turn.place]);
          }
        }
        if constexpr (kDeal) {
          if (leads) {
            if (asked == rows - 1) *counter = 0;  // nobody asks after this: each row asks once
            after = 2 * groups + asked;
          }
          if (lane == 0 && blocks > 1) {
            arrive_shared_expecting(&held.dealt[deal.place], static_cast<int>(sizeof(int)));
            wait_shared_sent(&held.dealt[deal.place], deal.parity);
            later = held.deal[deal.place];
            deal.next(kWideDeals);
          }
          if (!on_grid) later = __shfl_sync(0xffffffffu, later, 0);
        }
        r = later, later = after;
      }
    }
    __syncwarp();
  } else if (warp > kWarps) {  // exchanges
    WideTurn turn, full;
    for (int r = first_row;; r += groups, turn.next(kSlots)) {
      if constexpr (kDeal) {
        wait_shared(&held.full[full.place], full.parity);
        r = held.row[full.place];
        full.skip(pieces, stages);
      }
      if (r >= rows) break;
      const int slot = turn.place;
      wait_shared(&held.gathered[slot], turn.parity);
      auto stat = Op::merge_lanes(lane < kWarps ? held.warps[slot][lane] : Op::empty());
      if (blocks > 1) {
        if (lane == 0) arrive_shared_expecting(&held.arrived[slot], blocks * static_cast<int>(sizeof(stat)));
        if (lane < blocks) send_to_block(&held.blocks[slot][block], lane, stat, &held.arrived[slot]);
        wait_shared_sent(&held.arrived[slot], turn.parity);
        stat = Op::merge_lanes(lane < blocks ? held.blocks[slot][lane] : Op::empty());
      }
      const auto finished = op.finish(stat);
      if (lane == 0) {
        held.finished[slot] = finished;
        arrive_shared(&held.known[slot]);
      }
    }
    __syncwarp();
  } else {  // compute
    const int thread = threadIdx.x;
    WideRow<T, N, kThreads, kVecs, Op::kConstants == 0 && kResident < 4 ? 2 : 1> row{ring, 0, stages, vecs - thread, (begin + thread) * N};
    Packed<T, N> constants[Op::kConstants + 1][kVecs];
    if constexpr (Op::kConstants > 0) {
#pragma unroll
      for (int k = 0; k < Op::kConstants; ++k) {
#pragma unroll
        for (int i = 0; i < kVecs; ++i) {
          if (row.has(i)) constants[k][i] = load_vector<T, N>(op.constant(k) + row.column + i * kThreads * N, on_grid);
        }
      }
    }
    WideTurn full, slot, out;
    int out_stage = 0;
    int late[kDelay + 1];  // the rows that this warp has gathered from, the newest first, and has yet to write; at last one beyond the rows
#pragma unroll
    for (int& r : late) r = first_row - groups;
    for (;;) {
#pragma unroll
      for (int i = kDelay; i > 0; --i) late[i] = late[i - 1];
      if (late[0] < rows) {
        late[0] += groups;
        if constexpr (kDeal) {
          wait_shared(&held.full[full.place], full.parity);
          late[0] = held.row[full.place];
        }
      }
      if (late[0] < rows) {
        row.stage = full.place;
        for (int i = 0; i < pieces; ++i, full.next(stages)) wait_shared(&held.full[full.place], full.parity);
        const auto stat = op.gather(row);
        if (lane == 0) {
          held.warps[slot.place][warp] = stat;
          arrive_shared(&held.gathered[slot.place]);
        }
        slot.next(kSlots);
      }
      const int r = late[kDelay];
      if (r < 0) continue;
      if (r >= rows) break;
      // hides that these are the last row's: the compiler would keep kVecs comparisons and addresses, and spill them
      asm volatile("" : "+r"(row.left), "+r"(row.column));
      row.stage = out_stage;
      out_stage = row.at(pieces);
      wait_shared(&held.known[out.place], out.parity);
      const auto finished = held.finished[out.place];
      out.next(kSlots);
      T* target = y.data + r * y.stride + row.column;
#pragma unroll
      for (int batch = 0; batch < kVecs; batch += kBatch) {
        Packed<T, N> data[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (row.has(batch + i)) data[i] = row.piece(batch + i);
        }
        // four pieces are given back at once: the fence waits for stores too. All lanes have their elements by then
        const int given = batch + kBatch - 4;
        if (given % 4 == 0) {
          let_copies_follow();
          __syncwarp();
          if (lane < 4 && given + lane < pieces) arrive_shared(&held.empty[row.at(given + lane)]);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (row.has(batch + i)) {
            float values[N], result[N], known[Op::kConstants + 1][N];
            data[i].unpack(values);
#pragma unroll
            for (int k = 0; k < Op::kConstants; ++k) {
              // hides that these are the last row's: the compiler would keep them unpacked, in twice the registers, and spill them
              for (auto& word : constants[k][batch + i].words) asm volatile("" : "+r"(word));
              constants[k][batch + i].unpack(known[k]);
            }
            op.compute(finished, result, values, known);
            store_vector<T, N>(target + (batch + i) * kThreads * N, result, on_grid);
          }
        }
      }
    }
    __syncwarp();
  }
  if (blocks > 1) cluster_barrier();  // nothing may be sent to a block that has ended
}

template <typename T, int kThreads, int kVecs, int kResident, int kDelay, int kStay, class Op>
inline void launch_wide(const Op& op, const Rows<const T>& x, const Rows<T>& y, bool on_grid, cudaStream_t stream) {
  static_assert(kThreads % kWarpSize == 0 && kThreads <= 960, "whole warps, and two more of them in a block");
  using Shared = WideShared<kThreads / kWarpSize, kDelay + 2, Op>;
  const int64_t vecs = x.cols / kVecSize<T>;
  int blocks = 1;
  while (vecs > int64_t(blocks) * kThreads * kVecs) blocks *= 2;
  const int64_t slice = ceil_div(vecs, blocks), pieces = ceil_div(slice, kThreads);

  // an SM has as much shared memory as its only block may have, and what the driver takes of each block
  const int64_t room = (max_dynamic_shared() + 2 * kReservedShared) / kResident - kReservedShared - static_cast<int64_t>(sizeof(Shared));
  const int64_t rows_held = kStay == kWideComes ? 1 : x.rows;
  const int64_t stages = std::min({room / (kThreads * 16), int64_t(kWideMaxStages), std::max(rows_held, int64_t(kDelay) + 1) * pieces});
  OPFORGE_CHECK(stages >= (kDelay + 1) * pieces, ValueError, "shared memory holds ", stages, " of the ", (kDelay + 1) * pieces, " stages that ", kDelay + 1, " rows take");
  const std::size_t shared = static_cast<std::size_t>(stages) * kThreads * 16 + sizeof(Shared);
  int* counter = kStay == kWideDealt ? wide_counter(stream) : nullptr;
  const auto kernel = counter == nullptr ? wide_rows<T, kThreads, kVecs, kResident, kDelay, false, Op> : wide_rows<T, kThreads, kVecs, kResident, kDelay, kStay == kWideDealt, Op>;
  const int64_t most = resident_clusters(kernel, blocks, kThreads + kWideHelpers, shared);
  // in turns, as many groups as give each the same number of rows
  const int64_t groups = kStay == kWideComes ? x.rows : kStay == kWideDealt ? std::min(most, x.rows) : ceil_div(x.rows, ceil_div(x.rows, most));
  OPFORGE_CHECK(x.rows <= INT32_MAX / kWideMaxCluster, ValueError, "the rows' number is an int32 times the blocks of a cluster (got ", x.rows, ")");
  OPFORGE_LAUNCH_CLUSTERS(kernel, groups, blocks, kThreads + kWideHelpers, shared, stream, op, x, y, static_cast<int>(slice), static_cast<int>(stages), on_grid, counter);
}

/// Runs `op` on every row of x, whose columns are a multiple of kVecSize<T>, and writes y; `on_grid` says whether its constants
/// begin on 16-byte boundaries. Rows that do not fit 16 slices of kThreads * kVecs vectors have larger ones,
/// in blocks that have an SM to themselves. kStay is a WideStay; those that stay are as many clusters as the device runs
/// at once. Raises ValueError for rows wider than that, RuntimeError before sm_90.
template <typename T, int kThreads, int kVecs, int kResident, int kDelay, int kStay, class Op>
inline void launch_wide_rows(const Op& op, const Rows<const T>& x, const Rows<T>& y, bool on_grid, cudaStream_t stream) {
  if (!check_wide_rows(x)) return;
  const int64_t vecs = x.cols / kVecSize<T>;
  on_grid = on_grid && rows_vectorize(x) && rows_vectorize(y);
  constexpr int kMost = static_cast<int>(kWideMaxColumns / kVecSize<T> / kWideMaxCluster);
  if constexpr (kMost > kThreads * kVecs) {
    // two constants: 128 registers a thread, which 256 threads have
    constexpr int kFew = Op::kConstants > 1 ? 256 : kThreads;
    if (vecs > kWideMaxCluster * kThreads * kVecs) return launch_wide<T, kFew, kMost / kFew, 1, kDelay == 0 ? 0 : 1, kStay>(op, x, y, on_grid, stream);
  }
  launch_wide<T, kThreads, kVecs, kResident, kDelay, kStay>(op, x, y, on_grid, stream);
}

}  // namespace opforge

#endif  // OPFORGE_WIDE_ROWS_H_
