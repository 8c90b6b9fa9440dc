// opforge/gemm_wgmma.h - the product of two matrices on Hopper: TMA fills a ring of tiles, two warpgroups multiply from it.
//
// One thread of a third warpgroup keeps the ring full; blocks of a cluster share what they read; blocks stay for many tiles, and
// a finished tile goes out while the next one is multiplied.  A kernel says the Shape, what happens to the sums before they are
// stored (an epilogue), and where they go (a sink); `launch_product` does the rest.  sm_90a alone.
//
// source    PTX ISA: wgmma, cp.async.bulk.tensor, mbarrier, setmaxnreg; the division of labour follows the published
//           descriptions of warp-specialised kernels (Bauer et al., CudaDMA, SC 2011)
#ifndef OPFORGE_GEMM_WGMMA_H_
#define OPFORGE_GEMM_WGMMA_H_

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "opforge/gemm.h"
#include "opforge/hopper.h"

namespace opforge {
namespace wgmma {

using gemm::ByPairs;
using gemm::pairs_of;
using hopper::Barrier;
using hopper::kBox;
using hopper::kBoxBytes;

constexpr int kConsumers = 2;                     // warpgroups that multiply: 64 rows of the tile each
constexpr int kBoxesA = kConsumers, kBlockM = kBoxesA * kBox;
constexpr int kThreads = 128 * (kConsumers + 1);  // the last warpgroup issues the copies
// of 65536 registers, in steps of 8: what the copying warpgroup does not need goes to those that hold sums
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
constexpr int kBringers = 96;                     // threads of the copying warpgroup that bring floats, where a promotion wants some
constexpr int kLeadBarrier = 1 + kConsumers;      // 0 is __syncthreads, the next ones are the consumers' own
constexpr int kTurnBarrier = kLeadBarrier + 1;    // and another one after it

/// What a warpgroup that adds up the sums of every step by itself (see consume) does for its products meanwhile: nothing; those of the next
/// step run in a second set of sums; its columns are two halves, and while one is added the other is multiplied; warpgroups multiply in turn,
/// and one adds while the other multiplies.
enum Meanwhile { kNothing, kSecondSet, kHalves, kTurns };

/// Everything that follows from the elements (16 or 8 bits), the width of a tile, the ring's length, the cluster's shape, how a
/// tile goes out, and the order of tiles.
///
/// block_n    columns of a tile of c                            cluster_m   blocks that share b
/// stages     steps under way at once                           cluster_n   blocks that share a
/// out_boxes  boxes of 64 columns of c under way, per consumer  group       rows of tiles that are walked together
/// lead       steps by which one consumer leads the other       overlap     blocks may start while the kernel before runs
/// batched    many products in one launch (see Batch)            floats      of each step that a promotion wants in shared memory
/// meanwhile  see there
///
/// A cluster whose sides differ may lie the other way round, which the launch decides: its blocks then share a instead of b.
template <typename T, int block_n, int stages, int cluster_m, int cluster_n, int out_boxes, int lead, int group, bool overlap, bool batched = false,
          int floats = 0, int meanwhile = kNothing>
struct Shape {
  using Element = T;
  static constexpr int kDepth = 128 / sizeof(T);  // terms per step: one row of a box
  static constexpr int kBlockN = block_n, kStages = stages, kClusterM = cluster_m, kClusterN = cluster_n, kLead = lead, kGroup = group;
  static constexpr bool kOverlap = overlap, kBatched = batched;
  static constexpr int kFloats = floats, kBarriers = floats > 0 ? 3 : 2;
  static constexpr int kMeanwhile = meanwhile;
  // the last box of b may be needed in part
  static constexpr int kBoxesB = (kBlockN + kBox - 1) / kBox, kStageBytes = (kBoxesA + kBoxesB) * kBoxBytes, kCluster = kClusterM * kClusterN;
  static constexpr int kOutBoxes = out_boxes, kOutBytes = kConsumers * kOutBoxes * kBoxBytes;
  static constexpr int kSharedBytes = kStages * (kStageBytes + kBarriers * static_cast<int>(sizeof(Barrier)) + kFloats * 4) + kOutBytes + 1024;
  static constexpr int kAddedBoxes = (kBoxesA + kBoxesB) / kConsumers;  // per consumer and slot, of a matrix that is added
  static constexpr int kRest = kBlockN % kBox;  // columns of the last box, if not all
  static constexpr bool kTurnable = kClusterM != kClusterN;  // whether a cluster may lie the other way round
  static constexpr int kCost = 100;  // what a column costs, where shapes are compared
  static_assert(kBlockN % 16 == 0, "16 columns are two rows of matrices of stmatrix");
  static_assert(kBoxesA % kClusterN == 0 && kBoxesA % kClusterM == 0, "a is shared in whole boxes");
};

/// A shape among which one is chosen by its cost: that of a column is given in hundredths of what it is in other tiles.
template <typename S, int cost>
struct Costing : S {
  static constexpr int kCost = cost;
};

/// The part of b's columns that one of `sharers` blocks reads for all of them, a step at a time.
///
/// Where terms lie side by side any number of columns makes a box.  Where columns do, boxes are 64 wide; if their number cannot be divided,
/// every block reads some of the terms of all of them.
template <typename S, bool kAlongN, int sharers>
struct ShareOfB {
  static constexpr bool kByTerms = kAlongN && S::kBoxesB % sharers != 0;
  static constexpr int kColumns = (kAlongN ? S::kBoxesB * kBox : S::kBlockN) / (kByTerms ? 1 : sharers);
  // of a box, as the TMA counts them: columns, or terms of 64 columns
  static constexpr int kRows = kByTerms ? kBox / sharers : kAlongN || kColumns % kBox == 0 ? kBox : kColumns;
  static constexpr int kCount = kColumns / (kAlongN ? kBox : kRows);
  static_assert(kRows % 8 == 0 && kRows <= 256, "whole rows of the swizzle, and what a box may have");
};
// bytes of a step's tiles
template <typename S, bool kAlongN>
constexpr int kStepBytes = (kBoxesA + (kAlongN ? S::kBoxesB : 0)) * kBoxBytes + (kAlongN ? 0 : S::kBlockN * 128);

/// The matrices of a batch: how many, and how many elements lie between two of a, of b, of c, of what is added. 0: one matrix serves
/// them all.
/// Of a single product nothing is passed to the kernel.
template <bool kBatched>
struct Batch {
  static constexpr int count = 1;
  static constexpr int64_t a = 0, b = 0, c = 0, added = 0;
};
template <>
struct Batch<true> {
  int count;
  int64_t a, b, c, added;
};

/// Shapes to choose from.
template <typename... Shapes>
struct OneOf {};

// The ring of stages in shared memory and the place in it.
template <typename S>
struct Ring {
  unsigned char* tiles;
  Barrier *full, *empty;
  Barrier* read;  // a slot's floats have been read, by every warp
  float* floats;
  int slot = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++slot == S::kStages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// Which tile of c a block computes next. Tiles are walked by whole clusters, in the order of gemm::place, one matrix of a batch after
// another.
template <typename S>
struct Walk {
  int cluster_m, cluster_n;
  int rows, cols;     // of clusters' tiles
  int next, step;     // this cluster's place, and how many clusters there are
  int row_in_cluster, col_in_cluster;
  int matrices, matrix = 0;  // how many, and the one that the last tile is of

  // blocks of a cluster have neighbouring numbers; `turned`: the cluster lies the other way round
  __device__ __forceinline__ Walk(int m, int n, int count, bool turned = false)
      : cluster_m(S::kTurnable && turned ? S::kClusterN : S::kClusterM),
        cluster_n(S::kTurnable && turned ? S::kClusterM : S::kClusterN),
        rows((m + cluster_m * kBlockM - 1) / (cluster_m * kBlockM)),
        cols((n + cluster_n * S::kBlockN - 1) / (cluster_n * S::kBlockN)),
        next(static_cast<int>(blockIdx.x) / S::kCluster),
        step(static_cast<int>(gridDim.x) / S::kCluster),
        row_in_cluster(static_cast<int>(blockIdx.x) % S::kCluster % cluster_m),
        col_in_cluster(static_cast<int>(blockIdx.x) % S::kCluster / cluster_m),
        matrices(count) {}

  // Gives the first row and column of the next tile; false when there is none.
  __device__ __forceinline__ bool take(int& row0, int& col0) {
    if (next >= rows * cols * matrices) return false;
    int tile = next;
    if constexpr (S::kBatched) {
      matrix = tile / (rows * cols);
      tile %= rows * cols;
    }
    const gemm::Place at = gemm::place(tile, rows, cols, S::kGroup);
    row0 = (at.row * cluster_m + row_in_cluster) * kBlockM;
    col0 = (at.col * cluster_n + col_in_cluster) * S::kBlockN;
    next += step;
    return true;
  }
};

/// c through the TMA: 16-bit or 8-bit elements in rows that it can address.
template <typename T>
struct ByMap {
  CUtensorMap map;
};

/// The same, with boxes as wide as the rest of a tile that is not a number of whole ones.
template <typename T>
struct RestByMap : ByMap<T> {
  CUtensorMap rest;
};

/// The same, where a matrix of c's shape and type is added before the store: its boxes come through the ring.
template <typename T>
struct AddedByMap : RestByMap<T> {
  CUtensorMap added;
};
template <typename Sink>
constexpr bool kAdds = false;
template <typename T>
constexpr bool kAdds<AddedByMap<T>> = true;

// ---------------------------------------------------------------------------
// The copying warpgroup
// ---------------------------------------------------------------------------

// Starts one box of an operand: one step's terms from `depth` on, of the 64 rows of a or columns of b from `outer` on.
template <bool kAlongOuter, int kSharers, bool kBatched>
__device__ __forceinline__ void fill_box(uint16_t sharers, unsigned char* target, const CUtensorMap* map, int outer, int depth, int matrix, Barrier* full) {
  const int inner = kAlongOuter ? outer : depth, row = kAlongOuter ? depth : outer;
  if constexpr (kSharers > 1 && kBatched) {
    hopper::start_box_in(sharers, target, map, inner, row, matrix, full);
  } else if constexpr (kSharers > 1) {
    hopper::start_box_in(sharers, target, map, inner, row, full);
  } else if constexpr (kBatched) {
    hopper::start_box(target, map, inner, row, matrix, full);
  } else {
    hopper::start_box(target, map, inner, row, full);
  }
}

// One thread keeps the ring full: it loads its share of the tiles that its cluster's rows and columns have in common.
template <typename S, bool kAlongM, bool kAlongN, bool kTurned, typename Sink>
__device__ __forceinline__ void produce(Ring<S> ring, Walk<S> walk, const CUtensorMap* map_a, const CUtensorMap* map_b, const Sink& sink, int steps,
                                        const Batch<S::kBatched>& batch) {
  constexpr int kClusterM = kTurned ? S::kClusterN : S::kClusterM, kClusterN = kTurned ? S::kClusterM : S::kClusterN;
  using OfB = ShareOfB<S, kAlongN, kClusterM>;
  constexpr int kShareA = kBoxesA / kClusterN;
  uint16_t same_row = 0, same_col = 0;  // blocks that need the same part of a, of b
  for (int i = 0; i < kClusterN; ++i) same_row |= 1u << (walk.row_in_cluster + kClusterM * i);
  for (int i = 0; i < kClusterM; ++i) same_col |= 1u << (i + kClusterM * walk.col_in_cluster);
  const int first_a = walk.col_in_cluster * kShareA;
  // this block's share of b: from which column and term on, and where it goes
  const int first_col = OfB::kByTerms ? 0 : walk.row_in_cluster * OfB::kColumns, first_term = OfB::kByTerms ? walk.row_in_cluster * OfB::kRows : 0;
  constexpr int kColumnsEach = kAlongN ? kBox : OfB::kRows;  // of one box
  const int offset_b = kBoxesA * kBoxBytes + (first_col + first_term) * 128;
  int row0, col0;
  while (walk.take(row0, col0)) {
    if constexpr (kAdds<Sink>) {
      // unlike the operands nobody has read it yet, and the ring asks for it only some steps before it is needed
#pragma unroll
      for (int i = 0; i < S::kBoxesB * kConsumers; ++i) {
        const int col = col0 + i / kConsumers * kBox, row = row0 + i % kConsumers * kBox;
        if constexpr (S::kBatched) {
          hopper::prefetch_box(&sink.added, col, row, batch.added != 0 ? walk.matrix : 0);
        } else {
          hopper::prefetch_box(&sink.added, col, row);
        }
      }
    }
    const int matrix_a = batch.a != 0 ? walk.matrix : 0, matrix_b = batch.b != 0 ? walk.matrix : 0;
    for (int step = 0; step < steps; ++step, ring.advance()) {
      hopper::wait(&ring.empty[ring.slot], ring.phase ^ 1);
      Barrier* full = &ring.full[ring.slot];
      hopper::arrive_expecting(full, kStepBytes<S, kAlongN>);
      unsigned char* tiles = ring.tiles + ring.slot * S::kStageBytes;
#pragma unroll
      for (int i = 0; i < kShareA; ++i)
        fill_box<kAlongM, kClusterN, S::kBatched>(same_row, tiles + (first_a + i) * kBoxBytes, map_a, row0 + (first_a + i) * kBox, step * S::kDepth,
                                                  matrix_a, full);
#pragma unroll
      for (int i = 0; i < OfB::kCount; ++i)
        fill_box<kAlongN, kClusterM, S::kBatched>(same_col, tiles + offset_b + i * kColumnsEach * 128, map_b, col0 + first_col + i * kColumnsEach,
                                                  step * S::kDepth + first_term, matrix_b, full);
    }
    if constexpr (kAdds<Sink>) {
      // after the terms of a tile comes what its sums are added to, which no other block needs
#pragma unroll
      for (int first = 0; first < S::kBoxesB; first += S::kAddedBoxes, ring.advance()) {
        hopper::wait(&ring.empty[ring.slot], ring.phase ^ 1);
        Barrier* full = &ring.full[ring.slot];
        constexpr int kSlotBoxes = S::kAddedBoxes;
        const int boxes = min(kSlotBoxes, S::kBoxesB - first);
        hopper::arrive_expecting(full, boxes * kConsumers * kBoxBytes);
        unsigned char* tiles = ring.tiles + ring.slot * S::kStageBytes;
#pragma unroll
        for (int i = 0; i < boxes * kConsumers; ++i)
          fill_box<false, 1, S::kBatched>(0, tiles + i * kBoxBytes, &sink.added, row0 + i % kConsumers * kBox, col0 + (first + i / kConsumers) * kBox,
                                          batch.added != 0 ? walk.matrix : 0, full);
      }
    }
  }
  // this block will soon make room: blocks of the next kernel may take it, and wait for the end of this one there
  if (S::kOverlap) hopper::let_next_kernel_start();
}

// Its other warps bring the floats that a promotion wants of each step: `promote.source(row0, col0, i)` says where number i of step 0 lies,
// `promote.stride(i)` how far it is from there to the next step's.  A warp tells the slot's barrier once, some steps later, that its copies
// have arrived.
template <typename S, typename Promotion>
__device__ __forceinline__ void bring(Ring<S> ring, Walk<S> walk, int steps, const Promotion& promote) {
  constexpr int kEach = (S::kFloats + kBringers - 1) / kBringers, kLater = 2;
  static_assert(S::kStages > kLater, "slots are told of while later ones are filled");
  const int first = static_cast<int>(threadIdx.x % 128) - 32;
  int row0, col0, waiting = 0, oldest = 0;
  const auto arrived = [&] {
    __syncwarp();
    if (threadIdx.x % 32 == 0) hopper::arrive(&ring.full[oldest]);
    oldest = oldest + 1 == S::kStages ? 0 : oldest + 1;
    --waiting;
  };
  while (walk.take(row0, col0)) {
    const float* from[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) from[j] = promote.source(row0, col0, min(first + kBringers * j, S::kFloats - 1));
    for (int step = 0; step < steps; ++step, ring.advance()) {
      hopper::wait(&ring.read[ring.slot], ring.phase ^ 1);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int i = first + kBringers * j;
        if (i < S::kFloats) {
          hopper::start_float(ring.floats + ring.slot * S::kFloats + i, from[j]);
          from[j] += promote.stride(i);
        }
      }
      close_copies();
      if (++waiting > kLater) {
        wait_for_copies<kLater>();
        arrived();
      }
    }
  }
  wait_for_copies<0>();
  while (waiting > 0) arrived();
}

// An operand that the TMA cannot address, seen from the sums: `outer` runs along m (a) or n (b). Strides in elements.
template <typename T>
struct Plain {
  const T* data;
  int64_t outer_stride, depth_stride;
  int outer, depth;
};

// The copying warpgroup fills boxes itself: 16 bytes of one row or column at a time, zero beyond an edge.
template <int kBoxes, typename T>
__device__ __forceinline__ void fill_plainly(const Plain<T>& from, int outer0, int depth0, unsigned char* boxes, int thread) {
  constexpr int kRows = kBoxes * kBox, kPieces = 8, kEach = kVecSize<T>;
  const bool pieces_first = from.depth_stride == 1;  // neighbouring threads read neighbours in memory
  for (int i = thread; i < kRows * kPieces; i += 128) {
    const int row = pieces_first ? i / kPieces : i % kRows, piece = pieces_first ? i % kPieces : i / kRows;
    const int outer = outer0 + row, depth = depth0 + piece * kEach;
    const int room = outer < from.outer ? from.depth - depth : 0;
    const T* source = from.data + outer * from.outer_stride + depth * from.depth_stride;
    Vec<T, kEach> held;
#pragma unroll
    for (int j = 0; j < kEach; ++j) held[j] = j < room ? source[j * from.depth_stride] : store_from_float<T>(0.0f);
    held.store(reinterpret_cast<T*>(boxes + row * 128 + (piece ^ row % 8) * 16));
  }
}

template <typename S, typename T, typename Promotion>
__device__ __forceinline__ void produce_plainly(Ring<S> ring, Walk<S> walk, const Plain<T>& a, const Plain<T>& b, int steps, const Batch<S::kBatched>& batch,
                                                const Promotion& promote) {
  const int thread = threadIdx.x % 128;
  int row0, col0;
  while (walk.take(row0, col0)) {
    Plain<T> left = a, right = b;
    left.data += walk.matrix * batch.a;
    right.data += walk.matrix * batch.b;
    for (int step = 0; step < steps; ++step, ring.advance()) {
      hopper::wait(&ring.empty[ring.slot], ring.phase ^ 1);
      unsigned char* tiles = ring.tiles + ring.slot * S::kStageBytes;
      fill_plainly<kBoxesA>(left, row0, step * S::kDepth, tiles, thread);
      fill_plainly<S::kBoxesB>(right, col0, step * S::kDepth, tiles + kBoxesA * kBoxBytes, thread);
      if constexpr (S::kFloats > 0) {
        hopper::wait(&ring.read[ring.slot], ring.phase ^ 1);
        for (int i = thread; i < S::kFloats; i += 128)
          ring.floats[ring.slot * S::kFloats + i] = promote.source(row0, col0, i)[step * promote.stride(i)];
      }
      hopper::publish_to_async();
      hopper::arrive(&ring.full[ring.slot]);
    }
  }
}

// ---------------------------------------------------------------------------
// The multiplying warpgroups
// ---------------------------------------------------------------------------

// Tells every block that writes into this one's slot that a consumer has done with it.
template <bool kAlone, typename S>
__device__ __forceinline__ void release(Barrier* empty, const Walk<S>& walk, int thread) {
  if constexpr (kAlone) {
    if (thread == 0) hopper::arrive(empty);
  } else {
    // in a cluster of one row or column every block feeds every other, whichever way it lies
    const bool feeds =
        S::kClusterM == 1 || S::kClusterN == 1 || thread % S::kClusterM == walk.row_in_cluster || thread / S::kClusterM == walk.col_in_cluster;
    if (thread < S::kCluster && feeds) hopper::arrive_at(empty, thread);
  }
}

// What an epilogue asks memory for before the products of a tile, for use after them: `Epilogue::Held<boxes>`, which
// `hold<boxes>(row0, col0, thread)` gives. An epilogue without it loads in `apply`.
struct Nothing {};
template <int boxes, typename Epilogue, typename = void>
struct Holding {
  __device__ __forceinline__ static Nothing hold(const Epilogue&, int, int, int) { return {}; }
  template <int count>
  __device__ __forceinline__ static void apply(const Epilogue& epilogue, float (&sums)[count], Nothing, int box, int row0, int col0, int thread) {
    epilogue.apply(sums, row0, col0 + box * kBox, thread);
  }
};
template <int boxes, typename Epilogue>
struct Holding<boxes, Epilogue, std::void_t<typename Epilogue::template Held<boxes>>> {
  using Held = typename Epilogue::template Held<boxes>;
  __device__ __forceinline__ static Held hold(const Epilogue& epilogue, int row0, int col0, int thread) {
    return epilogue.template hold<boxes>(row0, col0, thread);
  }
  template <int count>
  __device__ __forceinline__ static void apply(const Epilogue& epilogue, float (&sums)[count], const Held& held, int box, int row0, int col0, int thread) {
    epilogue.apply(sums, held, box, row0, col0 + box * kBox, thread);
  }
};

// The sums of some columns of a tile, from its box number `box` on.
template <int columns, int count>
__device__ __forceinline__ float (&part_of(float (&sums)[count], int box))[columns / 2] {
  return *reinterpret_cast<float(*)[columns / 2]>(&sums[box * (kBox / 2)]);
}

// Where piece number `piece`, of 16 bytes, lies in a row of a box whose rows have so many bytes: the TMA swizzles rows of 128 bytes by their
// place among eight, those of 64 by the pair's among four, those of 32 by the four's among two, others not.
template <int row_bytes>
__device__ __forceinline__ int swizzled(int piece, int row) {
  return row_bytes == 128 ? piece ^ row % 8 : row_bytes == 64 ? piece ^ row / 2 % 4 : row_bytes == 32 ? piece ^ row / 4 % 2 : piece;
}

// 16-bit elements go to shared memory as the lanes of a warp hold them, four 8 x 8 matrices at a time.
template <typename T, int count>
__device__ __forceinline__ void write_box(const float (&sums)[count], unsigned char* target, int row, int lane) {
  constexpr int kRowBytes = count * 4;
#pragma unroll
  for (int i = 0; i < count / 8; ++i) {
    Pair pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = i * 8 + j * 2;
      Vec<T, 2> two;
      two[0] = store_from_float<T>(sums[at]);
      two[1] = store_from_float<T>(sums[at + 1]);
      pairs[j] = *reinterpret_cast<Pair*>(&two);
    }
    hopper::store_matrices(target + row * kRowBytes + swizzled<kRowBytes>(2 * i + lane / 16, row) * 16, pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

// 8-bit elements have rows of 64 bytes, or fewer: eight rows of two neighbours, as the lanes of a warp hold them, lie in different banks.
template <typename T, int count>
__device__ __forceinline__ void write_bytes(const float (&sums)[count], unsigned char* target, int thread) {
  constexpr int kRowBytes = count * 2;
  const int row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int i = 0; i < count; i += 2) {
    const int down = row + i / 2 % 2 * 8, column = i / 4 * 8 + thread % 4 * 2, piece = swizzled<kRowBytes>(column / 16, down);
    detail::round_two_to_fp8<typename T::Format>(sums[i], sums[i + 1]).store(reinterpret_cast<T*>(target + down * kRowBytes + piece * 16 + column % 16));
  }
}

// sums += weight times a box that has come through the ring, read as write_box writes.
template <typename T, int count>
__device__ __forceinline__ void add_box(float (&sums)[count], const unsigned char* source, int row, int lane, float weight) {
#pragma unroll
  for (int i = 0; i < count / 8; ++i) {
    Pair pairs[4];
    load_matrices(pairs, source + row * 128 + swizzled<128>(2 * i + lane / 16, row) * 16);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Vec<T, 2> two = *reinterpret_cast<const Vec<T, 2>*>(&pairs[j]);
      sums[i * 8 + j * 2] = fmaf(weight, load_as_float(two[0]), sums[i * 8 + j * 2]);
      sums[i * 8 + j * 2 + 1] = fmaf(weight, load_as_float(two[1]), sums[i * 8 + j * 2 + 1]);
    }
  }
}

// What is added counts once, in a batch as often as the epilogue says.
template <bool kBatched, typename Epilogue>
__device__ __forceinline__ float weight_of(const Epilogue& epilogue) {
  if constexpr (kBatched) {
    return epilogue.weight();
  } else {
    return 1.0f;
  }
}

// Stores what a box of shared memory holds, at (row, col) of c, from one thread.
template <bool kBatched>
__device__ __forceinline__ void start_out(const CUtensorMap* map, int row, int col, int matrix, const unsigned char* source, bool inside) {
  if (inside) {
    if constexpr (kBatched) {
      hopper::start_store(map, col, row, matrix, source);
    } else {
      hopper::start_store(map, col, row, source);
    }
  }
  hopper::close_stores();
}

// 64 rows of the tile go out in boxes of 64 columns; two are under way while the next is written, and while the next tile
// is multiplied.
template <typename S, bool kAlone, bool kAdded, int columns, typename T, typename Epilogue, typename Held>
__device__ __forceinline__ void store_box(const RestByMap<T>& sink, const Epilogue& epilogue, const Held& held, float (&all)[S::kBlockN / 2], int box,
                                          unsigned char* out, Ring<S>& ring, const Walk<S>& walk, int row0, int col0, int m, int n, int group, int thread,
                                          int matrix) {
  const int lane = thread % 32, row = thread / 32 * 16 + lane % 16;
  unsigned char* target = out + box % S::kOutBoxes * kBoxBytes;
  float(&sums)[columns / 2] = part_of<columns>(all, box);
  Holding<S::kBoxesB, Epilogue>::apply(epilogue, sums, held, box, row0, col0, thread);
  if constexpr (kAdded) {
    if (box % S::kAddedBoxes == 0) hopper::wait(&ring.full[ring.slot], ring.phase);
    add_box<T>(sums, ring.tiles + ring.slot * S::kStageBytes + (box % S::kAddedBoxes * kConsumers + group) * kBoxBytes, row, lane,
               weight_of<S::kBatched>(epilogue));
  }
  if (thread == 0) hopper::wait_for_reads<S::kOutBoxes - 1>();
  hopper::named_barrier(1 + group, 128);
  if constexpr (sizeof(T) == 1) {
    write_bytes<T>(sums, target, thread);
  } else {
    write_box<T>(sums, target, row, lane);
  }
  hopper::publish_to_async();
  hopper::named_barrier(1 + group, 128);
  if (thread == 0)
    start_out<S::kBatched>(columns == kBox ? &sink.map : &sink.rest, row0, col0 + box * kBox, matrix, target, row0 < m && col0 + box * kBox < n);
  if constexpr (kAdded) {
    // every thread of this warpgroup has read its share of the slot: the barrier says so
    if ((box + 1) % S::kAddedBoxes == 0 || box + 1 == S::kBoxesB) {
      release<kAlone>(&ring.empty[ring.slot], walk, thread);
      ring.advance();
    }
  }
}

template <typename S, bool kAlone, bool kAdded, typename T, typename Epilogue, typename Held>
__device__ __forceinline__ void store_tile(const RestByMap<T>& sink, const Epilogue& epilogue, const Held& held, float (&sums)[S::kBlockN / 2],
                                           unsigned char* out, Ring<S>& ring, const Walk<S>& walk, int row0, int col0, int m, int n, int group, int thread,
                                           int matrix) {
  constexpr int kWhole = S::kBlockN / kBox;
#pragma unroll
  for (int box = 0; box < kWhole; ++box)
    store_box<S, kAlone, kAdded, kBox>(sink, epilogue, held, sums, box, out, ring, walk, row0, col0, m, n, group, thread, matrix);
  if constexpr (S::kRest > 0)
    store_box<S, kAlone, kAdded, S::kRest>(sink, epilogue, held, sums, kWhole, out, ring, walk, row0, col0, m, n, group, thread, matrix);
}

template <typename S, bool, bool, typename T, typename Epilogue, typename Held>
__device__ __forceinline__ void store_tile(const ByPairs<T>& sink, const Epilogue& epilogue, const Held& held, float (&sums)[S::kBlockN / 2], unsigned char*,
                                           Ring<S>&, const Walk<S>&, int row0, int col0, int m, int n, int, int thread, int) {
  const auto store = [&](auto& part, int box) {
    Holding<S::kBoxesB, Epilogue>::apply(epilogue, part, held, box, row0, col0, thread);
    // keeps the compiler from a copy of the stores for each branch of the epilogue
    __syncwarp();
    gemm::each_pair(part, row0, col0 + box * kBox, thread, [&](float low, float high, int row, int col) { sink.store(low, high, row, col, m, n); });
  };
#pragma unroll
  for (int box = 0; box < S::kBlockN / kBox; ++box) store(part_of<kBox>(sums, box), box);
  if constexpr (S::kRest > 0) store(part_of<S::kRest>(sums, S::kBlockN / kBox), S::kBlockN / kBox);
}

// An epilogue as a matrix of a batch has it: a copy that `begin(matrix)` has led there.
template <bool kBatched, typename Epilogue>
__device__ __forceinline__ decltype(auto) epilogue_for(const Epilogue& epilogue, int matrix) {
  if constexpr (kBatched) {
    Epilogue own = epilogue;
    own.begin(matrix);
    return own;
  } else {
    return (epilogue);
  }
}

/// Sums that stay in the tensor cores' own registers from the first term to the last: what 16-bit operands want.
struct Kept {
  static constexpr bool kEachStep = false, kReads = false;
  __device__ __forceinline__ int fetch(int, int, int, int) const { return 0; }
};

// A warpgroup multiplies its 64 rows of every tile. What `hold(row0, col0, matrix)` gave before the first product goes with the sums to
// `store(sums, held, ring, row0, col0, matrix)`.
//
// Promotion   Kept, or a functor with kEachStep = true: then the products of every step are a sum of their own, and
//             `promote.template add<first>(totals, sums, fetched)` adds it to the totals, from their number `first` on, in ordinary float32
//             arithmetic. What it needs from memory `promote.fetch(step, row0, col0, thread)` has asked for before the products began;
//             With S::kFloats > 0 it fetches nothing: `promote.template read<boxes>(floats, group, thread)` reads the floats of the step that
//             `bring` has brought.  kReads says whether a kernel before this one may have written what is fetched; S::kMeanwhile what is
//             multiplied while sums are added
template <typename S, bool kAlongM, bool kAlongN, bool kAlone, typename Promotion, typename Hold, typename Store>
__device__ __forceinline__ void consume(Ring<S> ring, Walk<S> walk, int steps, int group, const Promotion& promote, const Hold& hold, const Store& store) {
  using T = typename S::Element;
  constexpr int kMeanwhile = Promotion::kEachStep ? S::kMeanwhile : kNothing, kParts = kMeanwhile == kHalves ? 2 : 1, kPart = S::kBlockN / kParts;
  static_assert(kPart % 8 == 0 && (kParts == 1 || !kAlongN), "a half of b begins with a row of the swizzle");
  using Product = hopper::Product<T, kPart, kAlongM, kAlongN>;
  // one instruction's terms further in a box: 32 bytes where terms are neighbours, 16 rows of 128 bytes where they are not
  constexpr uint32_t kStepA = (kAlongM ? 16 * 128 : 32) >> 4, kStepB = (kAlongN ? 16 * 128 : 32) >> 4;
  const int thread = threadIdx.x % 128;
  const uint32_t tiles = shared_address(ring.tiles);
  const uint64_t first_a = hopper::operand(tiles + group * kBoxBytes, kBoxBytes, 1024);
  const uint64_t first_b = hopper::operand(tiles + kBoxesA * kBoxBytes, kBoxBytes, 1024);
  float sums[kPart / 2];
  float totals[Promotion::kEachStep ? S::kBlockN / 2 : 1];
  // waits for the tiles of a step in the ring's slot; gives what the promotion will need
  const auto await = [&](int step, int row0, int col0) {
    if constexpr (S::kFloats > 0) {
      hopper::wait(&ring.full[ring.slot], ring.phase);
      const auto found = promote.template read<S::kBoxesB>(ring.floats + ring.slot * S::kFloats, group, thread);
      __syncwarp();
      if (thread % 32 == 0) hopper::arrive(&ring.read[ring.slot]);
      return found;
    } else {
      const auto asked = promote.fetch(step, row0 + group * 64, col0, thread);
      hopper::wait(&ring.full[ring.slot], ring.phase);
      return asked;
    }
  };
  // starts the products of the tiles in the ring's slot, of all columns or a half of them
  const auto multiply = [&](float(&into)[kPart / 2], bool add, int part) {
    const uint64_t a = first_a + static_cast<uint64_t>(ring.slot * (S::kStageBytes >> 4));
    const uint64_t b = first_b + static_cast<uint64_t>(ring.slot * (S::kStageBytes >> 4) + part * (kPart * 128 >> 4));
    hopper::hold(into);
    hopper::begin_products();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Product::run(into, a + i * kStepA, b + i * kStepB, add || i > 0);
      if (kMeanwhile == kTurns && i == 2) hopper::close_products();
    }
    hopper::close_products();
    hopper::hold(into);
  };
  const auto start = [&](float(&into)[kPart / 2], bool add, int step, int row0, int col0) {
    const auto fetched = await(step, row0, col0);
    multiply(into, add, 0);
    return fetched;
  };
  // a warpgroup's turn to multiply begins when the last of the other's products is about to
  const auto await_turn = [&] { hopper::named_barrier(kTurnBarrier + group, 128 * kConsumers); };
  const auto give_turn = [&] { hopper::arrive_at_named_barrier(kTurnBarrier + kConsumers - 1 - group, 128 * kConsumers); };
  if (kMeanwhile == kTurns && group > 0) give_turn();
  int row0, col0;
  // one consumer begins a few steps before the others, and so it goes on: while it stores a tile the others still multiply
  // theirs, and while they store it is at the next
  const int lead = min(S::kLead, steps);
  if (lead > 0 && group > 0) hopper::named_barrier(kLeadBarrier, 128 * kConsumers);
  bool leading = lead > 0 && group == 0;
  while (walk.take(row0, col0)) {
    if (kAlone && steps == 0) {
#pragma unroll
      for (float& sum : sums) sum = 0.0f;
    }
    if constexpr (Promotion::kEachStep) {
#pragma unroll
      for (float& total : totals) total = 0.0f;
    }
    const auto held = hold(row0 + group * 64, col0, walk.matrix);
    const auto follow_after = [&](int step) {
      if (leading && step + 1 == lead) {
        hopper::arrive_at_named_barrier(kLeadBarrier, 128 * kConsumers);
        leading = false;
      }
    };
    if constexpr (kMeanwhile == kHalves) {
      float others[kPart / 2];
      // a step without terms, in the plain kernel, leaves the totals 0
      if (!kAlone || steps > 0) {
        auto fetched = await(0, row0, col0);
        multiply(sums, false, 0);
        const auto finish_first = [&] {
          multiply(others, false, 1);
          hopper::wait_for_products<1>();
          hopper::hold(sums);
          promote.template add<0>(totals, sums, fetched);
        };
        const auto finish_second = [&](int slot) {
          hopper::hold(others);
          release<kAlone>(&ring.empty[slot], walk, thread);
          promote.template add<kPart / 2>(totals, others, fetched);
        };
#pragma unroll 1
        for (int step = 1; step < steps; ++step) {
          finish_first();
          const int slot = ring.slot;
          ring.advance();
          follow_after(step - 1);
          const auto next = await(step, row0, col0);
          multiply(sums, false, 0);
          hopper::wait_for_products<1>();
          finish_second(slot);
          fetched = next;
        }
        const auto finish_both = [&] {
          finish_first();
          hopper::wait_for_products<0>();
          finish_second(ring.slot);
        };
        // the same twice: with one way out of the loop ptxas 13.0 takes the products under way for those that are read, and serializes them (C7514)
        if (steps % 2 == 0) {
          finish_both();
        } else {
          finish_both();
        }
        ring.advance();
        follow_after(steps - 1);
      }
      store(totals, held, ring, row0 + group * 64, col0, walk.matrix);
    } else if constexpr (kMeanwhile == kSecondSet) {
      float others[S::kBlockN / 2];
      using Fetched = decltype(start(sums, false, 0, 0, 0));
      const auto begin = [&](float(&into)[S::kBlockN / 2], Fetched& fetched, int step) {
        fetched = start(into, false, step, row0, col0);
        const int slot = ring.slot;
        ring.advance();
        follow_after(step);
        return slot;
      };
      const auto finish = [&](float(&done)[S::kBlockN / 2], const Fetched& fetched, int slot) {
        hopper::hold(done);
        release<kAlone>(&ring.empty[slot], walk, thread);
        promote.template add<0>(totals, done, fetched);
      };
      // a step without terms, in the plain kernel, leaves the totals 0
      if (!kAlone || steps > 0) {
        Fetched one, other;
        int slot = begin(sums, one, 0), other_slot, step = 1;
        for (; step + 1 < steps; step += 2) {
          other_slot = begin(others, other, step);
          hopper::wait_for_products<1>();
          finish(sums, one, slot);
          slot = begin(sums, one, step + 1);
          hopper::wait_for_products<1>();
          finish(others, other, other_slot);
        }
        if (step < steps) {
          other_slot = begin(others, other, step);
          hopper::wait_for_products<1>();
          finish(sums, one, slot);
          hopper::wait_for_products<0>();
          finish(others, other, other_slot);
        } else {
          hopper::wait_for_products<0>();
          finish(sums, one, slot);
        }
      }
      store(totals, held, ring, row0 + group * 64, col0, walk.matrix);
    } else {
      int before = 0;
      for (int step = 0; step < steps; ++step, ring.advance()) {
        if (kMeanwhile == kTurns) await_turn();
        const auto fetched = start(sums, !Promotion::kEachStep && step > 0, step, row0, col0);
        if constexpr (Promotion::kEachStep) {
          if (kMeanwhile == kTurns) {
            hopper::wait_for_products<1>();
            give_turn();
          }
          hopper::wait_for_products<0>();
          hopper::hold(sums);
          release<kAlone>(&ring.empty[ring.slot], walk, thread);
          promote.template add<0>(totals, sums, fetched);
        } else {
          // the step before is done when only this one is under way
          hopper::wait_for_products<1>();
          if (step > 0) release<kAlone>(&ring.empty[before], walk, thread);
          before = ring.slot;
        }
        follow_after(step);
      }
      if constexpr (Promotion::kEachStep) {
        store(totals, held, ring, row0 + group * 64, col0, walk.matrix);
      } else {
        hopper::wait_for_products<0>();
        hopper::hold(sums);
        release<kAlone>(&ring.empty[before], walk, thread);
        store(sums, held, ring, row0 + group * 64, col0, walk.matrix);
      }
    }
  }
  if (kMeanwhile == kTurns && group == 0) await_turn();  // the one that was given last
}

// ---------------------------------------------------------------------------
// Kernels
// ---------------------------------------------------------------------------

// The parts of a block's shared memory. Swizzled boxes begin at multiples of 1024 bytes of the shared address space, at the
// same place in every block of a cluster.
template <typename S>
struct Shared {
  Ring<S> ring;
  unsigned char* out;

  // Sets up the ring for this many arrivals per phase; every thread of the block (of the cluster, if shared) must call.
  template <bool kAlone>
  __device__ __forceinline__ static Shared begin(unsigned char* raw, int filling, int emptying) {
    Shared shared;
    shared.ring.tiles = raw + (1024 - shared_address(raw) % 1024) % 1024;
    shared.out = shared.ring.tiles + S::kStages * S::kStageBytes;
    shared.ring.full = reinterpret_cast<Barrier*>(shared.out + S::kOutBytes);
    shared.ring.empty = shared.ring.full + S::kStages;
    shared.ring.read = shared.ring.empty + S::kStages;
    shared.ring.floats = reinterpret_cast<float*>(shared.ring.full + S::kBarriers * S::kStages);
    if (threadIdx.x == 0) {
      for (int i = 0; i < S::kStages; ++i) {
        hopper::init_barrier(&shared.ring.full[i], filling);
        hopper::init_barrier(&shared.ring.empty[i], emptying);
        if (S::kFloats > 0) hopper::init_barrier(&shared.ring.read[i], 4 * kConsumers);
      }
      hopper::publish_barriers();
    }
    if constexpr (kAlone) {
      __syncthreads();
    } else {
      hopper::cluster_sync();
    }
    return shared;
  }
};

// This warpgroup's number: the same in all lanes, and the compiler knows it.
__device__ __forceinline__ int warpgroup() { return __shfl_sync(kFullMask, static_cast<int>(threadIdx.x) / 128, 0); }

// kAlongM: neighbours in memory are neighbours in m (a is stored column by column); kAlongN: likewise for b stored row by row.
template <typename S, bool kAlongM, bool kAlongN, typename Sink, typename Epilogue, typename Promotion>
__global__ void __cluster_dims__(S::kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    product_wgmma(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, const __grid_constant__ Sink sink, int m, int n, int k,
                  bool turned, const __grid_constant__ Epilogue epilogue, const __grid_constant__ Promotion promote,
                  const __grid_constant__ Batch<S::kBatched> batch) {
  constexpr bool kAlone = S::kCluster == 1;
  extern __shared__ unsigned char raw[];
  const Shared<S> shared = Shared<S>::template begin<kAlone>(raw, S::kFloats > 0 ? 1 + kBringers / 32 : 1, (S::kClusterM + S::kClusterN - 1) * kConsumers);
  const Walk<S> walk(m, n, batch.count, turned);
  const int steps = (k + S::kDepth - 1) / S::kDepth, group = warpgroup();
  if (group == kConsumers) {
    hopper::keep_registers<kProducerRegisters>();
    if (threadIdx.x % 128 == 0) {
      hopper::prefetch_map(&map_a);
      hopper::prefetch_map(&map_b);
      if (S::kOverlap) hopper::wait_for_kernels_before();
      if constexpr (kAdds<Sink>) hopper::prefetch_map(&sink.added);
      if (S::kTurnable && turned) {
        produce<S, kAlongM, kAlongN, S::kTurnable>(shared.ring, walk, &map_a, &map_b, sink, steps, batch);
      } else {
        produce<S, kAlongM, kAlongN, false>(shared.ring, walk, &map_a, &map_b, sink, steps, batch);
      }
    }
    if constexpr (S::kFloats > 0) {
      if (threadIdx.x % 128 >= 32) {
        if (S::kOverlap) hopper::wait_for_kernels_before();
        bring(shared.ring, walk, steps, promote);
      }
    }
  } else {
    hopper::take_registers<kConsumerRegisters>();
    const int thread = threadIdx.x % 128;
    unsigned char* out = shared.out + group * S::kOutBoxes * kBoxBytes;
    if (S::kOverlap && (Epilogue::kReads || Promotion::kReads)) hopper::wait_for_kernels_before();
    consume<S, kAlongM, kAlongN, kAlone>(
        shared.ring, walk, steps, group, promote,
        [&](int row0, int col0, int matrix) {
          return Holding<S::kBoxesB, Epilogue>::hold(epilogue_for<S::kBatched>(epilogue, matrix), row0, col0, thread);
        },
        [&](float(&sums)[S::kBlockN / 2], const auto& held, Ring<S>& ring, int row0, int col0, int matrix) {
          store_tile<S, kAlone, kAdds<Sink>>(sink, epilogue_for<S::kBatched>(epilogue, matrix), held, sums, out, ring, walk, row0, col0, m, n, group, thread,
                                             matrix);
        });
    if (thread == 0) hopper::wait_for_reads<0>();
  }
  // a block may not end while others of its cluster still write to its shared memory
  if constexpr (!kAlone) hopper::cluster_sync();
}

template <typename S, typename Sink, typename Epilogue, typename Promotion>
__global__ void __launch_bounds__(kThreads, 1)
    product_wgmma_plain(Plain<typename S::Element> a, Plain<typename S::Element> b, Sink sink, Epilogue epilogue, Promotion promote,
                        Batch<S::kBatched> batch) {
  extern __shared__ unsigned char raw[];
  const Shared<S> shared = Shared<S>::template begin<true>(raw, 128, kConsumers);
  const Walk<S> walk(a.outer, b.outer, batch.count);
  const int steps = (a.depth + S::kDepth - 1) / S::kDepth, group = warpgroup();
  if (group == kConsumers) {
    hopper::keep_registers<kProducerRegisters>();
    produce_plainly(shared.ring, walk, a, b, steps, batch, promote);
  } else {
    hopper::take_registers<kConsumerRegisters>();
    const int thread = threadIdx.x % 128;
    consume<S, false, false, true>(
        shared.ring, walk, steps, group, promote,
        [&](int row0, int col0, int matrix) {
          return Holding<S::kBoxesB, Epilogue>::hold(epilogue_for<S::kBatched>(epilogue, matrix), row0, col0, thread);
        },
        [&](float(&sums)[S::kBlockN / 2], const auto& held, Ring<S>& ring, int row0, int col0, int matrix) {
          Sink own = sink;
          own.data += matrix * batch.c;
          store_tile<S, true, false>(own, epilogue_for<S::kBatched>(epilogue, matrix), held, sums, shared.out, ring, walk, row0, col0, a.outer, b.outer, group,
                                     thread, matrix);
        });
  }
}

// ---------------------------------------------------------------------------
// Launching (host)
// ---------------------------------------------------------------------------

/// How a matrix lies in memory, as the TMA sees it: rows of contiguous elements, `pitch` elements apart.
struct Lines {
  bool addressable;
  bool transposed;  // the contiguous direction is the first dimension
  int64_t inner, outer, pitch;
};

/// The lines of a matrix of elements of `size` bytes.
inline Lines lines_of(const Matrix& matrix, int64_t size) {
  const int64_t unit = 16 / size;
  for (const bool transposed : {false, true}) {
    const Matrix as = transposed ? matrix.transposed() : matrix;
    // a single row has no next one: any pitch will do
    const int64_t pitch = as.rows == 1 ? (as.cols + unit - 1) / unit * unit : as.row;
    const bool contiguous = as.col == 1 || as.cols == 1, aligned = as.batch == 1 || as.batch_stride % unit == 0;
    if (contiguous && aligned && pitch % unit == 0 && pitch >= as.cols && reinterpret_cast<uintptr_t>(as.data) % 16 == 0)
      return {true, transposed, as.cols, as.rows, pitch};
  }
  return {};
}

// What a kernel is told of a batch.
template <bool kBatched, typename Added>
Batch<kBatched> batch_of(const Matrix& a, const Matrix& b, const Matrix& c, const Added& added) {
  if constexpr (kBatched) {
    const auto apart = [](const Matrix& matrix) { return matrix.batch == 1 ? 0 : matrix.batch_stride; };
    Batch<true> batch{static_cast<int>(c.batch), apart(a), apart(b), apart(c), 0};
    if constexpr (std::is_same_v<Added, Matrix>) batch.added = apart(added);
    return batch;
  } else {
    return {};
  }
}

/// A matrix, or a batch of them, as the TMA is told of it: of T, lying in `lines`, in boxes of `box_rows` rows of so many bytes.
template <typename T, bool kBatched>
CUtensorMap describe(const Matrix& matrix, const Lines& lines, int box_rows = kBox, int row_bytes = 128) {
  if constexpr (kBatched) {
    // one matrix that serves the whole batch is a batch of one, whose stride means nothing
    const bool one = matrix.batch == 1 || matrix.batch_stride == 0;
    return hopper::describe_matrices(matrix.data, hopper::kMapType<T>, lines.inner, lines.outer, lines.pitch, one ? 1 : matrix.batch,
                                     one ? lines.pitch : matrix.batch_stride, box_rows, row_bytes);
  } else {
    return hopper::describe_matrix(matrix.data, hopper::kMapType<T>, lines.inner, lines.outer, lines.pitch, box_rows, sizeof(T), row_bytes);
  }
}

// Describes c in boxes of so many columns, where it goes out by TMA.
template <bool kBatched, typename T>
void describe_rest(RestByMap<T>& sink, const Matrix& c, const Lines& lines, int columns) {
  sink.rest = describe<T, kBatched>(c, lines, kBox, columns * sizeof(T));
}
template <bool, typename T>
void describe_rest(ByPairs<T>&, const Matrix&, const Lines&, int) {}

// How many clusters of a kernel this GPU runs at once. More of them would only wait for the tiles of others.
template <typename S, auto kernel>
int clusters_together() {
  static std::atomic<int> known[64];  // by device; 0 is not known yet
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  const int before = known[device % 64];
  if (before > 0) return before;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes), "product_wgmma");
  cudaLaunchConfig_t config = {};
  config.gridDim = S::kCluster;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = S::kSharedBytes;
  cudaLaunchAttribute size;
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {S::kCluster, 1, 1};
  config.attrs = &size;
  config.numAttrs = 1;
  int clusters = 0;
  check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "cudaOccupancyMaxActiveClusters");
  OPFORGE_CHECK(clusters > 0, RuntimeError, "no cluster of ", S::kCluster, " blocks with ", S::kSharedBytes, " bytes of shared memory fits this GPU");
  return known[device % 64] = clusters;
}

// Blocks that c wants, in whole clusters; what a cluster has beyond an edge is computed too.
template <typename S>
int64_t blocks_for(const Matrix& c, bool turned) {
  const int cluster_m = turned ? S::kClusterN : S::kClusterM, cluster_n = turned ? S::kClusterM : S::kClusterN;
  return S::kCluster * gemm::count_tiles(c, cluster_m * kBlockM, cluster_n * S::kBlockN);
}

// Blocks of a grid of whole clusters: as many as there are tiles for, or as run at once.
template <typename S, auto kernel>
unsigned grid_for(const Matrix& c, bool turned = false) {
  return static_cast<unsigned>(std::min<int64_t>(blocks_for<S>(c, turned), S::kCluster * static_cast<int64_t>(clusters_together<S, kernel>())));
}

/// Launches a kernel of a Shape for the tiles of c; its blocks may begin while the kernel before runs, where the Shape says so.
/// turned: the pair of a cluster lies along the other axis of c.
template <typename S, auto kernel, typename... Arguments>
void launch_tiles(const char* name, const Matrix& c, bool turned, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid_for<S, kernel>(c, turned);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = S::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = S::kOverlap;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

template <typename S, bool kAlongM, bool kAlongN, typename Sink, typename Epilogue, typename Promotion>
void launch(const CUtensorMap& a, const CUtensorMap& b, const Sink& sink, const Matrix& c, int64_t k, bool turned, cudaStream_t stream,
            const Epilogue& epilogue, const Promotion& promotion, const Batch<S::kBatched>& batch) {
  constexpr auto kernel = product_wgmma<S, kAlongM, kAlongN, Sink, Epilogue, Promotion>;
  launch_tiles<S, kernel>("product_wgmma", c, turned, stream, a, b, sink, static_cast<int>(c.rows), static_cast<int>(c.cols), static_cast<int>(k), turned,
                          epilogue, promotion, batch);
}

// The kernel for the way in which a and b lie in memory; 8-bit operands lie in one way only.
template <typename S, bool kAnyA, typename Sink, typename Epilogue, typename Promotion>
void launch_as(bool along_m, bool along_n, const CUtensorMap& a, const CUtensorMap& b, const Sink& sink, const Matrix& c, int64_t k, bool turned,
               cudaStream_t stream, const Epilogue& epilogue, const Promotion& promotion, const Batch<S::kBatched>& batch) {
  auto chosen = launch<S, false, false, Sink, Epilogue, Promotion>;
  if constexpr (sizeof(typename S::Element) == 2) {
    if (along_n) chosen = launch<S, false, true, Sink, Epilogue, Promotion>;
    if constexpr (kAnyA) {
      if (along_m) chosen = along_n ? launch<S, true, true, Sink, Epilogue, Promotion> : launch<S, true, false, Sink, Epilogue, Promotion>;
    }
  }
  chosen(a, b, sink, c, k, turned, stream, epilogue, promotion, batch);
}

// Rows of b's boxes, as the TMA counts them.
template <typename S>
int box_rows_of_b(bool along_n, bool turned) {
  constexpr int kM = S::kClusterM, kN = S::kClusterN;
  if (turned) return along_n ? ShareOfB<S, true, kN>::kRows : ShareOfB<S, false, kN>::kRows;
  return along_n ? ShareOfB<S, true, kM>::kRows : ShareOfB<S, false, kM>::kRows;
}

// The shape of least cost, and whether its clusters lie the other way round: a column costs what its shape says, and those count that a
// multiprocessor computes one after another.
template <typename Wide, typename... Others, typename Launch>
void launch_cheapest(OneOf<Others...>, const Matrix& c, int64_t blocks, const Launch& launch) {
  int64_t least = -1;
  int chosen = 0, number = -1;
  bool turned = false;
  const auto consider = [&](auto shape) {
    using S = decltype(shape);
    ++number;
    for (const bool other_way : {false, true}) {
      if (other_way && !S::kTurnable) continue;
      const int64_t cost = ceil_div(blocks_for<S>(c, other_way), blocks) * S::kBlockN * S::kCost;
      if (least >= 0 && cost >= least) continue;
      least = cost;
      chosen = number;
      turned = other_way;
    }
  };
  consider(Wide());
  (consider(Others()), ...);
  if (chosen == 0) return launch(Wide(), turned);
  number = 0;
  ((++number == chosen ? launch(Others(), turned) : void()), ...);
}

/// c = epilogue(a b) with the TMA, by `Wide` tiles, or by those of `Others` (OneOf<…>) that leave multiprocessors idle for less. What the
/// TMA cannot address the third warpgroup copies itself, slowly and rightly.  The matrices have been checked.
/// Of batched shapes every matrix of the batch is computed; `epilogue.begin(matrix)` says which one a tile is of, and `weight()` by
/// what `added` is multiplied.
///
/// TOut    elements of c: those of 8 and 16 bits go out by TMA, others by pairs
/// kAnyA   whether kernels are compiled for an a that is stored column by column; without them it goes the slow way
/// added   a matrix of c's shape and type that is the last thing the epilogue adds, if that is all it is given for: its boxes come by
///         TMA, and `epilogue.before_adding()` is what happens to the sums before
template <typename Wide, typename Others, typename TOut, bool kAnyA = true, typename Epilogue, typename Promotion, typename Added = Nothing>
void launch_product(const Matrix& a, const Matrix& b, const Matrix& c, cudaStream_t stream, const Epilogue& epilogue, const Promotion& promotion,
                    const Added& added = {}) {
  using T = typename Wide::Element;
  const Lines lines_a = lines_of(a, sizeof(T)), lines_b = lines_of(b, sizeof(T)), lines_c = lines_of(c, sizeof(TOut));
  constexpr bool kByMap = sizeof(TOut) <= 2, kBatched = Wide::kBatched, kAdded = std::is_same_v<Added, Matrix>;
  static_assert(sizeof(TOut) == 2 || !(kBatched || kAdded), "a batch, and what is added, have boxes of 16-bit elements");
  const Batch<kBatched> batch = batch_of<kBatched>(a, b, c, added);
  bool other_way = (lines_a.transposed && (!kAnyA || sizeof(T) == 1)) || (!lines_b.transposed && sizeof(T) == 1);
  if constexpr (kAdded) {
    const Lines lines = lines_of(added, sizeof(TOut));
    other_way = other_way || !lines.addressable || lines.transposed;
  }
  // the TMA stores whole 16 bytes: the last ones of a row must not reach beyond it, where another row or nothing of c's may lie
  if constexpr (kByMap) other_way = other_way || lines_c.inner * static_cast<int64_t>(sizeof(TOut)) % 16 != 0;
  // an empty sum is written by the plain kernel: the TMA describes no empty matrix
  if (!lines_a.addressable || !lines_b.addressable || other_way || a.cols == 0 || (kByMap && (!lines_c.addressable || lines_c.transposed))) {
    constexpr auto kernel = product_wgmma_plain<Wide, ByPairs<TOut>, Epilogue, Promotion>;
    const unsigned grid = grid_for<Wide, kernel>(c);
    const Plain<T> left{a.typed<const T>(), a.row, a.col, static_cast<int>(a.rows), static_cast<int>(a.cols)};
    const Plain<T> right{b.typed<const T>(), b.col, b.row, static_cast<int>(b.cols), static_cast<int>(b.rows)};
    ByPairs<TOut> sink = pairs_of<TOut>(c);
    // a row of one matrix of c begins where pairs do only if every matrix does
    sink.pairs = sink.pairs && (c.batch == 1 || c.batch_stride % 2 == 0);
    kernel<<<grid, kThreads, Wide::kSharedBytes, stream>>>(left, right, sink, epilogue, promotion, batch);
    return check_cuda(cudaGetLastError(), "product_wgmma_plain");
  }
  const CUtensorMap map_a = describe<T, kBatched>(a, lines_a);
  constexpr int kOutBytes = kBox * sizeof(TOut);  // a row of a box of c
  const auto sink = [&] {
    if constexpr (kAdded) {
      return AddedByMap<TOut>{{{describe<TOut, kBatched>(c, lines_c)}, {}}, describe<TOut, kBatched>(added, lines_of(added, sizeof(TOut)))};
    } else if constexpr (kByMap) {
      return RestByMap<TOut>{{describe<TOut, kBatched>(c, lines_c, kBox, kOutBytes)}, {}};
    } else {
      return pairs_of<TOut>(c);
    }
  }();
  const auto before = [&] {
    if constexpr (kAdded) {
      return epilogue.before_adding();
    } else {
      return epilogue;
    }
  }();
  using Sink = std::decay_t<decltype(sink)>;
  using Before = std::decay_t<decltype(before)>;
  const bool along_m = lines_a.transposed, along_n = !lines_b.transposed;
  constexpr auto any = product_wgmma<Wide, false, sizeof(T) == 2, Sink, Before, Promotion>;
  launch_cheapest<Wide>(Others(), c, Wide::kCluster * static_cast<int64_t>(clusters_together<Wide, any>()), [&](auto shape, bool turned) {
    using S = decltype(shape);
    const CUtensorMap map_b = describe<T, kBatched>(b, lines_b, box_rows_of_b<S>(along_n, turned));
    Sink into = sink;
    if (S::kRest > 0) describe_rest<kBatched>(into, c, lines_c, S::kRest);
    launch_as<S, kAnyA>(along_m, along_n, map_a, map_b, into, c, a.cols, turned, stream, before, promotion, batch);
  });
}

}  // namespace wgmma
}  // namespace opforge

#endif  // OPFORGE_GEMM_WGMMA_H_
