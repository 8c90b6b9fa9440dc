// TF32 on Hopper: the pipeline of cuda_wgmma with float32 tiles, which the TMA rounds on their way in; b goes to wgmma through registers.
//
// moves     as cuda_wgmma with elements twice as large
// idea      wgmma reads TF32 from shared memory with terms side by side only. c^T = b^T a^T is computed: the first side of wgmma may come from
//           registers, where it is loaded from either layout of b. Its rows are dealt to the lanes so that they meet in no bank
// code      the pipeline, the order of tiles and shared memory are those of opforge/gemm/wgmma/launch.h, the instruction is in opforge/arch/hopper_tf32.h
// limits    sm_90a, float32 operands in "tf32". An a stored column by column, and what the TMA cannot address, is copied before
// precision factors of 11 bits, rounded; sums in float32 from the first term to the last, in the tensor cores
/* opforge
arch = "sm_90a"
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float32"]

[supports]
products_of_tensor_cores = "precision == 'tf32'"

[space]
BLOCK_M = [64, 128, 192, 256]
STAGES = [3, 4, 5, 6]
CLUSTER = [1, 2, 4]
GROUP = [1, 2, 4, 8, 16]
LEAD = [0, 1, 2, 3]
NARROW = [0, 1]
OVERLAP = [0, 1]

[default]
BLOCK_M = 256
STAGES = 4
CLUSTER = 2
GROUP = 8
LEAD = 2
NARROW = 1
OVERLAP = 1

[limits]
lead_fits_the_pipeline = "LEAD < STAGES"
stages_fit_shared_memory = "STAGES * (128 + BLOCK_M) * 128 + 32768 + 2048 <= shared_bytes_per_block"
boxes_are_shared_whole = "BLOCK_M // 64 % CLUSTER == 0"
*/
#include "opforge/gemm/wgmma/launch.h"
#include "opforge/arch/hopper_tf32.h"
#include "opforge/arch/scratch.h"

// Tunable: rows of a tile of c, steps under way at once, blocks that share a, columns of tiles computed together, steps by which one
// consumer leads the other, whether narrow tiles are used where wide ones would be too few, whether blocks may start while the kernel
// before runs.
#ifndef BLOCK_M
#define BLOCK_M 256
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef CLUSTER
#define CLUSTER 2
#endif
#ifndef GROUP
#define GROUP 8
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

using opforge::Matrix;
using opforge::gemm::ByPairs;
using opforge::wgmma::ByMap;
using opforge::wgmma::Pipeline;
using opforge::wgmma::TileScheduler;
namespace hopper = opforge::hopper;
namespace wgmma = opforge::wgmma;

constexpr int kHalfBytes = hopper::kBoxBytes / 2;
// Boxes of c that a consumer has on their way out: 64 rows x 32 columns, one for each pair of warps.
constexpr int kOutBoxes = 2;

// A Shape of c^T: its 128 rows are columns of c, its block_n columns rows of c; blocks of a cluster share a.
template <int block_m, int stages, int cluster, int lead>
using TransposedTile = wgmma::Shape<float, block_m, stages, cluster, 1, kOutBoxes, lead, GROUP, OVERLAP>;
using Wide = TransposedTile<BLOCK_M, STAGES, CLUSTER, LEAD>;
using Narrow = TransposedTile<64, 7, 1, 0>;

// ---------------------------------------------------------------------------
// Operands as they lie, or copied
// ---------------------------------------------------------------------------

constexpr int kTile = 64, kCopiers = 256;

// Writes an operand with its terms side by side: `lines` rows or columns of the product's, of `terms` each, `pitch` apart in the copy.
// kTurned: neighbours in memory are neighbours among the lines.
template <bool kClusterSwapped>
__global__ void __launch_bounds__(kCopiers) lay_out(const float* from, int64_t line_stride, int64_t term_stride, float* to, int64_t pitch, int lines, int terms, int tiles_across) {
  __shared__ float tile[kTile][kTile + 1];
  const int line0 = static_cast<int>(blockIdx.x) / tiles_across * kTile, term0 = static_cast<int>(blockIdx.x) % tiles_across * kTile;
  const int across = threadIdx.x % kTile, down = threadIdx.x / kTile;
#pragma unroll
  for (int i = 0; i < kTile; i += kCopiers / kTile) {
    const int line = kClusterSwapped ? across : down + i, term = kClusterSwapped ? down + i : across;
    if (line0 + line < lines && term0 + term < terms) tile[line][term] = from[(line0 + line) * line_stride + (term0 + term) * term_stride];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTile; i += kCopiers / kTile) {
    const int line = down + i, term = across;
    if (line0 + line < lines && term0 + term < terms) to[(line0 + line) * pitch + term0 + term] = tile[line][term];
  }
}

// Whether the TMA can address a matrix along its rows.
bool fits(const Matrix& matrix) {
  return matrix.col == 1 && matrix.row % 4 == 0 && matrix.row >= matrix.cols && reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0;
}

// An operand of `lines` x terms as the TMA can address it: itself if it `fits`, or a copy in memory that lives as long as this.
class TermsFirst {
 public:
  TermsFirst(const Matrix& matrix, bool as_it_is, cudaStream_t stream)
      : pitch_(opforge::ceil_div(matrix.cols, 4) * 4), copy_(as_it_is ? 0 : matrix.rows * pitch_ * static_cast<int64_t>(sizeof(float)), stream), matrix_(matrix) {
    if (as_it_is) return;
    const int tiles_across = static_cast<int>(opforge::ceil_div(matrix.cols, kTile));
    const int64_t tiles = opforge::ceil_div(matrix.rows, kTile) * tiles_across;
    OPFORGE_CHECK(tiles <= 2147483647, ValueError, matrix.name, " has ", tiles, " tiles, more than a grid may hold");
    float* to = static_cast<float*>(copy_.data());
    const auto kernel = matrix.row < matrix.col ? lay_out<true> : lay_out<false>;
    OPFORGE_LAUNCH(kernel, static_cast<unsigned>(tiles), kCopiers, 0, stream, matrix.typed<const float>(), matrix.row, matrix.col, to, pitch_, static_cast<int>(matrix.rows),
                   static_cast<int>(matrix.cols), tiles_across);
    matrix_ = Matrix{matrix.name, to, matrix.dtype, 1, matrix.rows, matrix.cols, 0, pitch_, 1};
  }
  const Matrix& matrix() const { return matrix_; }

 private:
  int64_t pitch_;
  opforge::Scratch copy_;
  Matrix matrix_;
};

// An empty sum is zero: the TMA describes no empty matrix.
__global__ void clear(float* c, int64_t row, int64_t col, int n, int64_t count) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(kCopiers) + threadIdx.x;
  if (i < count) c[i / n * row + i % n * col] = 0.0f;
}

// ---------------------------------------------------------------------------
// The copying warpgroup
// ---------------------------------------------------------------------------

// kAlongK: terms of b lie side by side. Then its tile is a box of 64 columns for each consumer; else two of 32 columns, a row for each term.
template <typename S, bool kAlongK>
__device__ __forceinline__ void produce(Pipeline<S> pipeline, TileScheduler<S> tile_scheduler, const CUtensorMap* map_a, const CUtensorMap* map_b, int steps) {
  constexpr int kShare = S::kBoxesB / S::kClusterM;
  const int first = tile_scheduler.row_in_cluster * kShare;
  const uint16_t everybody = (1u << S::kClusterM) - 1;
  int col0, row0;
  while (tile_scheduler.take(col0, row0))
    for (int step = 0; step < steps; ++step, pipeline.advance()) {
      hopper::wait(&pipeline.empty[pipeline.slot], pipeline.phase ^ 1);
      hopper::Barrier* full = &pipeline.full[pipeline.slot];
      hopper::arrive_and_expect_bytes(full, S::kStageBytes);
      unsigned char* tiles = pipeline.tiles + pipeline.slot * S::kStageBytes;
      const int term = step * S::kDepth;
      if constexpr (kAlongK) {
#pragma unroll
        for (int i = 0; i < wgmma::kBoxesA; ++i) hopper::start_box(tiles + i * hopper::kBoxBytes, map_b, term, col0 + i * hopper::kBox, full);
      } else {
#pragma unroll
        for (int i = 0; i < 2 * wgmma::kBoxesA; ++i) hopper::start_box(tiles + i * kHalfBytes, map_b, col0 + i * (hopper::kBox / 2), term, full);
      }
#pragma unroll
      for (int i = first; i < first + kShare; ++i)
        wgmma::fill_box<false, S::kClusterM, false>(everybody, tiles + (wgmma::kBoxesA + i) * hopper::kBoxBytes, map_a, row0 + i * hopper::kBox, term, 0, full);
    }
  // this block will soon make room: blocks of the next kernel may take it, and wait for the end of this one there
  if (S::kOverlap) hopper::launch_dependent_kernels();
}

// ---------------------------------------------------------------------------
// The multiplying warpgroups
// ---------------------------------------------------------------------------

// Which of a warpgroup's 64 columns of c a thread has: sums of even pairs of registers are of the first, of odd pairs of the one kApart further.
// Of terms side by side a warp reads eight columns and four terms at once, which the swizzle spreads over all 32 banks. Of columns side by side
// it reads columns 0 to 3 and 16 to 19 of four terms, for the same reason.
template <bool kAlongK>
struct Columns {
  static constexpr int kApart = kAlongK ? 8 : 4;
  __device__ __forceinline__ static int first(int thread) {
    if (kAlongK) return thread / 32 * 16 + thread % 32 / 4;
    return thread / 64 * 32 + thread / 32 % 2 * 8 + thread % 32 / 16 * 16 + thread % 16 / 4;
  }
};

// What a thread gives to the products of a step: of each product four numbers of b.
template <typename S>
struct Terms {
  static constexpr int kProducts = S::kDepth / 8;
  uint32_t of[kProducts][4];

  // Keeps the registers of products that may be under way from being used for anything else before this point.
  __device__ __forceinline__ void keep() {
#pragma unroll
    for (int i = 0; i < kProducts; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(of[i][j])::"memory");
  }
};

// Where in a box a thread finds them: columns c and c + kApart, terms t and t + 4 of each eight.
template <typename S, bool kAlongK>
struct Place {
  static constexpr int kPieces = kAlongK ? 8 : 4;
  uint32_t box, piece[kPieces];

  __device__ __forceinline__ explicit Place(int thread) {
    const int column = Columns<kAlongK>::first(thread), term = thread % 4;
    if constexpr (kAlongK) {
      box = column * 128 + term * 4;
#pragma unroll
      for (int i = 0; i < 8; ++i) piece[i] = (i ^ column % 8) << 4;
    } else {
      box = column / 32 * kHalfBytes + term * 128 + column % 4 * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) piece[i] = i / 2 * 512 + (((column % 32 / 4 + i % 2) ^ (term + i / 2 * 4)) << 4);
    }
  }
  __device__ __forceinline__ void load(Terms<S>& terms, const unsigned char* tile) const {
    const unsigned char* from = tile + box;
#pragma unroll
    for (int i = 0; i < Terms<S>::kProducts; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const unsigned char* p = kAlongK ? from + piece[2 * i + j / 2] + j % 2 * 1024 : from + i * 1024 + piece[j];
        terms.of[i][j] = *reinterpret_cast<const uint32_t*>(p);
      }
  }
};

// A warpgroup's 64 columns go out in pieces of 64 rows: 32 columns for each pair of warps, as rows of 128 bytes that the TMA expects swizzled.
template <bool kAlongK, int count>
__device__ __forceinline__ void store(const ByMap<float>& sink, const float (&sums)[count], unsigned char* out, int row0, int col0, int group, int thread, int m, int n) {
  const int column = Columns<kAlongK>::first(thread), half = thread / 64, down = thread % 4 * 2;
  unsigned char* box = out + half * hopper::kBoxBytes;
  unsigned char* place[4];  // of two neighbours among rows, and of the column further on
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = down + i % 2, at = column % 32 + i / 2 * Columns<kAlongK>::kApart;
    place[i] = box + row * 128 + ((at / 4 ^ row) << 4) + at % 4 * 4;
  }
#pragma unroll
  for (int first = 0; first < count; first += 32) {
    if (thread % 64 == 0) hopper::wait_for_reads<0>();
    hopper::named_barrier(1 + group, 128);
#pragma unroll
    for (int i = 0; i < 32; ++i) *reinterpret_cast<float*>(place[i % 4] + i / 4 * 1024) = sums[first + i];
    hopper::fence_async_proxy();
    hopper::named_barrier(1 + group, 128);
    const int row = row0 + first * 2, col = col0 + half * 32;
    if (thread % 64 == 0 && row < m && col < n) {
      hopper::start_store(&sink.map, col, row, box);
      hopper::commit_stores();
    }
  }
}

template <bool kAlongK, int count>
__device__ __forceinline__ void store(const ByPairs<float>& c, const float (&sums)[count], unsigned char*, int row0, int col0, int, int thread, int m, int n) {
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const int row = row0 + i / 4 * 8 + thread % 4 * 2 + i % 2, col = col0 + Columns<kAlongK>::first(thread) + i / 2 % 2 * Columns<kAlongK>::kApart;
    if (row < m && col < n) c.data[row * c.row + col * c.col] = sums[i];
  }
}

// A warpgroup multiplies its 64 columns of every tile. A step's numbers of b are loaded while the products of the step before run.
template <typename S, bool kAlongK, typename Sink>
__device__ __forceinline__ void consume(Pipeline<S> pipeline, TileScheduler<S> tile_scheduler, int steps, int group, const Sink& sink, unsigned char* out, int m, int n) {
  constexpr bool kUnclustered = S::kCluster == 1;
  const int thread = threadIdx.x % 128;
  const uint64_t first_a = hopper::operand(opforge::shared_address(pipeline.tiles) + wgmma::kBoxesA * hopper::kBoxBytes, 0, 1024);
  const unsigned char* first_b = pipeline.tiles + group * hopper::kBoxBytes;
  const Place<S, kAlongK> place(thread);
  float sums[S::kBlockN / 2];
  int col0, row0;
  // one consumer begins a few steps before the other, and so it goes on: while it stores a tile the other still multiplies its own
  const int lead = min(S::kLead, steps);
  if (lead > 0 && group > 0) hopper::named_barrier(wgmma::kLeadBarrier, 128 * wgmma::kConsumers);
  bool leading = lead > 0 && group == 0;
  while (tile_scheduler.take(col0, row0)) {
    Terms<S> one, other;
    int before = 0;
    const auto advance = [&](Terms<S>& mine, Terms<S>& previous, int step) {
      hopper::wait(&pipeline.full[pipeline.slot], pipeline.phase);
      place.load(mine, first_b + pipeline.slot * S::kStageBytes);
      const uint64_t a = first_a + static_cast<uint64_t>(pipeline.slot * (S::kStageBytes >> 4));
      mine.keep();
      hopper::hold(sums);
      hopper::fence_before_products();
#pragma unroll
      for (int i = 0; i < Terms<S>::kProducts; ++i) hopper::ProductOfRegisters<S::kBlockN>::run(sums, mine.of[i], a + i * (32 >> 4), step > 0 || i > 0);
      hopper::commit_products();
      hopper::hold(sums);
      if (step > 0) {
        // the step before is done when only this one is under way; every warp gives its slot back, because it has read it itself
        hopper::wait_for_products<1>();
        previous.keep();
        wgmma::release<kUnclustered>(&pipeline.empty[before], tile_scheduler, thread % 32);
      }
      before = pipeline.slot;
      pipeline.advance();
      if (leading && step + 1 == lead) {
        hopper::arrive_at_named_barrier(wgmma::kLeadBarrier, 128 * wgmma::kConsumers);
        leading = false;
      }
    };
    for (int step = 0; step < steps; step += 2) {
      advance(one, other, step);
      if (step + 1 < steps) advance(other, one, step + 1);
    }
    hopper::wait_for_products<0>();
    hopper::hold(sums);
    one.keep();
    other.keep();
    wgmma::release<kUnclustered>(&pipeline.empty[before], tile_scheduler, thread % 32);
    store<kAlongK>(sink, sums, out, row0, col0 + group * hopper::kBox, group, thread, m, n);
  }
}

template <typename S, bool kAlongK, typename Sink>
__global__ void __cluster_dims__(S::kCluster, 1, 1) __launch_bounds__(wgmma::kThreads, 1)
    product_tf32(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, const __grid_constant__ Sink sink, int m, int n, int k) {
  constexpr bool kUnclustered = S::kCluster == 1;
  extern __shared__ unsigned char raw[];
  const wgmma::Shared<S> shared = wgmma::Shared<S>::template begin<kUnclustered>(raw, 1, S::kClusterM * wgmma::kConsumers * 4);
  const TileScheduler<S> tile_scheduler(n, m, 1);
  const int steps = (k + S::kDepth - 1) / S::kDepth, group = wgmma::warpgroup();
  if (group == wgmma::kConsumers) {
    hopper::shrink_registers<wgmma::kProducerRegisters>();
    if (threadIdx.x % 128 == 0) {
      hopper::prefetch_map(&map_a);
      hopper::prefetch_map(&map_b);
      if (S::kOverlap) hopper::wait_for_prior_kernels();
      produce<S, kAlongK>(shared.pipeline, tile_scheduler, &map_a, &map_b, steps);
    }
  } else {
    hopper::grow_registers<wgmma::kConsumerRegisters>();
    consume<S, kAlongK>(shared.pipeline, tile_scheduler, steps, group, sink, shared.out + group * kOutBoxes * hopper::kBoxBytes, m, n);
    if (threadIdx.x % 64 == 0) hopper::wait_for_reads<0>();
  }
  // a block may not end while others of its cluster still write to its shared memory
  if constexpr (!kUnclustered) hopper::cluster_sync();
}

// ---------------------------------------------------------------------------
// Launching (host)
// ---------------------------------------------------------------------------

template <typename S, bool kAlongK, typename Sink>
void launch(const CUtensorMap& a, const CUtensorMap& b, const Matrix& c, const Sink& sink, int k, cudaStream_t stream) {
  constexpr auto kernel = product_tf32<S, kAlongK, Sink>;
  wgmma::launch_tiles<S, kernel>("product_tf32", c.transposed(), false, stream, a, b, sink, static_cast<int>(c.rows), static_cast<int>(c.cols), k);
}

// Wide tiles, or narrow ones where wide ones would leave multiprocessors idle, as in gemm/wgmma/launch.h.
template <bool kAlongK, typename Sink>
void choose(const CUtensorMap& a, const CUtensorMap& b, const Matrix& c, const Sink& sink, int k, cudaStream_t stream) {
  const int64_t blocks = Wide::kCluster * static_cast<int64_t>(wgmma::clusters_together<Wide, product_tf32<Wide, kAlongK, Sink>>());
  const auto rows = [&](auto shape) {
    using S = decltype(shape);
    return opforge::ceil_div(S::kCluster * opforge::gemm::count_tiles(c.transposed(), S::kClusterM * wgmma::kBlockM, S::kBlockN), blocks) * S::kBlockN;
  };
  if (NARROW && rows(Narrow()) * 7 < rows(Wide()) * 5) return launch<Narrow, kAlongK>(a, b, c, sink, k, stream);
  launch<Wide, kAlongK>(a, b, c, sink, k, stream);
}

// A matrix that the TMA can address, in boxes of so many rows of 32 elements.
CUtensorMap described(const Matrix& matrix, CUtensorMapDataType type, int box_rows) {
  return hopper::describe_matrix(matrix.data, type, matrix.cols, matrix.rows, matrix.row, box_rows, sizeof(float));
}

template <bool kAlongK>
void multiply(const Matrix& a, const Matrix& b, const Matrix& c, cudaStream_t stream) {
  const CUtensorMap map_a = described(a, hopper::kMapType<float>, hopper::kBox);
  const CUtensorMap map_b = described(b, hopper::kMapType<float>, kAlongK ? hopper::kBox : hopper::kBox / 2);
  const int k = static_cast<int>(a.cols);
  // the TMA stores whole 16 bytes: the last ones of a row must not reach beyond it
  if (fits(c) && c.cols % 4 == 0) {
    choose<kAlongK>(map_a, map_b, c, ByMap<float>{described(c, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, hopper::kBox)}, k, stream);
  } else {
    choose<kAlongK>(map_a, map_b, c, opforge::gemm::pairs_of<float>(c), k, stream);
  }
}

void matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c, int64_t precision) {
  const Matrix left = OPFORGE_DEVICE_MATRIX(a), right = OPFORGE_DEVICE_MATRIX(b), out = OPFORGE_DEVICE_MATRIX(c);
  opforge::check_product(left, right, out);
  opforge::check_same_dtype(left, out);
  OPFORGE_CHECK(opforge::float_kind(left.dtype) == opforge::FloatKind::kFloat32, TypeError, "a must be float32 (got ", opforge::dtype_name(left.dtype), ")");
  OPFORGE_CHECK(precision == 1, ValueError, "precision must be tf32; for all digits take cuda_split");
  if (out.numel() == 0) return;
  cudaStream_t stream = opforge::current_stream(a);
  if (left.cols == 0) {
    const int64_t blocks = opforge::ceil_div(out.numel(), kCopiers);
    OPFORGE_CHECK(blocks <= 2147483647, ValueError, "c has ", out.numel(), " elements, more than a grid may hold");
    OPFORGE_LAUNCH(clear, static_cast<unsigned>(blocks), kCopiers, 0, stream, out.typed<float>(), out.row, out.col, static_cast<int>(out.cols), out.numel());
    return;
  }
  const Matrix columns = right.transposed();
  const bool along_n = !fits(columns) && fits(right);
  const TermsFirst rows(left, fits(left), stream);
  if (along_n) return multiply<false>(rows.matrix(), right, out, stream);
  multiply<true>(rows.matrix(), TermsFirst(columns, fits(columns), stream).matrix(), out, stream);
}

}  // namespace

OPFORGE_EXPORT(run, matmul)
