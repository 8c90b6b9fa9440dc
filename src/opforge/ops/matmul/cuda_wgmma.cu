// Hopper's own instructions: TMA fills a ring of tiles, two warpgroups multiply from it with wgmma, blocks stay for many tiles.
//
// moves     a is read ceil(n / (BLOCK_N * CLUSTER_N)) times from the second-level cache and b ceil(m / (128 * CLUSTER_M))
//           times: the blocks of a cluster share what they read
// limits    sm_90a; the TMA addresses rows or columns that begin at multiples of 16 bytes. Other strides and addresses are
//           right too, and slow: there the copying warpgroup moves elements itself
// source    PTX ISA: wgmma, cp.async.bulk.tensor, mbarrier, setmaxnreg; the division of labour follows the published
//           descriptions of warp-specialised kernels (Bauer et al., CudaDMA, SC 2011)
/* opforge
arch = "sm_90a"
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float16", "bfloat16"]
supports = {rows_of_whole_16_bytes = "n % 8 == 0 and k % 8 == 0"}
space = {BLOCK_N = [64, 128, 192, 256], STAGES = [3, 4, 5, 6, 7], CLUSTER_M = [1, 2], CLUSTER_N = [1, 2], GROUP = [1, 2, 4, 8, 16], OUT_BOXES = [1, 2, 4], LEAD = [0, 1, 2, 3], NARROW = [0, 1], OVERLAP = [0, 1]}
default = {BLOCK_N = 256, STAGES = 4, CLUSTER_M = 2, CLUSTER_N = 1, GROUP = 8, OUT_BOXES = 2, LEAD = 2, NARROW = 1, OVERLAP = 1}
limits = {lead_fits_the_ring = "LEAD < STAGES", stages_fit_shared_memory = "STAGES * (128 + BLOCK_N) * 128 + 16384 * OUT_BOXES + 2048 <= 232448", b_is_shared_in_whole_boxes = "BLOCK_N // 64 % CLUSTER_M == 0"}
*/
#include "opforge/hopper.h"

#include <algorithm>
#include <atomic>

// Tunable: columns of a tile of c, steps under way at once, blocks that share b, blocks that share a, rows of tiles walked
// together, boxes of c under way, steps by which one consumer leads the other, whether narrow tiles are used where wide ones
// would be too few, whether blocks may start while the kernel before runs.
#ifndef BLOCK_N
#define BLOCK_N 256
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef CLUSTER_M
#define CLUSTER_M 2
#endif
#ifndef CLUSTER_N
#define CLUSTER_N 1
#endif
#ifndef GROUP
#define GROUP 8
#endif
#ifndef OUT_BOXES
#define OUT_BOXES 2
#endif
#ifndef LEAD
#define LEAD 2
#endif
#ifndef NARROW
#define NARROW 1
#endif
#ifndef OVERLAP
#define OVERLAP 1
#endif

namespace {

using opforge::hopper::Barrier;
using opforge::hopper::kBox;
using opforge::hopper::kBoxBytes;

constexpr int kDepth = kBox;                      // terms per step: 128 bytes, one row of a box
constexpr int kConsumers = 2;                     // warpgroups that multiply: 64 rows of the tile each
constexpr int kBoxesA = kConsumers, kBlockM = kBoxesA * kBox;
constexpr int kThreads = 128 * (kConsumers + 1);  // the last warpgroup issues the copies
// of 65536 registers, in steps of 8: what the copying warpgroup does not need goes to those that hold sums
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
constexpr int kLeadBarrier = 1 + kConsumers;      // 0 is __syncthreads, the next ones are the consumers' own

// Everything that follows from the width of a tile, the ring's length, the cluster's shape and how a tile goes out.
template <int block_n, int stages, int cluster_m, int cluster_n, int out_boxes, int lead>
struct Shape {
  static constexpr int kBlockN = block_n, kStages = stages, kClusterM = cluster_m, kClusterN = cluster_n, kLead = lead;
  static constexpr int kBoxesB = kBlockN / kBox, kStageBytes = (kBoxesA + kBoxesB) * kBoxBytes, kCluster = kClusterM * kClusterN;
  static constexpr int kOutBoxes = out_boxes, kOutBytes = kConsumers * kOutBoxes * kBoxBytes;  // boxes of c per consumer on their way out at once
  static constexpr int kSharedBytes = kStages * kStageBytes + kOutBytes + 2 * kStages * static_cast<int>(sizeof(Barrier)) + 1024;
  static_assert(kBoxesB % kClusterM == 0 && kBoxesA % kClusterN == 0, "a cluster shares whole boxes");
};
using Wide = Shape<BLOCK_N, STAGES, CLUSTER_M, CLUSTER_N, OUT_BOXES, LEAD>;
// where c has so few wide tiles that most multiprocessors would have none
using Narrow = Shape<64, 7, 1, 1, 1, 0>;

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

// Which tile of c a block computes next. Tiles are walked by whole clusters; GROUP rows of them column by column, so that
// blocks that run together read few distinct panels of a and b.
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
    const int in_group = GROUP * cols;
    const int first = next / in_group * GROUP, within = next % in_group;
    const int height = min(rows - first, GROUP);
    row0 = ((first + within % height) * S::kClusterM + row_in_cluster) * kBlockM;
    col0 = (within / height * S::kClusterN + col_in_cluster) * S::kBlockN;
    next += step;
    return true;
  }
};

// Starts one box of an operand: 64 terms from `depth` on, of the 64 rows of a or columns of b from `outer` on.
template <bool kAlongOuter, int kSharers>
__device__ __forceinline__ void fill_box(uint16_t sharers, unsigned char* target, const CUtensorMap* map, int outer, int depth, Barrier* full) {
  const int inner = kAlongOuter ? outer : depth, row = kAlongOuter ? depth : outer;
  if constexpr (kSharers > 1) {
    opforge::hopper::start_box_in(sharers, target, map, inner, row, full);
  } else {
    opforge::hopper::start_box(target, map, inner, row, full);
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
      opforge::hopper::wait(&ring.empty[ring.slot], ring.phase ^ 1);
      Barrier* full = &ring.full[ring.slot];
      opforge::hopper::arrive_expecting(full, S::kStageBytes);
      unsigned char* tiles = ring.tiles + ring.slot * S::kStageBytes;
#pragma unroll
      for (int i = 0; i < kShareA; ++i)
        fill_box<kAlongM, S::kClusterN>(same_row, tiles + (first_a + i) * kBoxBytes, map_a, row0 + (first_a + i) * kBox, step * kDepth, full);
#pragma unroll
      for (int i = 0; i < kShareB; ++i)
        fill_box<kAlongN, S::kClusterM>(same_col, tiles + (kBoxesA + first_b + i) * kBoxBytes, map_b, col0 + (first_b + i) * kBox, step * kDepth, full);
    }
  }
  // this block will soon make room: blocks of the next kernel may take it, and wait for the end of this one there
  if (OVERLAP) opforge::hopper::let_next_kernel_start();
}

// An operand that the TMA cannot address, seen from the sums: `outer` runs along m (a) or n (b). Strides in elements.
template <typename T>
struct Plain {
  const T* data;
  int64_t outer_stride, depth_stride;
  int outer, depth;
};

// The copying warpgroup fills boxes itself: eight terms of one row or column at a time, zero beyond an edge.
template <int kBoxes, typename T>
__device__ __forceinline__ void fill_plainly(const Plain<T>& from, int outer0, int depth0, unsigned char* boxes, int thread) {
  constexpr int kRows = kBoxes * kBox, kPieces = kBox / 8;
  const bool pieces_first = from.depth_stride == 1;  // neighbouring threads read neighbours in memory
  for (int i = thread; i < kRows * kPieces; i += 128) {
    const int row = pieces_first ? i / kPieces : i % kRows, piece = pieces_first ? i % kPieces : i / kRows;
    const int outer = outer0 + row, depth = depth0 + piece * 8;
    const int room = outer < from.outer ? from.depth - depth : 0;
    const T* source = from.data + outer * from.outer_stride + depth * from.depth_stride;
    opforge::Vec<T, 8> held;
#pragma unroll
    for (int j = 0; j < 8; ++j) held[j] = j < room ? source[j * from.depth_stride] : opforge::store_from_float<T>(0.0f);
    held.store(reinterpret_cast<T*>(boxes + row * 128 + (piece ^ row % 8) * 16));
  }
}

template <typename S, typename T>
__device__ __forceinline__ void produce_plainly(Ring<S> ring, Walk<S> walk, const Plain<T>& a, const Plain<T>& b, int steps) {
  const int thread = threadIdx.x % 128;
  int row0, col0;
  while (walk.take(row0, col0)) {
    for (int step = 0; step < steps; ++step, ring.advance()) {
      opforge::hopper::wait(&ring.empty[ring.slot], ring.phase ^ 1);
      unsigned char* tiles = ring.tiles + ring.slot * S::kStageBytes;
      fill_plainly<kBoxesA>(a, row0, step * kDepth, tiles, thread);
      fill_plainly<S::kBoxesB>(b, col0, step * kDepth, tiles + kBoxesA * kBoxBytes, thread);
      opforge::hopper::publish_to_async();
      opforge::hopper::arrive(&ring.full[ring.slot]);
    }
  }
}

// Tells every block that writes into this one's slot that a consumer has done with it.
template <bool kAlone, typename S>
__device__ __forceinline__ void release(Barrier* empty, const Walk<S>& walk, int thread) {
  if constexpr (kAlone) {
    if (thread == 0) opforge::hopper::arrive(empty);
  } else {
    const bool feeds = thread % S::kClusterM == walk.row_in_cluster || thread / S::kClusterM == walk.col_in_cluster;
    if (thread < S::kCluster && feeds) opforge::hopper::arrive_at(empty, thread);
  }
}

// 64 rows of the tile go out in boxes of 64 columns; two are under way while the next is written, and while the next tile
// is multiplied.
template <typename S, typename T>
__device__ __forceinline__ void store_tile(const float (&sums)[S::kBlockN / 2], unsigned char* out, const CUtensorMap* map_c, int row0, int col0, int m,
                                           int n, int group, int thread) {
  const int lane = thread % 32, row = thread / 32 * 16 + lane % 16;
#pragma unroll
  for (int box = 0; box < S::kBoxesB; ++box) {
    unsigned char* target = out + box % S::kOutBoxes * kBoxBytes;
    if (thread == 0) opforge::hopper::wait_for_reads<S::kOutBoxes - 1>();
    opforge::hopper::named_barrier(1 + group, 128);
#pragma unroll
    for (int i = 0; i < kBox / 16; ++i) {
      opforge::Pair pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = box * (kBox / 2) + i * 8 + j * 2;
        opforge::Vec<T, 2> two;
        two[0] = opforge::store_from_float<T>(sums[at]);
        two[1] = opforge::store_from_float<T>(sums[at + 1]);
        pairs[j] = *reinterpret_cast<opforge::Pair*>(&two);
      }
      // 16-byte pieces of a row are swizzled by the row's place among eight, as the TMA expects them
      const int piece = (2 * i + lane / 16) ^ (row % 8);
      opforge::hopper::store_matrices(target + row * 128 + piece * 16, pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    opforge::hopper::publish_to_async();
    opforge::hopper::named_barrier(1 + group, 128);
    if (thread == 0) {
      if (row0 < m && col0 + box * kBox < n) opforge::hopper::start_store(map_c, col0 + box * kBox, row0, target);
      opforge::hopper::close_stores();
    }
  }
}

// The same without the TMA: any strides, any address.
template <typename S, typename T>
__device__ __forceinline__ void store_plainly(const float (&sums)[S::kBlockN / 2], T* c, int64_t c_row, int64_t c_col, int row0, int col0, int m, int n,
                                              int thread) {
#pragma unroll
  for (int i = 0; i < S::kBlockN / 2; ++i) {
    const int row = row0 + thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, col = col0 + i / 4 * 8 + thread % 4 * 2 + i % 2;
    if (row < m && col < n) c[row * c_row + col * c_col] = opforge::store_from_float<T>(sums[i]);
  }
}

// A warpgroup multiplies its 64 rows of every tile and hands the sums to `store(sums, row0, col0)`.
template <typename S, typename T, bool kAlongM, bool kAlongN, bool kAlone, typename Store>
__device__ __forceinline__ void consume(Ring<S> ring, Walk<S> walk, int steps, int group, const Store& store) {
  using Product = opforge::hopper::Product<T, S::kBlockN, kAlongM, kAlongN>;
  // 16 terms further in a box: 32 bytes where terms are neighbours, 16 rows of 128 bytes where they are not
  constexpr uint32_t kStepA = (kAlongM ? 16 * 128 : 32) >> 4, kStepB = (kAlongN ? 16 * 128 : 32) >> 4;
  const int thread = threadIdx.x % 128;
  const uint32_t tiles = opforge::shared_address(ring.tiles);
  const uint64_t first_a = opforge::hopper::operand(tiles + group * kBoxBytes, kBoxBytes, 1024);
  const uint64_t first_b = opforge::hopper::operand(tiles + kBoxesA * kBoxBytes, kBoxBytes, 1024);
  float sums[S::kBlockN / 2];
  int row0, col0;
  // one consumer begins a few steps before the others, and so it goes on: while it stores a tile the others still multiply
  // theirs, and while they store it is at the next
  const int lead = min(S::kLead, steps);
  if (lead > 0 && group > 0) opforge::hopper::named_barrier(kLeadBarrier, 128 * kConsumers);
  bool leading = lead > 0 && group == 0;
  while (walk.take(row0, col0)) {
    if (kAlone && steps == 0) {
#pragma unroll
      for (float& sum : sums) sum = 0.0f;
    }
    int before = 0;
    for (int step = 0; step < steps; ++step, ring.advance()) {
      opforge::hopper::wait(&ring.full[ring.slot], ring.phase);
      const uint64_t a = first_a + static_cast<uint64_t>(ring.slot * (S::kStageBytes >> 4));
      const uint64_t b = first_b + static_cast<uint64_t>(ring.slot * (S::kStageBytes >> 4));
      opforge::hopper::hold(sums);
      opforge::hopper::begin_products();
#pragma unroll
      for (int i = 0; i < kDepth / 16; ++i) Product::run(sums, a + i * kStepA, b + i * kStepB, step > 0 || i > 0);
      opforge::hopper::close_products();
      opforge::hopper::hold(sums);
      // the step before is done when only this one is under way
      opforge::hopper::wait_for_products<1>();
      if (step > 0) release<kAlone>(&ring.empty[before], walk, thread);
      before = ring.slot;
      if (leading && step + 1 == lead) {
        opforge::hopper::arrive_at_named_barrier(kLeadBarrier, 128 * kConsumers);
        leading = false;
      }
    }
    opforge::hopper::wait_for_products<0>();
    opforge::hopper::hold(sums);
    release<kAlone>(&ring.empty[before], walk, thread);
    store(sums, row0 + group * 64, col0);
  }
}

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
    shared.ring.tiles = raw + (1024 - opforge::shared_address(raw) % 1024) % 1024;
    shared.out = shared.ring.tiles + S::kStages * S::kStageBytes;
    shared.ring.full = reinterpret_cast<Barrier*>(shared.out + S::kOutBytes);
    shared.ring.empty = shared.ring.full + S::kStages;
    if (threadIdx.x == 0) {
      for (int i = 0; i < S::kStages; ++i) {
        opforge::hopper::init_barrier(&shared.ring.full[i], filling);
        opforge::hopper::init_barrier(&shared.ring.empty[i], emptying);
      }
      opforge::hopper::publish_barriers();
    }
    if constexpr (kAlone) {
      __syncthreads();
    } else {
      opforge::hopper::cluster_sync();
    }
    return shared;
  }
};

// This warpgroup's number: the same in all lanes, and the compiler knows it.
__device__ __forceinline__ int warpgroup() { return __shfl_sync(opforge::kFullMask, static_cast<int>(threadIdx.x) / 128, 0); }

// kAlongM: neighbours in memory are neighbours in m (a is stored column by column); kAlongN: likewise for b stored row by row.
template <typename S, typename T, bool kAlongM, bool kAlongN>
__global__ void __cluster_dims__(S::kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    matmul_wgmma(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, const __grid_constant__ CUtensorMap map_c, int m,
                 int n, int k) {
  constexpr bool kAlone = S::kCluster == 1;
  extern __shared__ unsigned char raw[];
  const Shared<S> shared = Shared<S>::template begin<kAlone>(raw, 1, (S::kClusterM + S::kClusterN - 1) * kConsumers);
  const Walk<S> walk(m, n);
  const int steps = (k + kDepth - 1) / kDepth, group = warpgroup();
  if (group == kConsumers) {
    opforge::hopper::keep_registers<kProducerRegisters>();
    if (threadIdx.x % 128 == 0) {
      opforge::hopper::prefetch_map(&map_a);
      opforge::hopper::prefetch_map(&map_b);
      if (OVERLAP) opforge::hopper::wait_for_kernels_before();
      produce<S, kAlongM, kAlongN>(shared.ring, walk, &map_a, &map_b, steps);
    }
  } else {
    opforge::hopper::take_registers<kConsumerRegisters>();
    const int thread = threadIdx.x % 128;
    unsigned char* out = shared.out + group * S::kOutBoxes * kBoxBytes;
    consume<S, T, kAlongM, kAlongN, kAlone>(shared.ring, walk, steps, group, [&](const float (&sums)[S::kBlockN / 2], int row0, int col0) {
      store_tile<S, T>(sums, out, &map_c, row0, col0, m, n, group, thread);
    });
    if (thread == 0) opforge::hopper::wait_for_reads<0>();
  }
  // a block may not end while others of its cluster still write to its shared memory
  if constexpr (!kAlone) opforge::hopper::cluster_sync();
}

template <typename S, typename T>
__global__ void __launch_bounds__(kThreads, 1) matmul_wgmma_plain(Plain<T> a, Plain<T> b, T* c, int64_t c_row, int64_t c_col) {
  extern __shared__ unsigned char raw[];
  const Shared<S> shared = Shared<S>::template begin<true>(raw, 128, kConsumers);
  const Walk<S> walk(a.outer, b.outer);
  const int steps = (a.depth + kDepth - 1) / kDepth, group = warpgroup();
  if (group == kConsumers) {
    opforge::hopper::keep_registers<kProducerRegisters>();
    produce_plainly(shared.ring, walk, a, b, steps);
  } else {
    opforge::hopper::take_registers<kConsumerRegisters>();
    consume<S, T, false, false, true>(shared.ring, walk, steps, group, [&](const float (&sums)[S::kBlockN / 2], int row0, int col0) {
      store_plainly<S>(sums, c, c_row, c_col, row0, col0, a.outer, b.outer, threadIdx.x % 128);
    });
  }
}

// How a matrix lies in memory, as the TMA sees it: rows of contiguous elements, `pitch` elements apart.
struct Lines {
  bool addressable;
  bool transposed;  // the contiguous direction is the first dimension
  int64_t inner, outer, pitch;
};

Lines lines_of(const opforge::TensorView& tensor) {
  for (const bool transposed : {false, true}) {
    const int inner = transposed ? 0 : 1, outer = 1 - inner;
    // a single row has no next one: any pitch will do
    const int64_t pitch = tensor.size(outer) == 1 ? (tensor.size(inner) + 7) / 8 * 8 : tensor.stride(outer);
    const bool contiguous = tensor.stride(inner) == 1 || tensor.size(inner) == 1;
    if (contiguous && pitch % 8 == 0 && pitch >= tensor.size(inner) && reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0)
      return {true, transposed, tensor.size(inner), tensor.size(outer), pitch};
  }
  return {};
}

template <typename S>
int64_t clusters_of(int64_t m, int64_t n) {
  const int64_t clusters = opforge::ceil_div(m, S::kClusterM * kBlockM) * opforge::ceil_div(n, S::kClusterN * S::kBlockN);
  OPFORGE_CHECK(clusters <= 2147483647 / 2, ValueError, "c has ", clusters, " tiles, more than can be counted");
  return clusters;
}

// How many clusters of a kernel this GPU runs at once. More of them would only wait for the tiles of others.
template <typename S, auto kernel>
int clusters_together() {
  static std::atomic<int> known[64];  // by device; 0 is not known yet
  int device = 0;
  opforge::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  const int before = known[device % 64];
  if (before > 0) return before;
  opforge::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes), "matmul_wgmma");
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
  opforge::check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "cudaOccupancyMaxActiveClusters");
  OPFORGE_CHECK(clusters > 0, RuntimeError, "no cluster of ", S::kCluster, " blocks with ", S::kSharedBytes, " bytes of shared memory fits this GPU");
  return known[device % 64] = clusters;
}

template <typename S, typename T, bool kAlongM, bool kAlongN>
void launch(const CUtensorMap& a, const CUtensorMap& b, const CUtensorMap& c, int m, int n, int k, cudaStream_t stream) {
  constexpr auto kernel = matmul_wgmma<S, T, kAlongM, kAlongN>;
  const int together = clusters_together<S, kernel>();
  const unsigned grid = S::kCluster * static_cast<unsigned>(std::min<int64_t>(clusters_of<S>(m, n), together));
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = S::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = OVERLAP;
  opforge::check_cuda(cudaLaunchKernelEx(&config, kernel, a, b, c, m, n, k), "matmul_wgmma");
}

template <typename S, typename T>
void launch_plain(const opforge::TensorView& a, const opforge::TensorView& b, const opforge::TensorView& c, cudaStream_t stream) {
  constexpr auto kernel = matmul_wgmma_plain<S, T>;
  const int together = clusters_together<S, kernel>();
  const unsigned grid = S::kCluster * static_cast<unsigned>(std::min<int64_t>(clusters_of<S>(c.size(0), c.size(1)), together));
  const Plain<T> left{opforge::data<T>(a), a.stride(0), a.stride(1), static_cast<int>(a.size(0)), static_cast<int>(a.size(1))};
  const Plain<T> right{opforge::data<T>(b), b.stride(1), b.stride(0), static_cast<int>(b.size(1)), static_cast<int>(b.size(0))};
  kernel<<<grid, kThreads, S::kSharedBytes, stream>>>(left, right, opforge::data<T>(c), c.stride(0), c.stride(1));
  opforge::check_cuda(cudaGetLastError(), "matmul_wgmma_plain");
}

// The kernel for the way in which a and b lie in memory.
template <typename S, typename T>
void launch_as(bool along_m, bool along_n, const CUtensorMap& a, const CUtensorMap& b, const CUtensorMap& c, int m, int n, int k, cudaStream_t stream) {
  const auto chosen = along_m ? (along_n ? launch<S, T, true, true> : launch<S, T, true, false>) : (along_n ? launch<S, T, false, true> : launch<S, T, false, false>);
  chosen(a, b, c, m, n, k, stream);
}

// Whether the columns that a multiprocessor computes one after another are fewer with narrow tiles, by enough: there an
// element of a is used for 64 columns only (1024 x 1024 x 1024: 384 TFLOP/s against 257 with tiles of 128 columns).
bool narrow_is_faster(int64_t m, int64_t n) {
  const int64_t blocks = Wide::kCluster * static_cast<int64_t>(clusters_together<Wide, matmul_wgmma<Wide, opforge::bfloat16_t, false, true>>());
  const auto columns = [&](int64_t width) { return opforge::ceil_div(opforge::ceil_div(m, kBlockM) * opforge::ceil_div(n, width), blocks) * width; };
  return columns(Narrow::kBlockN) * 7 < columns(Wide::kBlockN) * 5;
}

template <typename T>
void matmul_tiles(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c) {
  const cudaStream_t stream = opforge::current_stream(a);
  const Lines lines_a = lines_of(a), lines_b = lines_of(b), lines_c = lines_of(c);
  // an empty sum is written by the plain kernel: the TMA describes no empty matrix
  if (!lines_a.addressable || !lines_b.addressable || !lines_c.addressable || lines_c.transposed || a.size(1) == 0) return launch_plain<Wide, T>(a, b, c, stream);
  const auto describe = [](const opforge::TensorView& tensor, const Lines& lines) {
    return opforge::hopper::describe_matrix(tensor.data_ptr(), opforge::hopper::kMapType<T>, lines.inner, lines.outer, lines.pitch);
  };
  const CUtensorMap map_a = describe(a, lines_a), map_b = describe(b, lines_b), map_c = describe(c, lines_c);
  const int m = static_cast<int>(c.size(0)), n = static_cast<int>(c.size(1)), k = static_cast<int>(a.size(1));
  const bool along_m = lines_a.transposed, along_n = !lines_b.transposed;
  if (NARROW && narrow_is_faster(m, n)) {
    launch_as<Narrow, T>(along_m, along_n, map_a, map_b, map_c, m, n, k, stream);
  } else {
    launch_as<Wide, T>(along_m, along_n, map_a, map_b, map_c, m, n, k, stream);
  }
}

void matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c) {
  OPFORGE_CHECK_NDIM(a, 2);
  OPFORGE_CHECK_NDIM(b, 2);
  OPFORGE_CHECK_NDIM(c, 2);
  OPFORGE_CHECK(a.size(1) == b.size(0) && a.size(0) == c.size(0) && b.size(1) == c.size(1), ValueError,
                "a must be m x k, b k x n and c m x n");
  OPFORGE_CHECK(a.size(0) < 2147483647 - 1024 && a.size(1) < 2147483647 - 1024 && b.size(1) < 2147483647 - 1024, ValueError,
                "an axis is longer than 2^31 - 1025");
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
