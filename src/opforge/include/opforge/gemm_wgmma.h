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
constexpr int kLeadBarrier = 1 + kConsumers;      // 0 is __syncthreads, the next ones are the consumers' own

/// Everything that follows from the elements (16 or 8 bits), the width of a tile, the ring's length, the cluster's shape, how a
/// tile goes out, and the order of tiles.
///
/// block_n    columns of a tile of c                            cluster_m   blocks that share b
/// stages     steps under way at once                           cluster_n   blocks that share a
/// out_boxes  boxes of 64 columns of c under way, per consumer  group       rows of tiles that are walked together
/// lead       steps by which one consumer leads the other       overlap     blocks may start while the kernel before runs
template <typename T, int block_n, int stages, int cluster_m, int cluster_n, int out_boxes, int lead, int group, bool overlap>
struct Shape {
  using Element = T;
  static constexpr int kDepth = 128 / sizeof(T);  // terms per step: one row of a box
  static constexpr int kBlockN = block_n, kStages = stages, kClusterM = cluster_m, kClusterN = cluster_n, kLead = lead, kGroup = group;
  static constexpr bool kOverlap = overlap;
  static constexpr int kBoxesB = kBlockN / kBox, kStageBytes = (kBoxesA + kBoxesB) * kBoxBytes, kCluster = kClusterM * kClusterN;
  static constexpr int kOutBoxes = out_boxes, kOutBytes = kConsumers * kOutBoxes * kBoxBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + kOutBytes + 2 * kStages * static_cast<int>(sizeof(Barrier)) + 1024;
  static_assert(kBoxesB % kClusterM == 0 && kBoxesA % kClusterN == 0, "a cluster shares whole boxes");
};

// The ring of stages in shared memory and the place in it.
template <typename S>
struct Ring {
  unsigned char* tiles;
  Barrier *full, *empty;
  int slot = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++slot == S::kStages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// Which tile of c a block computes next. Tiles are walked by whole clusters, in the order of gemm::place.
template <typename S>
struct Walk {
  int rows, cols;     // of clusters' tiles
  int next, step;     // this cluster's place, and how many clusters there are
  int row_in_cluster, col_in_cluster;

  // blocks of a cluster have neighbouring numbers
  __device__ __forceinline__ Walk(int m, int n)
      : rows((m + S::kClusterM * kBlockM - 1) / (S::kClusterM * kBlockM)),
        cols((n + S::kClusterN * S::kBlockN - 1) / (S::kClusterN * S::kBlockN)),
        next(static_cast<int>(blockIdx.x) / S::kCluster),
        step(static_cast<int>(gridDim.x) / S::kCluster),
        row_in_cluster(static_cast<int>(blockIdx.x) % S::kCluster % S::kClusterM),
        col_in_cluster(static_cast<int>(blockIdx.x) % S::kCluster / S::kClusterM) {}

  // Gives the first row and column of the next tile; false when there is none.
  __device__ __forceinline__ bool take(int& row0, int& col0) {
    if (next >= rows * cols) return false;
    const gemm::Place at = gemm::place(next, rows, cols, S::kGroup);
    row0 = (at.row * S::kClusterM + row_in_cluster) * kBlockM;
    col0 = (at.col * S::kClusterN + col_in_cluster) * S::kBlockN;
    next += step;
    return true;
  }
};

// ---------------------------------------------------------------------------
// The copying warpgroup
// ---------------------------------------------------------------------------

// Starts one box of an operand: one step's terms from `depth` on, of the 64 rows of a or columns of b from `outer` on.
template <bool kAlongOuter, int kSharers>
__device__ __forceinline__ void fill_box(uint16_t sharers, unsigned char* target, const CUtensorMap* map, int outer, int depth, Barrier* full) {
  const int inner = kAlongOuter ? outer : depth, row = kAlongOuter ? depth : outer;
  if constexpr (kSharers > 1) {
    hopper::start_box_in(sharers, target, map, inner, row, full);
  } else {
    hopper::start_box(target, map, inner, row, full);
  }
}

// One thread keeps the ring full: it loads its share of the tiles that its cluster's rows and columns have in common.
template <typename S, bool kAlongM, bool kAlongN>
__device__ __forceinline__ void produce(Ring<S> ring, Walk<S> walk, const CUtensorMap* map_a, const CUtensorMap* map_b, int steps) {
  constexpr int kShareA = kBoxesA / S::kClusterN, kShareB = S::kBoxesB / S::kClusterM;
  uint16_t same_row = 0, same_col = 0;  // blocks that need the same part of a, of b
  for (int i = 0; i < S::kClusterN; ++i) same_row |= 1u << (walk.row_in_cluster + S::kClusterM * i);
  for (int i = 0; i < S::kClusterM; ++i) same_col |= 1u << (i + S::kClusterM * walk.col_in_cluster);
  const int first_a = walk.col_in_cluster * kShareA, first_b = walk.row_in_cluster * kShareB;
  int row0, col0;
  while (walk.take(row0, col0)) {
    for (int step = 0; step < steps; ++step, ring.advance()) {
      hopper::wait(&ring.empty[ring.slot], ring.phase ^ 1);
      Barrier* full = &ring.full[ring.slot];
      hopper::arrive_expecting(full, S::kStageBytes);
      unsigned char* tiles = ring.tiles + ring.slot * S::kStageBytes;
#pragma unroll
      for (int i = 0; i < kShareA; ++i)
        fill_box<kAlongM, S::kClusterN>(same_row, tiles + (first_a + i) * kBoxBytes, map_a, row0 + (first_a + i) * kBox, step * S::kDepth, full);
#pragma unroll
      for (int i = 0; i < kShareB; ++i)
        fill_box<kAlongN, S::kClusterM>(same_col, tiles + (kBoxesA + first_b + i) * kBoxBytes, map_b, col0 + (first_b + i) * kBox, step * S::kDepth, full);
    }
  }
  // this block will soon make room: blocks of the next kernel may take it, and wait for the end of this one there
  if (S::kOverlap) hopper::let_next_kernel_start();
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

template <typename S, typename T>
__device__ __forceinline__ void produce_plainly(Ring<S> ring, Walk<S> walk, const Plain<T>& a, const Plain<T>& b, int steps) {
  const int thread = threadIdx.x % 128;
  int row0, col0;
  while (walk.take(row0, col0)) {
    for (int step = 0; step < steps; ++step, ring.advance()) {
      hopper::wait(&ring.empty[ring.slot], ring.phase ^ 1);
      unsigned char* tiles = ring.tiles + ring.slot * S::kStageBytes;
      fill_plainly<kBoxesA>(a, row0, step * S::kDepth, tiles, thread);
      fill_plainly<S::kBoxesB>(b, col0, step * S::kDepth, tiles + kBoxesA * kBoxBytes, thread);
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
    const bool feeds = thread % S::kClusterM == walk.row_in_cluster || thread / S::kClusterM == walk.col_in_cluster;
    if (thread < S::kCluster && feeds) hopper::arrive_at(empty, thread);
  }
}

/// c through the TMA: 16-bit elements in rows that it can address.
template <typename T>
struct ByMap {
  CUtensorMap map;
};

// The sums of 64 columns of a tile.
template <int count>
__device__ __forceinline__ float (&box_of(float (&sums)[count], int box))[kBox / 2] {
  return *reinterpret_cast<float(*)[kBox / 2]>(&sums[box * (kBox / 2)]);
}

// 64 rows of the tile go out in boxes of 64 columns; two are under way while the next is written, and while the next tile
// is multiplied.
template <typename S, typename T, typename Epilogue>
__device__ __forceinline__ void store_tile(const ByMap<T>& sink, const Epilogue& epilogue, float (&sums)[S::kBlockN / 2], unsigned char* out, int row0,
                                           int col0, int m, int n, int group, int thread) {
  const int lane = thread % 32, row = thread / 32 * 16 + lane % 16;
#pragma unroll
  for (int box = 0; box < S::kBoxesB; ++box) {
    unsigned char* target = out + box % S::kOutBoxes * kBoxBytes;
    // box by box: what an epilogue loads for the whole tile would not fit the registers
    epilogue.apply(box_of(sums, box), row0, col0 + box * kBox, thread);
    if (thread == 0) hopper::wait_for_reads<S::kOutBoxes - 1>();
    hopper::named_barrier(1 + group, 128);
#pragma unroll
    for (int i = 0; i < kBox / 16; ++i) {
      Pair pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = box * (kBox / 2) + i * 8 + j * 2;
        Vec<T, 2> two;
        two[0] = store_from_float<T>(sums[at]);
        two[1] = store_from_float<T>(sums[at + 1]);
        pairs[j] = *reinterpret_cast<Pair*>(&two);
      }
      // 16-byte pieces of a row are swizzled by the row's place among eight, as the TMA expects them
      const int piece = (2 * i + lane / 16) ^ (row % 8);
      hopper::store_matrices(target + row * 128 + piece * 16, pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    hopper::publish_to_async();
    hopper::named_barrier(1 + group, 128);
    if (thread == 0) {
      if (row0 < m && col0 + box * kBox < n) hopper::start_store(&sink.map, col0 + box * kBox, row0, target);
      hopper::close_stores();
    }
  }
}

template <typename S, typename T, typename Epilogue>
__device__ __forceinline__ void store_tile(const ByPairs<T>& sink, const Epilogue& epilogue, float (&sums)[S::kBlockN / 2], unsigned char*, int row0, int col0,
                                           int m, int n, int, int thread) {
#pragma unroll
  for (int box = 0; box < S::kBoxesB; ++box) {
    float(&part)[kBox / 2] = box_of(sums, box);
    epilogue.apply(part, row0, col0 + box * kBox, thread);
    // keeps the compiler from a copy of the stores for each branch of the epilogue
    __syncwarp();
    gemm::each_pair(part, row0, col0 + box * kBox, thread, [&](float low, float high, int row, int col) { sink.store(low, high, row, col, m, n); });
  }
}

/// Sums that stay in the tensor cores' own registers from the first term to the last: what 16-bit operands want.
struct Kept {
  static constexpr bool kEachStep = false, kReads = false;
  __device__ __forceinline__ int fetch(int, int, int, int) const { return 0; }
};

// A warpgroup multiplies its 64 rows of every tile and hands the sums to `store(sums, row0, col0)`.
//
// Promotion   Kept, or a functor with kEachStep = true: then the products of every step are a sum of their own, and
//             `promote(totals, sums, fetched)` adds it to the totals in ordinary float32 arithmetic. What it needs from memory
//             `promote.fetch(step, row0, col0, thread)` has asked for before the products began;
//             kReads says whether a kernel before this one may have written that
template <typename S, bool kAlongM, bool kAlongN, bool kAlone, typename Promotion, typename Store>
__device__ __forceinline__ void consume(Ring<S> ring, Walk<S> walk, int steps, int group, const Promotion& promote, const Store& store) {
  using T = typename S::Element;
  using Product = hopper::Product<T, S::kBlockN, kAlongM, kAlongN>;
  // one instruction's terms further in a box: 32 bytes where terms are neighbours, 16 rows of 128 bytes where they are not
  constexpr uint32_t kStepA = (kAlongM ? 16 * 128 : 32) >> 4, kStepB = (kAlongN ? 16 * 128 : 32) >> 4;
  const int thread = threadIdx.x % 128;
  const uint32_t tiles = shared_address(ring.tiles);
  const uint64_t first_a = hopper::operand(tiles + group * kBoxBytes, kBoxBytes, 1024);
  const uint64_t first_b = hopper::operand(tiles + kBoxesA * kBoxBytes, kBoxBytes, 1024);
  float sums[S::kBlockN / 2];
  float totals[Promotion::kEachStep ? S::kBlockN / 2 : 1];
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
    int before = 0;
    for (int step = 0; step < steps; ++step, ring.advance()) {
      const auto fetched = promote.fetch(step, row0 + group * 64, col0, thread);
      hopper::wait(&ring.full[ring.slot], ring.phase);
      const uint64_t a = first_a + static_cast<uint64_t>(ring.slot * (S::kStageBytes >> 4));
      const uint64_t b = first_b + static_cast<uint64_t>(ring.slot * (S::kStageBytes >> 4));
      hopper::hold(sums);
      hopper::begin_products();
#pragma unroll
      for (int i = 0; i < 4; ++i) Product::run(sums, a + i * kStepA, b + i * kStepB, (!Promotion::kEachStep && step > 0) || i > 0);
      hopper::close_products();
      hopper::hold(sums);
      if constexpr (Promotion::kEachStep) {
        hopper::wait_for_products<0>();
        hopper::hold(sums);
        release<kAlone>(&ring.empty[ring.slot], walk, thread);
        promote(totals, sums, fetched);
      } else {
        // the step before is done when only this one is under way
        hopper::wait_for_products<1>();
        if (step > 0) release<kAlone>(&ring.empty[before], walk, thread);
        before = ring.slot;
      }
      if (leading && step + 1 == lead) {
        hopper::arrive_at_named_barrier(kLeadBarrier, 128 * kConsumers);
        leading = false;
      }
    }
    if constexpr (Promotion::kEachStep) {
      store(totals, row0 + group * 64, col0);
    } else {
      hopper::wait_for_products<0>();
      hopper::hold(sums);
      release<kAlone>(&ring.empty[before], walk, thread);
      store(sums, row0 + group * 64, col0);
    }
  }
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
    if (threadIdx.x == 0) {
      for (int i = 0; i < S::kStages; ++i) {
        hopper::init_barrier(&shared.ring.full[i], filling);
        hopper::init_barrier(&shared.ring.empty[i], emptying);
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
                  const __grid_constant__ Epilogue epilogue, const __grid_constant__ Promotion promote) {
  constexpr bool kAlone = S::kCluster == 1;
  extern __shared__ unsigned char raw[];
  const Shared<S> shared = Shared<S>::template begin<kAlone>(raw, 1, (S::kClusterM + S::kClusterN - 1) * kConsumers);
  const Walk<S> walk(m, n);
  const int steps = (k + S::kDepth - 1) / S::kDepth, group = warpgroup();
  if (group == kConsumers) {
    hopper::keep_registers<kProducerRegisters>();
    if (threadIdx.x % 128 == 0) {
      hopper::prefetch_map(&map_a);
      hopper::prefetch_map(&map_b);
      if (S::kOverlap) hopper::wait_for_kernels_before();
      produce<S, kAlongM, kAlongN>(shared.ring, walk, &map_a, &map_b, steps);
    }
  } else {
    hopper::take_registers<kConsumerRegisters>();
    const int thread = threadIdx.x % 128;
    unsigned char* out = shared.out + group * S::kOutBoxes * kBoxBytes;
    if (S::kOverlap && (Epilogue::kReads || Promotion::kReads)) hopper::wait_for_kernels_before();
    consume<S, kAlongM, kAlongN, kAlone>(shared.ring, walk, steps, group, promote, [&](float(&sums)[S::kBlockN / 2], int row0, int col0) {
      store_tile<S>(sink, epilogue, sums, out, row0, col0, m, n, group, thread);
    });
    if (thread == 0) hopper::wait_for_reads<0>();
  }
  // a block may not end while others of its cluster still write to its shared memory
  if constexpr (!kAlone) hopper::cluster_sync();
}

template <typename S, typename Sink, typename Epilogue, typename Promotion>
__global__ void __launch_bounds__(kThreads, 1)
    product_wgmma_plain(Plain<typename S::Element> a, Plain<typename S::Element> b, Sink sink, Epilogue epilogue, Promotion promote) {
  extern __shared__ unsigned char raw[];
  const Shared<S> shared = Shared<S>::template begin<true>(raw, 128, kConsumers);
  const Walk<S> walk(a.outer, b.outer);
  const int steps = (a.depth + S::kDepth - 1) / S::kDepth, group = warpgroup();
  if (group == kConsumers) {
    hopper::keep_registers<kProducerRegisters>();
    produce_plainly(shared.ring, walk, a, b, steps);
  } else {
    hopper::take_registers<kConsumerRegisters>();
    const int thread = threadIdx.x % 128;
    consume<S, false, false, true>(shared.ring, walk, steps, group, promote, [&](float(&sums)[S::kBlockN / 2], int row0, int col0) {
      store_tile<S>(sink, epilogue, sums, shared.out, row0, col0, a.outer, b.outer, group, thread);
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
    const bool contiguous = as.col == 1 || as.cols == 1;
    if (contiguous && pitch % unit == 0 && pitch >= as.cols && reinterpret_cast<uintptr_t>(as.data) % 16 == 0)
      return {true, transposed, as.cols, as.rows, pitch};
  }
  return {};
}

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

// Blocks of a grid of whole clusters: as many as there are tiles for, or as run at once.
template <typename S, auto kernel>
unsigned grid_for(const Matrix& c) {
  const int64_t clusters = gemm::count_tiles(c, S::kClusterM * kBlockM, S::kClusterN * S::kBlockN);
  return S::kCluster * static_cast<unsigned>(std::min<int64_t>(clusters, clusters_together<S, kernel>()));
}

template <typename S, bool kAlongM, bool kAlongN, typename Sink, typename Epilogue, typename Promotion>
void launch(const CUtensorMap& a, const CUtensorMap& b, const Sink& sink, const Matrix& c, int64_t k, cudaStream_t stream, const Epilogue& epilogue,
            const Promotion& promotion) {
  constexpr auto kernel = product_wgmma<S, kAlongM, kAlongN, Sink, Epilogue, Promotion>;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid_for<S, kernel>(c);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = S::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = S::kOverlap;
  check_cuda(cudaLaunchKernelEx(&config, kernel, a, b, sink, static_cast<int>(c.rows), static_cast<int>(c.cols), static_cast<int>(k), epilogue, promotion),
             "product_wgmma");
}

// The kernel for the way in which a and b lie in memory; 8-bit operands lie in one way only.
template <typename S, bool kAnyA, typename Sink, typename Epilogue, typename Promotion>
void launch_as(bool along_m, bool along_n, const CUtensorMap& a, const CUtensorMap& b, const Sink& sink, const Matrix& c, int64_t k, cudaStream_t stream,
               const Epilogue& epilogue, const Promotion& promotion) {
  auto chosen = launch<S, false, false, Sink, Epilogue, Promotion>;
  if constexpr (sizeof(typename S::Element) == 2) {
    if (along_n) chosen = launch<S, false, true, Sink, Epilogue, Promotion>;
    if constexpr (kAnyA) {
      if (along_m) chosen = along_n ? launch<S, true, true, Sink, Epilogue, Promotion> : launch<S, true, false, Sink, Epilogue, Promotion>;
    }
  }
  chosen(a, b, sink, c, k, stream, epilogue, promotion);
}

/// c = epilogue(a b) with the TMA, by `Wide` tiles, or by `Narrow` ones (void: none) where wide ones would leave multiprocessors
/// idle.  What the TMA cannot address the third warpgroup copies itself, slowly and rightly.  The matrices have been checked.
///
/// TOut    elements of c: 16-bit ones go out by TMA, others by pairs
/// kAnyA   whether kernels are compiled for an a that is stored column by column; without them it goes the slow way
template <typename Wide, typename Narrow, typename TOut, bool kAnyA = true, typename Epilogue, typename Promotion>
void launch_product(const Matrix& a, const Matrix& b, const Matrix& c, cudaStream_t stream, const Epilogue& epilogue, const Promotion& promotion) {
  using T = typename Wide::Element;
  const Lines lines_a = lines_of(a, sizeof(T)), lines_b = lines_of(b, sizeof(T)), lines_c = lines_of(c, sizeof(TOut));
  constexpr bool kByMap = sizeof(TOut) == 2;
  const bool other_way = (lines_a.transposed && (!kAnyA || sizeof(T) == 1)) || (!lines_b.transposed && sizeof(T) == 1);
  // an empty sum is written by the plain kernel: the TMA describes no empty matrix
  if (!lines_a.addressable || !lines_b.addressable || other_way || a.cols == 0 || (kByMap && (!lines_c.addressable || lines_c.transposed))) {
    constexpr auto kernel = product_wgmma_plain<Wide, ByPairs<TOut>, Epilogue, Promotion>;
    const unsigned grid = grid_for<Wide, kernel>(c);
    const Plain<T> left{a.typed<const T>(), a.row, a.col, static_cast<int>(a.rows), static_cast<int>(a.cols)};
    const Plain<T> right{b.typed<const T>(), b.col, b.row, static_cast<int>(b.cols), static_cast<int>(b.rows)};
    kernel<<<grid, kThreads, Wide::kSharedBytes, stream>>>(left, right, pairs_of<TOut>(c), epilogue, promotion);
    return check_cuda(cudaGetLastError(), "product_wgmma_plain");
  }
  const auto describe = [](const Matrix& matrix, const Lines& lines) {
    return hopper::describe_matrix(matrix.data, hopper::kMapType<T>, lines.inner, lines.outer, lines.pitch, kBox, sizeof(T));
  };
  const CUtensorMap map_a = describe(a, lines_a), map_b = describe(b, lines_b);
  const auto sink = [&] {
    if constexpr (kByMap) {
      return ByMap<TOut>{hopper::describe_matrix(c.data, hopper::kMapType<TOut>, lines_c.inner, lines_c.outer, lines_c.pitch)};
    } else {
      return pairs_of<TOut>(c);
    }
  }();
  using Sink = std::decay_t<decltype(sink)>;
  const bool along_m = lines_a.transposed, along_n = !lines_b.transposed;
  if constexpr (!std::is_void_v<Narrow>) {
    // whether the columns that a multiprocessor computes one after another are fewer with narrow tiles, by enough: there an element
    // of a is used for 64 columns only (1024 x 1024 x 1024: 384 TFLOP/s against 257 with tiles of 128 columns)
    const int64_t blocks = Wide::kCluster * static_cast<int64_t>(clusters_together<Wide, product_wgmma<Wide, false, sizeof(T) == 2, Sink, Epilogue, Promotion>>());
    const auto columns = [&](int64_t width) { return ceil_div(ceil_div(c.rows, kBlockM) * ceil_div(c.cols, width), blocks) * width; };
    if (columns(Narrow::kBlockN) * 7 < columns(Wide::kBlockN) * 5)
      return launch_as<Narrow, kAnyA>(along_m, along_n, map_a, map_b, sink, c, a.cols, stream, epilogue, promotion);
  }
  launch_as<Wide, kAnyA>(along_m, along_n, map_a, map_b, sink, c, a.cols, stream, epilogue, promotion);
}

}  // namespace wgmma
}  // namespace opforge

#endif  // OPFORGE_GEMM_WGMMA_H_
