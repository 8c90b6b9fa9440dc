// float32 on Hopper's tensor cores: each number is the exact sum of three bfloat16, and six of the nine products are taken.
//
// moves     float32 tiles are read once from the second-level cache; the split happens on the way into shared memory, so
//           that nothing is written to memory but c
// limits    six wgmma per float32 product: a sixth of the bfloat16 rate at best. sm_90a
// precision x = high + middle + low holds exactly (8 + 8 + 8 bits). The products left out are below 2^-25 of |a| |b|. Tensor
//           cores cut off what does not fit their sum: sums of 64 terms are therefore added up in ordinary float32
//           arithmetic. Where an operand is not finite, or too large for bfloat16, plain multiply-adds repeat the element
// source    Ootomo and Yokota, Recovering single precision accuracy from Tensor Cores, IJHPCA 36(4), 2022, for splitting and
//           for adding outside; Henry, Tang and Heinecke, Leveraging the bfloat16 datatype, ARITH 2019, for three parts
/* opforge
arch = "sm_90a"
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float32"]

[supports]
digits_worth_three_parts = "precision == 'ieee'"

[space]
BLOCK_N = [64, 128]
STAGES = [2, 3]
SPLITTERS = [1, 2]
GROUP = [4, 8, 16]

[default]
BLOCK_N = 128
STAGES = 2
SPLITTERS = 2
GROUP = 8

[limits]
stages_fit_shared_memory = "STAGES * (128 + BLOCK_N) * 384 + 2048 <= shared_bytes_per_block"
*/
#include "opforge/gemm/common.h"
#include "opforge/arch/hopper.h"

#include <algorithm>

// Tunable: columns of a tile of c, steps under way at once, warpgroups that read and split, rows of tiles computed together.
#ifndef BLOCK_N
#define BLOCK_N 128
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef SPLITTERS
#define SPLITTERS 2
#endif
#ifndef GROUP
#define GROUP 8
#endif

namespace {

using opforge::Pair;
using opforge::Vec;
using opforge::hopper::Barrier;
using opforge::hopper::kBox;
using opforge::hopper::kBoxBytes;

constexpr int kBlockM = 128, kDepth = kBox, kParts = 3;
constexpr int kConsumers = kBlockM / 64, kThreads = 128 * (kConsumers + SPLITTERS);
constexpr int kPartBytesA = kBlockM / kBox * kBoxBytes, kPartBytesB = BLOCK_N / kBox * kBoxBytes;
constexpr int kStageBytes = kParts * (kPartBytesA + kPartBytesB);
constexpr int kSharedBytes = STAGES * (kStageBytes + 2 * static_cast<int>(sizeof(Barrier))) + 1024;
// of 65536 registers, what is left by the sums of two warpgroups goes to those that hold the next step
constexpr int kConsumerRegisters = SPLITTERS == 2 ? 160 : 168, kSplitterRegisters = SPLITTERS == 2 ? 96 : 168;

// One operand seen from the sums: `outer` runs along m (a) or n (b). Strides in elements.
struct Operand {
  const float* data;
  int64_t outer_stride, depth_stride;
  int outer, depth;
  bool vectors;  // terms are neighbours, and eight of them may be read as two 16-byte vectors
};

// Writes x as three bfloat16 that add up to it, two numbers at a time.
__device__ __forceinline__ void split(float x0, float x1, Pair (&parts)[kParts]) {
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(x0, x1);
    parts[i] = *reinterpret_cast<const Pair*>(&rounded);
    x0 -= __uint_as_float(parts[i] << 16);
    x1 -= __uint_as_float(parts[i] & 0xffff0000u);
  }
}

// A thread's share of kRows x 64 numbers of an operand, on its way from memory through registers into shared memory.
template <int kRows>
struct Share {
  static constexpr int kPieces = kDepth / 8, kThreadsHere = 128 * SPLITTERS, kEach = kRows * kPieces / kThreadsHere;
  static_assert(kEach * kThreadsHere == kRows * kPieces, "every thread splits the same number of pieces");

  float held[kEach][8];

  // Which row, and which eight terms of it, piece j of a thread is. Neighbouring threads read neighbours in memory.
  __device__ static __forceinline__ void place(const Operand& from, int thread, int j, int& row, int& piece) {
    const int slot = thread + j * kThreadsHere;
    const bool terms_first = from.depth_stride == 1;
    row = terms_first ? slot / kPieces : slot % kRows;
    piece = terms_first ? slot % kPieces : slot / kRows;
  }

  // Starts reading; what lies beyond an edge is zero.
  __device__ __forceinline__ void load(const Operand& from, int outer0, int depth0, int thread) {
    // the addresses of all pieces, kept from step to step, would not fit the registers: they are computed again
    asm volatile("" : "+r"(thread));
    if (from.vectors) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        int row, piece;
        place(from, thread, j, row, piece);
        const int outer = outer0 + row, depth = depth0 + piece * 8;
        const float4* source = reinterpret_cast<const float4*>(from.data + outer * from.outer_stride + depth);
        const bool inside = outer < from.outer && depth < from.depth;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float4 four = inside ? source[half] : float4{};
          held[j][4 * half] = four.x;
          held[j][4 * half + 1] = four.y;
          held[j][4 * half + 2] = four.z;
          held[j][4 * half + 3] = four.w;
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        int row, piece;
        place(from, thread, j, row, piece);
        const int outer = outer0 + row, depth = depth0 + piece * 8;
        const int room = outer < from.outer ? from.depth - depth : 0;
        const float* source = from.data + outer * from.outer_stride + depth * from.depth_stride;
#pragma unroll
        for (int l = 0; l < 8; ++l, source += from.depth_stride) held[j][l] = l < room ? *source : 0.0f;
      }
    }
  }

  // Splits what was read and stores each part as swizzled rows of 64 terms.
  __device__ __forceinline__ void store(const Operand& from, unsigned char* tile, int thread) const {
    asm volatile("" : "+r"(thread));
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      int row, piece;
      place(from, thread, j, row, piece);
      Vec<Pair, 4> parts[kParts];
#pragma unroll
      for (int l = 0; l < 4; ++l) {
        Pair three[kParts];
        split(held[j][2 * l], held[j][2 * l + 1], three);
#pragma unroll
        for (int part = 0; part < kParts; ++part) parts[part][l] = three[part];
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        parts[part].store(reinterpret_cast<Pair*>(tile + part * kRows * 128 + row * 128 + (piece ^ row % 8) * 16));
    }
  }
};

// GROUP rows of tiles are visited column by column: blocks that run together read few distinct panels of a and b.
__device__ __forceinline__ void place(int tile, int rows, int cols, int& row0, int& col0) {
  const int in_group = GROUP * cols, first = tile / in_group * GROUP, within = tile % in_group, height = min(rows - first, GROUP);
  row0 = (first + within % height) * kBlockM;
  col0 = within / height * BLOCK_N;
}

// Repeats in plain arithmetic what came out as NaN: infinity times a part that is zero is not what infinity times b is.
__device__ __noinline__ void repeat_plainly(const Operand& a, const Operand& b, float* c, int64_t c_row, int64_t c_col, int row0, int col0) {
  for (int i = 0; i < BLOCK_N / 2; ++i) {
    const int row = row0 + i / 2 % 2 * 8, col = col0 + i / 4 * 8 + i % 2;
    if (row >= a.outer || col >= b.outer) continue;
    float* p = c + row * c_row + col * c_col;
    if (!isnan(*p)) continue;
    float sum = 0.0f;
    for (int l = 0; l < a.depth; ++l) sum = fmaf(a.data[row * a.outer_stride + l * a.depth_stride], b.data[col * b.outer_stride + l * b.depth_stride], sum);
    *p = sum;
  }
}

__global__ void __launch_bounds__(kThreads, 1) matmul_split(const __grid_constant__ Operand a, const __grid_constant__ Operand b, float* c, int64_t c_row, int64_t c_col, bool c_pairs) {
  extern __shared__ unsigned char raw[];
  // swizzled rows are addressed from multiples of 1024 bytes
  unsigned char* tiles = raw + (1024 - opforge::shared_address(raw) % 1024) % 1024;
  Barrier* full = reinterpret_cast<Barrier*>(tiles + STAGES * kStageBytes);
  Barrier* empty = full + STAGES;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      opforge::hopper::init_barrier(&full[i], 128 * SPLITTERS);
      opforge::hopper::init_barrier(&empty[i], kConsumers);
    }
    opforge::hopper::fence_barrier_init();
  }
  __syncthreads();
  const int group = __shfl_sync(opforge::kFullMask, static_cast<int>(threadIdx.x) / 128, 0);
  const int rows = (a.outer + kBlockM - 1) / kBlockM, cols = (b.outer + BLOCK_N - 1) / BLOCK_N;
  const int steps = (a.depth + kDepth - 1) / kDepth;
  int slot = 0, row0, col0;
  uint32_t phase = 0;
  const auto advance = [&] {
    if (++slot == STAGES) {
      slot = 0;
      phase ^= 1;
    }
  };
  if (group >= kConsumers) {
    if (SPLITTERS == 2) opforge::hopper::shrink_registers<kSplitterRegisters>();
    const int thread = threadIdx.x - 128 * kConsumers;
    Share<kBlockM> left;
    Share<BLOCK_N> right;
    // the next step's numbers are on their way while this one's are split, and while its place is still in use
    int tile = blockIdx.x, step = 0;
    const auto more = [&] { return steps > 0 && tile < rows * cols; };
    const auto next = [&] {
      if (++step == steps) {
        step = 0;
        tile += gridDim.x;
        if (more()) place(tile, rows, cols, row0, col0);
      }
    };
    bool again = false;
    if (more()) {
      place(tile, rows, cols, row0, col0);
      left.load(a, row0, 0, thread);
      right.load(b, col0, 0, thread);
    }
    for (bool held = more(); held; held = again) {
      next();
      again = more();
      opforge::hopper::wait(&empty[slot], phase ^ 1);
      unsigned char* stage = tiles + slot * kStageBytes;
      left.store(a, stage, thread);
      if (again) left.load(a, row0, step * kDepth, thread);
      right.store(b, stage + kParts * kPartBytesA, thread);
      opforge::hopper::fence_async_proxy();
      opforge::hopper::arrive(&full[slot]);
      if (again) right.load(b, col0, step * kDepth, thread);
      advance();
    }
  } else {
    if (SPLITTERS == 2) opforge::hopper::grow_registers<kConsumerRegisters>();
    // the small products first: (low, high), (high, low), (middle, middle), (middle, high), (high, middle), (high, high)
    constexpr int kPartOfA[6] = {2, 0, 1, 1, 0, 0}, kPartOfB[6] = {0, 2, 1, 0, 1, 0};
    const int thread = threadIdx.x % 128;
    const uint32_t start = opforge::shared_address(tiles);
    const uint64_t first_a = opforge::hopper::operand(start + group * kBoxBytes, 0, 1024);
    const uint64_t first_b = opforge::hopper::operand(start + kParts * kPartBytesA, 0, 1024);
    for (int tile = blockIdx.x; tile < rows * cols; tile += gridDim.x) {
      place(tile, rows, cols, row0, col0);
      float totals[BLOCK_N / 2] = {};
      for (int step = 0; step < steps; ++step, advance()) {
        float sums[BLOCK_N / 2];
        opforge::hopper::wait(&full[slot], phase);
        const uint64_t stage = static_cast<uint64_t>(slot * (kStageBytes >> 4));
        opforge::hopper::hold(sums);
        opforge::hopper::fence_before_products();
#pragma unroll
        for (int pair = 0; pair < 6; ++pair)
#pragma unroll
          for (int l = 0; l < kDepth / 16; ++l)
            opforge::hopper::Product<opforge::bfloat16_t, BLOCK_N, false, false>::run(sums, first_a + stage + ((kPartOfA[pair] * kPartBytesA + l * 32) >> 4),
                                                                                      first_b + stage + ((kPartOfB[pair] * kPartBytesB + l * 32) >> 4),
                                                                                      pair > 0 || l > 0);
        opforge::hopper::commit_products();
        opforge::hopper::wait_for_products<0>();
        opforge::hopper::hold(sums);
        if (thread == 0) opforge::hopper::arrive(&empty[slot]);
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; ++i) totals[i] += sums[i];
      }
      const int row = row0 + group * 64 + thread / 32 * 16 + thread % 32 / 4, col = col0 + thread % 4 * 2;
      bool has_nan = false;
#pragma unroll
      for (int i = 0; i < BLOCK_N / 2; i += 2) {
        const int at_row = row + i / 2 % 2 * 8, at_col = col + i / 4 * 8;
        has_nan |= isnan(totals[i]) || isnan(totals[i + 1]);
        if (at_row >= a.outer || at_col >= b.outer) continue;
        float* p = c + at_row * c_row + at_col * c_col;
        if (c_pairs && at_col + 1 < b.outer) {
          *reinterpret_cast<float2*>(p) = float2{totals[i], totals[i + 1]};
        } else {
          p[0] = totals[i];
          if (at_col + 1 < b.outer) p[c_col] = totals[i + 1];
        }
      }
      if (has_nan) repeat_plainly(a, b, c, c_row, c_col, row, col);
    }
  }
}

Operand describe(const opforge::TensorView& tensor, int outer_dim) {
  const int depth_dim = 1 - outer_dim;
  const float* data = opforge::data<const float>(tensor);
  const int64_t outer_stride = tensor.stride(outer_dim), depth_stride = tensor.stride(depth_dim), depth = tensor.size(depth_dim);
  const bool vectors = depth_stride == 1 && outer_stride % 4 == 0 && depth % 8 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  return {data, outer_stride, depth_stride, static_cast<int>(tensor.size(outer_dim)), static_cast<int>(depth), vectors};
}

void matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c, int64_t /*precision*/) {
  opforge::check_product(OPFORGE_DEVICE_MATRIX(a), OPFORGE_DEVICE_MATRIX(b), OPFORGE_DEVICE_MATRIX(c));
  OPFORGE_CHECK_SAME_DTYPE(a, c);
  OPFORGE_CHECK(opforge::float_kind(a.dtype()) == opforge::FloatKind::kFloat32, TypeError, "a must be float32 (got ", opforge::dtype_name(a.dtype()), ")");
  if (c.numel() == 0) return;
  static const int blocks_together = [] {
    int device = 0, count = 0;
    opforge::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    opforge::check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    return count;
  }();
  const int64_t tiles = opforge::ceil_div(c.size(0), kBlockM) * opforge::ceil_div(c.size(1), BLOCK_N);
  OPFORGE_CHECK(tiles <= 2147483647 / 2, ValueError, "c has ", tiles, " tiles, more than can be counted");
  float* out = opforge::data<float>(c);
  const bool c_pairs = c.stride(1) == 1 && c.stride(0) % 2 == 0 && reinterpret_cast<uintptr_t>(out) % 8 == 0;
  OPFORGE_LAUNCH(matmul_split, static_cast<unsigned>(std::min<int64_t>(tiles, blocks_together)), kThreads, kSharedBytes, opforge::current_stream(a), describe(a, 0),
                 describe(b, 1), out, c.stride(0), c.stride(1), c_pairs);
}

}  // namespace

OPFORGE_EXPORT(run, matmul)
