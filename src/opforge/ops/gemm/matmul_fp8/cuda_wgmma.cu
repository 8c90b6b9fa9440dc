// QGMMA on Hopper: TMA fills a pipeline, two warpgroups multiply 128 terms and move the sums to float32 registers, where blocks' scales are.
//
// moves     a is read ceil(n / (BLOCK_N * CLUSTER_N)) times from the second-level cache and b ceil(m / (128 * CLUSTER_M))
//           times: the blocks of a cluster share what they read
// idea      tensor cores keep some 14 bits of a sum of FP8 products, so a step of 128 terms begins a new one. While one warpgroup adds
//           its 64 x BLOCK_N sums to those before, times the scales of the block, the other one has the tensor cores. A step's scales
//           are fetched before its products begin. Scales of rows and tensors meet the final sums
// code      the pipeline, the roles and the way out are in opforge/gemm/wgmma/launch.h, which ../matmul has too
// limits    sm_90a; the TMA addresses rows that begin at multiples of 16 bytes. What else there is the copying warpgroup moves element
//           by element: right, and slow. Two operands in E5M2 and results in float16 are left to others: every kernel here costs
//           two seconds to compile, and no recipe asks for these
/* opforge
arch = "sm_90a"
layouts = ["contiguous", "rows", "strided"]

[supports]
rows_of_whole_16_bytes = "k % 16 == 0"
an_operand_in_e4m3 = "dtype == 'float8_e4m3fn' or b_dtype == 'float8_e4m3fn'"
a_result_not_in_float16 = "out_dtype != 'float16'"

[space]
BLOCK_N = [64, 128, 160, 192, 208]
STAGES = [3, 4, 5, 6]
CLUSTER_M = [1, 2]
CLUSTER_N = [1, 2]
GROUP = [1, 2, 4, 8, 16]
OUT_BOXES = [1, 2]
LEAD = [0, 1, 2]
OVERLAP = [0, 1]
AHEAD = [0, 1, 2, 3]
WIDER = [0, 1]

[default]
BLOCK_N = 128
STAGES = 5
CLUSTER_M = 2
CLUSTER_N = 1
GROUP = 4
OUT_BOXES = 2
LEAD = 0
OVERLAP = 1
AHEAD = 1
WIDER = 0

[limits]
lead_fits_the_pipeline = "LEAD < STAGES"
registers_hold_two_sets_of_sums = "AHEAD != 1 or BLOCK_N <= 128"
turns_have_no_lead = "AHEAD != 3 or LEAD == 0"
stages_fit_shared_memory = "STAGES * (128 + (BLOCK_N + 63) // 64 * 64) * 128 + 16384 * OUT_BOXES + STAGES * 544 + 2048 <= shared_bytes_per_block"
*/
#include "opforge/gemm/fp8_scales.h"
#include "opforge/gemm/wgmma/launch.h"

// Tunable: columns of a tile of y, steps under way at once, blocks that share b, blocks that share a, rows of tiles computed
// together, boxes of y under way, steps by which one consumer leads the other, whether blocks may start while the kernel before runs,
// what a warpgroup multiplies while it adds the sums of a step (0: nothing, 1: the next step in a second set of sums, 2: the other half of its
// columns, 3: nothing, but it takes turns with the other warpgroup), whether tiles of 192 columns are used where they cost less.
#ifndef BLOCK_N
#define BLOCK_N 128
#endif
#ifndef STAGES
#define STAGES 5
#endif
#ifndef CLUSTER_M
#define CLUSTER_M 2
#endif
#ifndef CLUSTER_N
#define CLUSTER_N 1
#endif
#ifndef GROUP
#define GROUP 4
#endif
#ifndef OUT_BOXES
#define OUT_BOXES 2
#endif
#ifndef LEAD
#define LEAD 0
#endif
#ifndef OVERLAP
#define OVERLAP 1
#endif
#ifndef AHEAD
#define AHEAD 1
#endif
#ifndef WIDER
#define WIDER 0
#endif

namespace opforge {

/// Operands of two formats, a's first: bytes to everything but the product.
struct E4M3ByE5M2 : float8_e4m3_t {};
struct E5M2ByE4M3 : float8_e5m2_t {};
template <>
__device__ __forceinline__ E4M3ByE5M2 store_from_float<E4M3ByE5M2>(float v) { return {store_from_float<float8_e4m3_t>(v)}; }
template <>
__device__ __forceinline__ E5M2ByE4M3 store_from_float<E5M2ByE4M3>(float v) { return {store_from_float<float8_e5m2_t>(v)}; }

namespace hopper {
template <>
constexpr CUtensorMapDataType kMapType<E4M3ByE5M2> = CU_TENSOR_MAP_DATA_TYPE_UINT8;
template <>
constexpr CUtensorMapDataType kMapType<E5M2ByE4M3> = CU_TENSOR_MAP_DATA_TYPE_UINT8;
#define OPFORGE_MIXED_PRODUCTS(N)                                                                               \
  OPFORGE_PRODUCT8(E4M3ByE5M2, "e4m3.e5m2", N, OPFORGE_REGISTERS##N, OPFORGE_TAIL##N, OPFORGE_SUMS##N)      \
  OPFORGE_PRODUCT8(E5M2ByE4M3, "e5m2.e4m3", N, OPFORGE_REGISTERS##N, OPFORGE_TAIL##N, OPFORGE_SUMS##N)
OPFORGE_MIXED_PRODUCTS(64)
OPFORGE_MIXED_PRODUCTS(80)
OPFORGE_MIXED_PRODUCTS(96)
OPFORGE_MIXED_PRODUCTS(104)
OPFORGE_MIXED_PRODUCTS(128)
OPFORGE_MIXED_PRODUCTS(160)
OPFORGE_MIXED_PRODUCTS(192)
OPFORGE_MIXED_PRODUCTS(208)
}  // namespace hopper
}  // namespace opforge

namespace {

namespace wgmma = opforge::wgmma;
using opforge::Scales;

// Scales of rows or tensors: the sums move over as they are.
struct Moved {
  static constexpr bool kEachStep = true, kReads = false;
  struct Fetched {};
  __device__ __forceinline__ Fetched fetch(int, int, int, int) const { return {}; }
  template <int first, int all, int count>
  __device__ __forceinline__ void add(float (&totals)[all], float (&sums)[count], const Fetched&) const {
#pragma unroll
    for (int i = 0; i < count; ++i) totals[first + i] += sums[i];
  }
};

// Scales of blocks: the sums of 128 terms are multiplied on the way. The scales of a step come through the pipeline: those of 128 rows, then those of
// every 64 columns, which lie in one block of b's.
struct Scaled {
  static constexpr bool kEachStep = true, kReads = true;
  Scales a, b;
  template <int boxes>
  struct Fetched {
    float rows[2], boxes_of_b[boxes];
  };
  __device__ __forceinline__ const float* source(int row0, int col0, int i) const {
    return i < 128 ? a.where(row0 + i, 0) : b.where((col0 + 64 * (i - 128)) / opforge::kScaleBlock, 0);
  }
  __device__ __forceinline__ int64_t stride(int i) const { return i < 128 ? a.block : b.block; }
  // Every thread has sums of two rows, eight apart.
  template <int boxes>
  __device__ __forceinline__ Fetched<boxes> read(const float* floats, int group, int thread) const {
    Fetched<boxes> found;
    const int row = group * 64 + thread / 32 * 16 + thread % 32 / 4;
    found.rows[0] = floats[row];
    found.rows[1] = floats[row + 8];
#pragma unroll
    for (int i = 0; i < boxes; ++i) found.boxes_of_b[i] = floats[128 + i];
    return found;
  }
  template <int first, int all, int count, int boxes>
  __device__ __forceinline__ void add(float (&totals)[all], float (&sums)[count], const Fetched<boxes>& scales) const {
    constexpr int kEach = 32;  // sums of a thread in 64 columns
#pragma unroll
    for (int box = first / kEach; box * kEach < first + count; ++box) {
      const float by[2] = {scales.rows[0] * scales.boxes_of_b[box], scales.rows[1] * scales.boxes_of_b[box]};
#pragma unroll
      for (int at = 0; at < kEach; ++at) {
        const int i = box * kEach + at - first;
        if (i >= 0 && i < count) totals[first + i] = fmaf(sums[i], by[at / 2 % 2], totals[first + i]);
      }
    }
  }
};

// Before the store: the scales of rows and columns, or of both tensors, asked for before the products of a tile. A warp has those of
// 64 columns, two a lane, which its lanes pass to each other.
struct ByRowAndColumn {
  static constexpr bool kReads = true;
  Scales a, b;

  template <int boxes>
  struct Loaded {
    float rows[2], columns[boxes][2];
  };
  template <int boxes>
  __device__ __forceinline__ Loaded<boxes> hold(int row0, int col0, int thread) const {
    Loaded<boxes> loaded;
    const int row = row0 + thread / 32 * 16 + thread % 32 / 4, col = col0 + thread % 32 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) loaded.rows[i] = a.at(row + 8 * i, 0);
#pragma unroll
    for (int i = 0; i < 2 * boxes; ++i) loaded.columns[i / 2][i % 2] = b.at(col + i / 2 * 64 + i % 2, 0);
    return loaded;
  }
  template <int count, int boxes>
  __device__ __forceinline__ void apply(float (&sums)[count], const Loaded<boxes>& loaded, int box, int, int, int thread) const {
#pragma unroll
    for (int i = 0; i < count; i += 4) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float by_column = __shfl_sync(opforge::kFullMask, loaded.columns[box][j], i + thread % 4);
        sums[i + j] *= loaded.rows[0] * by_column;
        sums[i + 2 + j] *= loaded.rows[1] * by_column;
      }
    }
  }
};

// Tiles of BLOCK_N columns, or of 192 where those cost less; scales of blocks want whole boxes of 64 columns.
template <typename T, bool blocks, int block_n>
constexpr int kFloats = blocks ? 128 + block_n / 64 : 0;
template <typename T, bool blocks, int block_n = blocks && BLOCK_N % 64 != 0 ? 128 : BLOCK_N>
using Tile = wgmma::Shape<T, block_n, STAGES, CLUSTER_M, CLUSTER_N, OUT_BOXES, LEAD, GROUP, OVERLAP, false, kFloats<T, blocks, block_n>, AHEAD>;
template <typename T, bool blocks>
using Tile192 = wgmma::WithCost<wgmma::Shape<T, 192, 4, 2, 1, 2, 1, GROUP, OVERLAP, false, kFloats<T, blocks, 192>, wgmma::kSplitN>, 100>;
template <typename T, bool blocks>
using Wider = std::conditional_t<WIDER && BLOCK_N == 128, wgmma::OneOf<Tile192<T, blocks>>, wgmma::OneOf<>>;

template <typename T, typename TOut>
void product_of(const opforge::Fp8Product& call, cudaStream_t stream) {
  const opforge::Matrix b = call.b.transposed();
  if (call.blockwise) {
    wgmma::launch_product<Tile<T, true>, Wider<T, true>, TOut>(call.a, b, call.y, stream, opforge::gemm::Unchanged{}, Scaled{call.scale_a, call.scale_b});
  } else {
    wgmma::launch_product<Tile<T, false>, Wider<T, false>, TOut>(call.a, b, call.y, stream, ByRowAndColumn{call.scale_a, call.scale_b}, Moved{});
  }
}

void matmul_fp8(opforge::TensorView a, opforge::TensorView b, opforge::TensorView scale_a, opforge::TensorView scale_b, opforge::TensorView y, int scaling,
                int, int) {
  for (const opforge::TensorView& tensor : {a, b, scale_a, scale_b, y}) OPFORGE_CHECK_DEVICE(tensor);
  const opforge::Fp8Product call = opforge::check_fp8_product(a, b, scale_a, scale_b, y, scaling);
  if (call.y.numel() == 0) return;
  const cudaStream_t stream = opforge::current_stream(a);
  const bool wide_a = opforge::holds_fp8<opforge::float8_e5m2_t>(a), wide_b = opforge::holds_fp8<opforge::float8_e5m2_t>(b);
  OPFORGE_CHECK(!(wide_a && wide_b), TypeError, "a or b must be float8_e4m3fn: two operands in float8_e5m2 are for triton_scaled");
  const auto stored_as = [&](auto of) {
    using TOut = decltype(of);
    const auto chosen = wide_a   ? product_of<opforge::E5M2ByE4M3, TOut>
                        : wide_b ? product_of<opforge::E4M3ByE5M2, TOut>
                                 : product_of<opforge::float8_e4m3_t, TOut>;
    chosen(call, stream);
  };
  switch (opforge::float_kind(y.dtype())) {
    case opforge::FloatKind::kBFloat16: return stored_as(opforge::bfloat16_t{});
    case opforge::FloatKind::kFloat32: return stored_as(float{});
    default: opforge::raise("TypeError", "y must be bfloat16 or float32 (got ", opforge::dtype_name(y.dtype()), ")");
  }
}

}  // namespace

OPFORGE_EXPORT(run, matmul_fp8)
