// TF32 on Hopper: the ring of cuda_wgmma with float32 tiles, which the TMA rounds on their way in; a b stored row by row goes through registers.
//
// moves     as cuda_wgmma with elements twice as large
// idea      wgmma reads TF32 from shared memory with terms side by side only. Of b stored row by row c^T = b^T a^T is computed: the first side of
//           wgmma may come from registers, where it is loaded from any layout. Its rows are dealt to the lanes so that they meet in no bank
// code      the ring, the roles and the way out are in opforge/gemm_wgmma.h, the instructions in opforge/hopper_tf32.h
// limits    sm_90a, float32 operands in "tf32". An a stored column by column, and what the TMA cannot address, is copied before
// precision factors of 11 bits, rounded; sums in float32 from the first term to the last, in the tensor cores
/* opforge
arch = "sm_90a"
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float32"]
supports = {products_of_tensor_cores = "precision == 'tf32'"}
space = {BLOCK_N = [64, 128, 192, 256], STAGES = [3, 4, 5, 6], CLUSTER_M = [1, 2], CLUSTER_N = [1, 2], GROUP = [1, 2, 4, 8, 16], LEAD = [0, 1, 2, 3], NARROW = [0, 1], OVERLAP = [0, 1], TURN = [0, 1]}
default = {BLOCK_N = 256, STAGES = 4, CLUSTER_M = 2, CLUSTER_N = 1, GROUP = 8, LEAD = 2, NARROW = 1, OVERLAP = 1, TURN = 1}
limits = {lead_fits_the_ring = "LEAD < STAGES", stages_fit_shared_memory = "STAGES * (128 + BLOCK_N) * 128 + 32768 + 2048 <= 232448", boxes_are_shared_whole = "BLOCK_N // 64 % (CLUSTER_M * CLUSTER_N) == 0"}
*/

// boxes of 64 rows x 32 columns of c that a consumer has on their way out, one for each pair of warps
#define OUT_BOXES 2
#include "opforge/gemm_wgmma_tunables.h"
#include "opforge/hopper_tf32.h"
#include "opforge/scratch.h"

// Tunable: whether a b stored row by row goes through registers; without, it is copied before.
#ifndef TURN
#define TURN 1
#endif

namespace {

using opforge::Matrix;
namespace hopper = opforge::hopper;
namespace wgmma = opforge::wgmma;

constexpr int kTile = 64, kTurners = 256;

// Writes an operand with its terms side by side: `lines` rows or columns of the product's, of `terms` each, `pitch` apart in the copy.
// kTurned: neighbours in memory are neighbours among the lines.
template <bool kTurned>
__global__ void __launch_bounds__(kTurners) lay_out(const float* from, int64_t line_stride, int64_t term_stride, float* to, int64_t pitch, int lines, int terms, int tiles_across) {
  __shared__ float tile[kTile][kTile + 1];
  const int line0 = static_cast<int>(blockIdx.x) / tiles_across * kTile, term0 = static_cast<int>(blockIdx.x) % tiles_across * kTile;
  const int across = threadIdx.x % kTile, down = threadIdx.x / kTile;
#pragma unroll
  for (int i = 0; i < kTile; i += kTurners / kTile) {
    const int line = kTurned ? across : down + i, term = kTurned ? down + i : across;
    if (line0 + line < lines && term0 + term < terms) tile[line][term] = from[(line0 + line) * line_stride + (term0 + term) * term_stride];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTile; i += kTurners / kTile) {
    const int line = down + i, term = across;
    if (line0 + line < lines && term0 + term < terms) to[(line0 + line) * pitch + term0 + term] = tile[line][term];
  }
}

// An operand as `lines` x terms, as the TMA and wgmma take it: itself, or a copy in memory that lives as long as this.
class TermsFirst {
 public:
  TermsFirst(const Matrix& matrix, cudaStream_t stream)
      : fits_(fits(matrix)), pitch_(opforge::ceil_div(matrix.cols, 4) * 4), copy_(fits_ ? 0 : matrix.rows * pitch_ * 4, stream), matrix_(matrix) {
    if (fits_) return;
    const int tiles_across = static_cast<int>(opforge::ceil_div(matrix.cols, kTile));
    const int64_t tiles = opforge::ceil_div(matrix.rows, kTile) * tiles_across;
    OPFORGE_CHECK(tiles <= 2147483647, ValueError, matrix.name, " has ", tiles, " tiles, more than a grid may hold");
    float* to = static_cast<float*>(copy_.data());
    const auto lay = matrix.row < matrix.col ? lay_out<true> : lay_out<false>;
    OPFORGE_LAUNCH(lay, static_cast<unsigned>(tiles), kTurners, 0, stream, matrix.typed<const float>(), matrix.row, matrix.col, to, pitch_, static_cast<int>(matrix.rows),
                   static_cast<int>(matrix.cols), tiles_across);
    matrix_ = Matrix{matrix.name, to, matrix.dtype, 1, matrix.rows, matrix.cols, 0, pitch_, 1};
  }
  const Matrix& matrix() const { return matrix_; }

  // Whether a matrix lies as the TMA takes it, its rows side by side; an empty one is never read.
  static bool fits(const Matrix& matrix) {
    return matrix.cols == 0 || (matrix.col == 1 && matrix.row % 4 == 0 && matrix.row >= matrix.cols && reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0);
  }

 private:
  bool fits_;
  int64_t pitch_;
  opforge::Scratch copy_;
  Matrix matrix_;
};

// ---------------------------------------------------------------------------
// b stored row by row: c^T = b^T a^T, where "rows" are columns of c and b's tiles lie as 32 terms of 32 columns
// ---------------------------------------------------------------------------

constexpr int kHalfBytes = hopper::kBoxBytes / 2;  // of a box of 64 columns x 32 terms: 32 of its columns, a row of 128 bytes for each term

template <typename S>
__device__ __forceinline__ void produce_turned(wgmma::Ring<S> ring, wgmma::Walk<S> walk, const CUtensorMap* map_a, const CUtensorMap* map_b, int steps) {
  constexpr int kShare = S::kBoxesB / S::kClusterM;
  const int first = walk.row_in_cluster * kShare;
  const uint16_t sharers = (1u << S::kClusterM) - 1;
  int col0, row0;
  while (walk.take(col0, row0))
    for (int step = 0; step < steps; ++step, ring.advance()) {
      hopper::wait(&ring.empty[ring.slot], ring.phase ^ 1);
      hopper::Barrier* full = &ring.full[ring.slot];
      hopper::arrive_expecting(full, S::kStageBytes);
      unsigned char* tiles = ring.tiles + ring.slot * S::kStageBytes;
#pragma unroll
      for (int i = 0; i < 2 * wgmma::kBoxesA; ++i) hopper::start_box(tiles + i * kHalfBytes, map_b, col0 + i * 32, step * S::kDepth, full);
#pragma unroll
      for (int i = 0; i < kShare; ++i)
        wgmma::fill_box<false, S::kClusterM, false>(sharers, tiles + (wgmma::kBoxesA + first + i) * hopper::kBoxBytes, map_a, row0 + (first + i) * hopper::kBox,
                                                    step * S::kDepth, 0, full);
    }
  if (S::kOverlap) hopper::let_next_kernel_start();
}

// Where the columns of c that a thread holds begin: sums of even pairs of registers belong to the first, of odd pairs to the one four further.
// A warp reads a term's columns 0 to 3 and 16 to 19 at once: with the swizzle of four terms, all 32 banks.
__device__ __forceinline__ int column_of(int thread) { return thread / 64 * 32 + thread / 32 % 2 * 8 + thread % 32 / 16 * 16 + thread % 16 / 4; }

// A warpgroup's 64 columns go out in pieces of 64 rows: 32 columns for each pair of warps, as rows of 128 bytes that the TMA expects swizzled.
template <int count>
__device__ __forceinline__ void store_turned(const wgmma::ByMap<float>& sink, float (&sums)[count], unsigned char* out, int row0, int col0, int group, int thread, int m, int n) {
  const int column = column_of(thread), half = thread / 64, term = thread % 4;
  unsigned char* box = out + half * hopper::kBoxBytes;
  unsigned char* place[4];  // by the neighbour among rows and the column four further
#pragma unroll
  for (int i = 0; i < 4; ++i) place[i] = box + (2 * term + i % 2) * 128 + (((column % 32 / 4 + i / 2) ^ (2 * term + i % 2)) << 4) + column % 4 * 4;
#pragma unroll
  for (int first = 0; first < count; first += 32) {
    if (thread % 64 == 0) hopper::wait_for_reads<0>();
    hopper::named_barrier(1 + group, 128);
#pragma unroll
    for (int i = 0; i < 32; ++i) *reinterpret_cast<float*>(place[i % 4] + i / 4 * 1024) = sums[first + i];
    hopper::publish_to_async();
    hopper::named_barrier(1 + group, 128);
    const int row = row0 + first * 2, col = col0 + half * 32;
    if (thread % 64 == 0 && row < m && col < n) {
      hopper::start_store(&sink.map, col, row, box);
      hopper::close_stores();
    }
  }
}

template <int count>
__device__ __forceinline__ void store_turned(const opforge::gemm::ByPairs<float>& c, float (&sums)[count], unsigned char*, int row0, int col0, int, int thread, int m, int n) {
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const int row = row0 + i / 4 * 8 + thread % 4 * 2 + i % 2, col = col0 + column_of(thread) + i / 2 % 2 * 4;
    if (row < m && col < n) c.data[row * c.row + col * c.col] = sums[i];
  }
}

template <typename S, typename Sink>
__device__ __forceinline__ void consume_turned(wgmma::Ring<S> ring, wgmma::Walk<S> walk, int steps, int group, const Sink& sink, unsigned char* out, int m, int n) {
  constexpr bool kAlone = S::kCluster == 1;
  constexpr int kProducts = S::kDepth / 8;
  const int thread = threadIdx.x % 128, column = column_of(thread), term = thread % 4;
  const uint64_t first_a = hopper::operand(opforge::shared_address(ring.tiles) + wgmma::kBoxesA * hopper::kBoxBytes, 0, 1024);
  // this thread's place among 8 terms of 32 columns, for the terms from 0 and from 4 on, of the first column and of the one four further
  const unsigned char* box = ring.tiles + group * hopper::kBoxBytes + column / 32 * kHalfBytes + term * 128 + column % 4 * 4;
  const int piece = column % 32 / 4;
  int place[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) place[i] = i / 2 * 512 + (((piece + i % 2) ^ (term + i / 2 * 4)) << 4);
  float sums[S::kBlockN / 2];
  const auto load = [&](uint32_t(&held)[kProducts][4]) {
    hopper::wait(&ring.full[ring.slot], ring.phase);
    const unsigned char* from = box + ring.slot * S::kStageBytes;
#pragma unroll
    for (int i = 0; i < kProducts; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) held[i][j] = *reinterpret_cast<const uint32_t*>(from + i * 1024 + place[j]);
  };
  // keeps the registers of products that may be under way from being used for anything else before this point
  const auto keep = [](uint32_t(&held)[kProducts][4]) {
#pragma unroll
    for (int i = 0; i < kProducts; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(held[i][j])::"memory");
  };
  const auto start = [&](uint32_t(&held)[kProducts][4], bool add) {
    const uint64_t a = first_a + static_cast<uint64_t>(ring.slot * (S::kStageBytes >> 4));
    keep(held);
    hopper::hold(sums);
    hopper::begin_products();
#pragma unroll
    for (int i = 0; i < kProducts; ++i) hopper::ProductOfRegisters<S::kBlockN>::run(sums, held[i], a + i * 2, add || i > 0);
    hopper::close_products();
    hopper::hold(sums);
  };
  int col0, row0;
  const int lead = min(S::kLead, steps);
  if (lead > 0 && group > 0) hopper::named_barrier(wgmma::kLeadBarrier, 128 * wgmma::kConsumers);
  bool leading = lead > 0 && group == 0;
  while (walk.take(col0, row0)) {
    uint32_t one[kProducts][4], other[kProducts][4];
    int before = 0;
    // one step: its terms are loaded while the products of the step before run, and then that step's registers and slot are free. Every warp says so:
    // it has read the slot itself
    const auto advance = [&](uint32_t(&mine)[kProducts][4], uint32_t(&previous)[kProducts][4], int step) {
      load(mine);
      start(mine, step > 0);
      if (step > 0) {
        hopper::wait_for_products<1>();
        keep(previous);
        wgmma::release<kAlone>(&ring.empty[before], walk, thread % 32);
      }
      before = ring.slot;
      ring.advance();
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
    keep(one);
    keep(other);
    wgmma::release<kAlone>(&ring.empty[before], walk, thread % 32);
    store_turned(sink, sums, out, row0, col0 + group * 64, group, thread, m, n);
  }
}

template <typename S, typename Sink>
__global__ void __cluster_dims__(S::kCluster, 1, 1) __launch_bounds__(wgmma::kThreads, 1)
    product_turned(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, const __grid_constant__ Sink sink, int m, int n, int k) {
  constexpr bool kAlone = S::kCluster == 1;
  static_assert(S::kClusterN == 1, "each block has columns of its own");
  extern __shared__ unsigned char raw[];
  const wgmma::Shared<S> shared = wgmma::Shared<S>::template begin<kAlone>(raw, 1, S::kClusterM * wgmma::kConsumers * 4);
  const wgmma::Walk<S> walk(n, m, 1);
  const int steps = (k + S::kDepth - 1) / S::kDepth, group = wgmma::warpgroup();
  if (group == wgmma::kConsumers) {
    hopper::keep_registers<wgmma::kProducerRegisters>();
    if (threadIdx.x % 128 == 0) {
      hopper::prefetch_map(&map_a);
      hopper::prefetch_map(&map_b);
      if (S::kOverlap) hopper::wait_for_kernels_before();
      produce_turned<S>(shared.ring, walk, &map_a, &map_b, steps);
    }
  } else {
    hopper::take_registers<wgmma::kConsumerRegisters>();
    consume_turned<S>(shared.ring, walk, steps, group, sink, shared.out + group * S::kOutBoxes * hopper::kBoxBytes, m, n);
    if (threadIdx.x % 64 == 0) hopper::wait_for_reads<0>();
  }
  if constexpr (!kAlone) hopper::cluster_sync();
}

template <typename S, typename Sink>
void launch_turned(const Matrix& a, const Matrix& b, const Matrix& c, const Sink& sink, cudaStream_t stream) {
  constexpr auto kernel = product_turned<S, Sink>;
  const CUtensorMap map_a = hopper::describe_matrix(a.data, hopper::kMapType<float>, a.cols, a.rows, a.row, hopper::kBox, sizeof(float));
  const CUtensorMap map_b = hopper::describe_matrix(b.data, hopper::kMapType<float>, b.cols, b.rows, b.row, 32, sizeof(float));
  cudaLaunchConfig_t config = {};
  config.gridDim = wgmma::grid_for<S, kernel>(c.transposed());
  config.blockDim = wgmma::kThreads;
  config.dynamicSmemBytes = S::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = S::kOverlap;
  opforge::check_cuda(cudaLaunchKernelEx(&config, kernel, map_a, map_b, sink, static_cast<int>(c.rows), static_cast<int>(c.cols),
                                         static_cast<int>(a.cols)),
                      "product_turned");
}

// Wide tiles, or narrow ones where wide ones would leave multiprocessors idle, as in gemm_wgmma.h.
template <typename Sink>
void choose_turned(const Matrix& a, const Matrix& b, const Matrix& c, const Sink& sink, cudaStream_t stream) {
  // the blocks of a cluster share a, whatever they share in the other kernel
  using Wide = wgmma::Shape<float, BLOCK_N, STAGES, CLUSTER_M * CLUSTER_N, 1, OUT_BOXES, LEAD, GROUP, OVERLAP>;
  using Narrow = wgmma::Shape<float, 64, 7, 1, 1, OUT_BOXES, 0, GROUP, OVERLAP>;
  const int64_t blocks = Wide::kCluster * static_cast<int64_t>(wgmma::clusters_together<Wide, product_turned<Wide, Sink>>());
  const auto rows = [&](auto shape) {
    using S = decltype(shape);
    return opforge::ceil_div(S::kCluster * opforge::gemm::count_tiles(c.transposed(), S::kClusterM * wgmma::kBlockM, S::kBlockN), blocks) * S::kBlockN;
  };
  if (NARROW && rows(Narrow()) * 7 < rows(Wide()) * 5) return launch_turned<Narrow>(a, b, c, sink, stream);
  launch_turned<Wide>(a, b, c, sink, stream);
}

// c = a b for an a with its terms side by side and a b stored row by row; false, and nothing is done, where they lie otherwise.
bool multiply_turned(const Matrix& a, const Matrix& b, const Matrix& c, cudaStream_t stream) {
  if (!TURN || a.cols == 0 || !TermsFirst::fits(a) || !TermsFirst::fits(b)) return false;
  // the TMA stores whole 16 bytes
  if (TermsFirst::fits(c) && c.cols % 4 == 0) {
    choose_turned(a, b, c, wgmma::ByMap<float>{hopper::describe_matrix(c.data, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, c.cols, c.rows, c.row, hopper::kBox, sizeof(float))}, stream);
  } else {
    choose_turned(a, b, c, opforge::gemm::pairs_of<float>(c), stream);
  }
  return true;
}

void matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c, int64_t precision) {
  const Matrix left = OPFORGE_DEVICE_MATRIX(a), right = OPFORGE_DEVICE_MATRIX(b), out = OPFORGE_DEVICE_MATRIX(c);
  opforge::check_product(left, right, out);
  opforge::check_same_dtype(left, out);
  OPFORGE_CHECK(opforge::float_kind(left.dtype) == opforge::FloatKind::kFloat32, TypeError, "a must be float32 (got ", opforge::dtype_name(left.dtype), ")");
  OPFORGE_CHECK(precision == 1, ValueError, "precision must be tf32: for all digits take cuda_split");
  if (out.numel() == 0) return;
  cudaStream_t stream = opforge::current_stream(a);
  if (multiply_turned(left, right, out, stream)) return;
  const TermsFirst rows(left, stream), columns(right.transposed(), stream);
  wgmma::launch_product<wgmma::Wide<float>, wgmma::Narrow<float>, float, false>(rows.matrix(), columns.matrix().transposed(), out, stream, opforge::gemm::Unchanged{},
                                                                                wgmma::Kept{});
}

}  // namespace

OPFORGE_EXPORT(run, matmul)
